"""Fits a line on this machine, and reports to the master as an experiment. Ended and started again, it goes on.

Type ``det user login`` first, then ``python examples/detached.py``.
"""

import json
import random

from determined.experimental import core_v2

STEPS = 200
core_v2.init(
    config=core_v2.Config(
        name="a line on my laptop",
        hparams={"learning_rate": 0.1},
        searcher={"name": "single", "metric": "loss", "smaller_is_better": True},
        external_experiment_id="line",  # names of your own choice: by them the script is found again
        external_trial_id="first try",
    )
)
slope, intercept = 0.0, 0.0
if core_v2.info.latest_checkpoint is not None:
    with core_v2.checkpoint.restore_path(core_v2.info.latest_checkpoint) as path:
        slope, intercept = json.loads((path / "line.json").read_text())

rate = core_v2.info.trial.hparams["learning_rate"]
for step in range(core_v2.info.trial._steps_completed + 1, STEPS + 1):
    x = random.uniform(-1, 1)
    error = slope * x + intercept - (3 * x + 1)
    slope, intercept = slope - rate * error * x, intercept - rate * error
    if step % 50 == 0:
        loss = (slope - 3) ** 2 + (intercept - 1) ** 2
        print(f"step {step}: y = {slope:.2f} x + {intercept:.2f}")
        core_v2.train.report_validation_metrics(steps_completed=step, metrics={"loss": loss})
        core_v2.train.report_progress(step / STEPS)
        with core_v2.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "line.json").write_text(json.dumps([slope, intercept]))
core_v2.close()
