"""The official client in detached mode: what it finds, as one JSON object.

Arguments: the folder of its checkpoints, the name of the script, its last step, and how it ends.
"""

import json
import pathlib
import sys
import warnings

warnings.simplefilter("ignore")

from determined import core
from determined.experimental import core_v2

folder, name, last, how = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
searcher = {"name": "single", "metric": "accuracy", "smaller_is_better": False}
core_v2.init(
    config=core_v2.Config(
        name=f"detached {name}",
        hparams={"lr": 0.1},
        labels=["laptop"],
        checkpoint_storage=folder,
        searcher=searcher,
        external_experiment_id=f"official/{name}" if name else None,
        external_trial_id="fold 1" if name else None,
    ),
    tensorboard_mode=core.TensorboardMode.MANUAL,  # the other one needs torch
)
info = core_v2.info
begin, restored = info.trial._steps_completed, None
if info.latest_checkpoint:
    with core_v2.checkpoint.restore_path(info.latest_checkpoint) as path:
        restored = (pathlib.Path(path) / "weights").read_text()
found = {
    "trial": info.trial.trial_id,
    "experiment": info.trial.experiment_id,
    "run": info.trial._trial_run_id,
    "begin": begin,
    "restored": restored,
    "preempt": core_v2.preempt.should_preempt(),
    "page": core_v2.url_reverse_webui_exp_view(),
}
for step in range(begin + 1, last + 1):
    print(f"step {step} of run {info.trial._trial_run_id}")
    core_v2.train.report_training_metrics(steps_completed=step, metrics={"loss": 1 / step})
    core_v2.train.report_validation_metrics(steps_completed=step, metrics={"accuracy": step / 10})
    core_v2.train.report_progress(step / last)
    with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
        (path / "weights").write_text(f"of step {step}")
    found["saved"] = uuid
if how == "close":
    core_v2.close()
print(json.dumps(found), flush=True)
if how == "fail":
    raise ValueError("the data is bad")
