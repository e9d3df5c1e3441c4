"""A person's script in detached mode: it notes what it finds and does in a folder, and waits there to be let on."""

import json
import os
import pathlib
import sys
import time

from determined.experimental import core_v2
from determined.experimental.core_v2 import _registration

_registration.HEARTBEAT_SECONDS = 0.2
side, name, last = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
how = sys.argv[4] if len(sys.argv) > 4 else "end"
core_v2.init(
    config=core_v2.Config(
        name=f"detached {name}",
        hparams={"lr": 0.1},
        labels=["laptop"],
        data={"source": "disk"},
        searcher={"name": "single", "metric": "accuracy", "smaller_is_better": False},
        external_experiment_id=f"e2e/{name}",
        external_trial_id="fold 1",
    ),
    checkpoint_storage=str(side / f"checkpoints-{name}"),
)
info = core_v2.info
begin = info.trial._steps_completed
restored = None
if info.latest_checkpoint is not None:
    with core_v2.checkpoint.restore_path(info.latest_checkpoint) as path:
        restored = (path / "weights").read_text()
found = {
    "pid": os.getpid(),
    "trial": info.trial.trial_id,
    "experiment": info.trial.experiment_id,
    "run": info.trial._trial_run_id,
    "begin": begin,
    "latest": info.latest_checkpoint,
    "restored": restored,
    "data": info.user_data,
    "page": core_v2.url_reverse_webui_exp_view(),
    "preempt": core_v2.preempt.should_preempt(),
}
for step in range(begin + 1, last + 1):
    print(f"step {step} of run {info.trial._trial_run_id}")
    core_v2.train.report_training_metrics(steps_completed=step, metrics={"loss": 1 / step})
    core_v2.train.report_validation_metrics(steps_completed=step, metrics={"accuracy": step / 10})
    core_v2.train.report_progress(step / last)
    if step % 2 == 0:
        with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "weights").write_text(f"of step {step}")
        found["saved"] = uuid
print("WARNING: trained", file=sys.stderr)
(side / f"{name}.new").write_text(json.dumps(found))
(side / f"{name}.new").rename(side / f"{name}.json")
while how.startswith("wait") and not (side / f"{name}.go").exists():
    time.sleep(0.02)
match how:
    case "wait-and-fail" | "fail":
        raise ValueError("the data is bad")
    case "finally":
        try:
            raise ValueError("the data is bad")
        finally:
            core_v2.close()
    case "exit":
        sys.exit(3)
    case "interrupt":
        raise KeyboardInterrupt
    case "close":
        core_v2.close()
