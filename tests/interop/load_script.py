"""Runs in the official client's environment: a trained model, downloaded and loaded with the SDK. Prints one JSON object.

Arguments: the trial, its checkpoint, a folder to download to.
"""

import json
import os
import sys
from typing import Any

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # the package is older than PyTorch 2.6

import torch

from determined import pytorch
from determined.experimental import client

trial_id, uuid, folder = sys.argv[1:]
client.login()
checkpoint = client.get_checkpoint(uuid)
path = checkpoint.download(folder)
with open(os.path.join(path, "load_data.json")) as file:
    trial_type = json.load(file)["trial_type"]
trial: Any = pytorch.load_trial_from_checkpoint_path(path)
with torch.no_grad():
    prediction = trial.model(torch.ones(1, 1)).item()
said = {
    "steps": checkpoint.metadata["steps_completed"],
    "trial_class": type(trial).__name__,
    "trial_type": trial_type,
    "prediction": prediction,
    "checkpoints": len(client.get_trial(int(trial_id)).list_checkpoints()),
}
print(json.dumps(said))
