"""Under the official package: print the weights in the checkpoint in a folder."""

import json
import sys
from typing import Any

import torch

from determined import pytorch

trial: Any = pytorch.load_trial_from_checkpoint_path(sys.argv[1], torch_load_kwargs={"weights_only": False})
print(json.dumps(torch.cat([v.flatten() for v in trial.model.state_dict().values()]).tolist()))
