"""Runs in the official client's environment: every member of its Python SDK that the master serves. Prints one JSON object.

Arguments: a folder with search.yaml, pause.yaml and their code; a folder to download to.
"used" is what this script has asked of the SDK's objects: [class, member], with "client" for the module's functions.
"""

import json
import sys
import warnings
from typing import Any

from determined.common.api import errors
from determined.experimental import client as module

warnings.simplefilter("ignore")  # half of the members below are deprecated
code, folder = sys.argv[1:]
used: set[tuple[str, str]] = set()


class Module:
    """The SDK's module."""

    def __getattr__(self, name: str) -> Any:
        used.add(("client", name))
        return getattr(module, name)


def watched(found: Any) -> Any:
    """The object, whose class notes from now on what this script asks of it."""
    cls = type(found)
    if "__watched__" not in vars(cls):
        plain: Any = cls.__getattribute__

        def ask(self: Any, name: str) -> Any:
            if sys._getframe(1).f_code.co_filename == __file__ and not name.startswith("_"):
                used.add((cls.__name__, name))
            return plain(self, name)

        type.__setattr__(cls, "__getattribute__", ask)
        type.__setattr__(cls, "__watched__", True)
    return found


client: Any = Module()
said: dict[str, Any] = {}
client.login()

# Users
user = watched(client.create_user("ada", admin=False, password="Lovelace1"))
user.rename("augusta")
user.change_display_name("Augusta Ada")
user.change_password("Lovelace2")
user.deactivate()
inactive = [one.username for one in client.list_users(active=False)]
user.activate()
user.reload()
try:
    user.link_with_agent(agent_uid=7, agent_user="ada", agent_gid=7, agent_group="ada")
    linked = ""
except errors.APIException as e:
    linked = str(e)
same = client.get_user_by_id(user.user_id).username == client.get_user_by_name("augusta").username
said["user"] = [user.username, user.display_name, user.admin, user.active, user.remote, inactive, same]
said["agent"] = [user.agent_uid, user.agent_gid, user.agent_user, user.agent_group, linked]
said["who"] = [client.whoami().username, client.get_session_username()]

# An experiment
with open(f"{folder}/more.txt", "w") as more:
    more.write("more")
created = watched(client.create_experiment(f"{code}/search.yaml", code, includes=[f"{folder}/more.txt"]))
first = watched(created.await_first_trial(interval=0.1))
state = created.wait(interval=0.2).name
experiment = client.get_experiment(created.id)
experiment.set_name("matrix")
experiment.set_description("described")
experiment.set_notes("noted")
experiment.set_labels({"a", "b"})
experiment.remove_label("a")
experiment.add_label("c")
experiment.archive()
experiment.reload()
archived = experiment.archived
experiment.unarchive()
said["experiment"] = [
    state,
    experiment.state.name,
    experiment.name,
    experiment.description,
    experiment.notes,
    sorted(experiment.labels),
    archived,
    experiment.progress,
    experiment.config["searcher"]["name"],
    experiment.project_id,
    experiment.workspace_id,
]
said["pachyderm"] = experiment.get_pachyderm_config()
said["listed"] = [[one.id for one in client.list_experiments(name="matrix", labels=["c"])], experiment.id]
trials = [one.id for one in experiment.list_trials()]
said["trials"] = [trials == [one.id for one in experiment.iter_trials(limit=9)], len(experiment.get_trials())]
best = watched(experiment.list_checkpoints(max_results=1)[0])
by_loss = experiment.list_checkpoints(sort_by="loss", order_by=client.OrderBy.DESC)
by_state = experiment.list_checkpoints(sort_by=client.CheckpointSortBy.UUID, order_by=client.OrderBy.ASC)


def losses(found: Any) -> list[float]:
    return [one.training.validation_metrics["avgMetrics"]["loss"] for one in found]


said["orders"] = [losses(experiment.list_checkpoints()), losses(by_loss)]
said["orders"] += [
    losses(experiment.top_n_checkpoints(9)),
    losses(experiment.top_n_checkpoints(9, sort_by="loss", smaller_is_better=False)),
]
said["tops"] = [
    best.uuid == experiment.top_checkpoint().uuid,
    sorted(one.uuid for one in by_loss) == [one.uuid for one in by_state],
]
said["code"] = experiment.download_code(folder)
experiment.delete_tensorboard_files()

# Its trials
trial = client.get_trial(best.training.trial_id)
trial.reload()
said["trial"] = [trial.experiment_id == trial.get_experiment().id, trial.state.name, trial.hparams, trial.id]
said["summary"] = sorted(trial.summary_metrics)
said["log"] = ["".join(trial.iter_logs()), "".join(trial.logs()), "".join(trial.iter_logs(tail=1))]
kinds = {
    "of a trial": trial.iter_metrics("validation"),
    "streamed": trial.stream_metrics("validation"),
    "of its own": trial.stream_validation_metrics(),
    "of trials": client.iter_trials_metrics([trial.id], "validation"),
    "streams": client.stream_trials_metrics([trial.id], "validation"),
    "streams of its own": client.stream_trials_validation_metrics([trial.id]),
}
said["metrics"] = {
    kind: [[one.steps_completed, one.metrics["loss"], one.trial_id] for one in found]
    for kind, found in kinds.items()
}
report = watched(next(iter(trial.iter_metrics("training"))))
said["report"] = [report.trial_id, report.trial_run_id, report.steps_completed, report.total_batches]
said["report"] += [report.metrics, report.group, report.batch_metrics, bool(report.end_time)]
said["trainings"] = [
    len(list(found))
    for found in (trial.stream_training_metrics(), client.stream_trials_training_metrics(trials))
]
listed = trial.list_checkpoints()
said["checkpoints"] = [
    [one.uuid for one in listed] == [one.uuid for one in trial.get_checkpoints()],
    trial.top_checkpoint().uuid == listed[0].uuid == best.uuid,
    trial.select_checkpoint(latest=True).metadata["steps_completed"],
    trial.select_checkpoint(best=True).uuid == best.uuid,
    trial.select_checkpoint(uuid=best.uuid).uuid == best.uuid,
]

# Checkpoints
checkpoint = client.get_checkpoint(best.uuid)
checkpoint.add_metadata({"one": 1, "two": 2})
checkpoint.remove_metadata(["one"])
checkpoint.reload()
checkpoint.write_metadata_file(f"{folder}/written.json")
path = checkpoint.download(f"{folder}/checkpoint", mode=client.DownloadMode.AUTO)
said["checkpoint"] = [
    checkpoint.uuid == best.uuid,
    checkpoint.task_id.partition(".")[0] == str(experiment.id),
    checkpoint.allocation_id.startswith(checkpoint.task_id),
    bool(checkpoint.report_time),
    sorted(checkpoint.resources),
    checkpoint.metadata["two"],
    checkpoint.state.name,
    checkpoint.training.experiment_id == experiment.id,
    checkpoint.training.hparams == trial.hparams,
    checkpoint.training.validation_metrics["avgMetrics"]["loss"],
    list(checkpoint.get_metrics("inference")),
    path == f"{folder}/checkpoint",
]

# The registry
workspace = watched(client.create_workspace("matrix"))
model = watched(client.create_model("line", "a line", {"kind": "linear"}))
version = watched(model.register_version(best.uuid))
version.set_name("first")
version.set_notes("it fits")
version.reload()
model.set_description("a straight line")
model.set_labels(["x"])
model.add_metadata({"more": 1})
model.remove_metadata(["kind"])
model.archive()
model.reload()
archived = model.archived
model.unarchive()
model.move_to_workspace("matrix")
model.reload()
said["model"] = [
    model.name,
    model.description,
    model.metadata,
    model.labels,
    model.username,
    archived,
    model.workspace_id == workspace.id,
    bool(model.creation_time and model.last_updated_time),
    model.get_version().model_version,
    [len(model.list_versions()), len(model.get_versions())],
    client.get_model("line").model_id == model.model_id == client.get_model_by_id(model.model_id).model_id,
    [len(list(client.list_models())), len(client.get_models()), client.get_model_labels()],
]
said["version"] = [
    version.model_version,
    version.checkpoint.uuid == best.uuid,
    version.model_id == model.model_id,
    version.model_name,
    version.metadata,
    version.name,
    version.comment,
    version.notes,
    [list(version.iter_metrics("inference")), list(version.get_metrics("inference"))],
]
version.delete()
model.delete()

# Workspaces and projects
project = watched(workspace.create_project("plans", description="what to do"))
project.set_name("aims")
project.set_description("what we want")
project.add_note("one", "first")
project.add_note("two", "second")
project.remove_note("one")
project.archive()
project.reload()
archived = project.archived
project.unarchive()
experiment.move_to_project("matrix", "aims")
said["project"] = [project.name, project.description, [note["name"] for note in project.notes], archived]
said["inside"] = [one.id for one in project.list_experiments()] == [experiment.id]
said["workspace"] = [
    workspace.name,
    [one.name for one in workspace.list_projects()],
    workspace.get_project("aims").id == project.id,
    [one.name for one in workspace.list_pools()],
    client.get_workspace("matrix").id in [one.id for one in client.list_workspaces()],
]
experiment.move_to_project("Uncategorized", "Uncategorized")
workspace.delete_project("aims")
client.delete_workspace("matrix")

# How it ends
checkpoint.remove_files(["opt*"])
checkpoint.reload()
said["partly"] = [checkpoint.state.name, sorted(checkpoint.resources)]
checkpoint.delete()
for end in ("cancel", "kill"):
    running = client.create_experiment(f"{code}/pause.yaml", code)
    running.await_first_trial()
    running.pause()
    running.activate()
    getattr(running, end)()
    said[end] = running.wait(interval=0.2).name
killed = client.create_experiment(f"{code}/pause.yaml", code)
killed.await_first_trial().kill()
said["kill of a trial"] = killed.wait(interval=0.2).name
killed.delete()
client.logout()
print(json.dumps({**said, "used": sorted(used)}))
