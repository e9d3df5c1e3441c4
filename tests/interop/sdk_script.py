"""Runs in the official client's environment: what a notebook does with the Python SDK. Prints one JSON object.

Arguments: the configuration, the model's folder, a folder to download to.
"""

import json
import sys
import warnings

from determined.experimental import client

config, model, folder = sys.argv[1:]
client.login()
experiment = client.create_experiment(config, model)
trial = experiment.await_first_trial()
state = experiment.wait(interval=0.2)
metrics = {
    group: [[m.steps_completed, m.metrics] for m in trial.iter_metrics(group)]
    for group in ("training", "validation")
}
across = [m.steps_completed for m in client.iter_trials_metrics([trial.id], "validation")]
best = experiment.list_checkpoints(max_results=1)[0]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    top = experiment.top_checkpoint()
downloads = {
    mode.name: best.download(f"{folder}/{mode.name}", mode=mode)
    for mode in (client.DownloadMode.DIRECT, client.DownloadMode.MASTER)
}
best.add_metadata({"chosen": True})
experiment.set_name("from the SDK")
experiment.set_description("a description")
experiment.set_notes("some notes")
experiment.add_label("first")
experiment.add_label("second one")
experiment.remove_label("first")
experiment.archive()
experiment.reload()
edited = [
    experiment.name,
    experiment.description,
    experiment.notes,
    sorted(experiment.labels or ()),
    experiment.archived,
]
experiment.unarchive()
experiment.download_code(folder)
trial.reload()
log = list(trial.iter_logs())
best.reload()
kept_metadata = dict(best.metadata)
best.remove_files(["code/**"])
best.reload()
partly = [best.state.name, sorted(best.resources or {})]
best.delete()
print(
    json.dumps(
        {
            "user": client.whoami().username,
            "users": [user.username for user in client.list_users()],
            "experiment": experiment.id,
            "found": [found.id for found in client.list_experiments()],
            "trial": trial.id,
            "state": state.name,
            "trial_state": trial.state.name,
            "hparams": trial.hparams,
            "summary": sorted(trial.summary_metrics or {}),
            "metrics": metrics,
            "across": across,
            "best": best.uuid,
            "best_validation": best.training.validation_metrics["avgMetrics"],
            "top": top.uuid,
            "by_uuid": client.get_checkpoint(best.uuid).uuid,
            "of_trial": len(trial.list_checkpoints()),
            "metadata": kept_metadata,
            "downloads": downloads,
            "partly": partly,
            "edited": edited,
            "log": log,
        }
    )
)
