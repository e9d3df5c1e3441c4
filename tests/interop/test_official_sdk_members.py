"""Every member of the official Python SDK, against our master; and our own SDK has the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from determined import experimental
from determined.experimental import client
from interop.official import Official

# Those of sdk.md, section 5: "client" stands for the module's functions.
MEMBERS: Mapping[str, str] = {
    "client": "login create_experiment get_experiment list_experiments get_trial get_checkpoint create_user get_user_by_id"
    " get_user_by_name list_users whoami get_session_username logout get_workspace list_workspaces create_workspace"
    " delete_workspace create_model get_model get_model_by_id list_models get_models get_model_labels iter_trials_metrics"
    " stream_trials_metrics stream_trials_training_metrics stream_trials_validation_metrics list_oauth_clients"
    " add_oauth_client remove_oauth_client",
    "Experiment": "id config state archived name progress description notes labels project_id workspace_id reload set_name"
    " set_description set_notes add_label remove_label set_labels activate pause cancel kill archive unarchive delete"
    " download_code list_trials iter_trials await_first_trial move_to_project wait list_checkpoints"
    " delete_tensorboard_files get_pachyderm_config get_trials top_checkpoint top_n_checkpoints",
    "Trial": "id experiment_id hparams state summary_metrics reload iter_logs kill list_checkpoints iter_metrics"
    " get_experiment logs stream_metrics stream_training_metrics stream_validation_metrics top_checkpoint select_checkpoint"
    " get_checkpoints",
    "Checkpoint": "uuid task_id allocation_id report_time resources metadata state training download write_metadata_file"
    " add_metadata remove_metadata remove_files delete get_metrics reload get_pachyderm_commit",
    "Model": "model_id name description metadata creation_time last_updated_time labels username archived workspace_id"
    " get_version list_versions register_version add_metadata remove_metadata move_to_workspace set_labels set_description"
    " archive unarchive delete reload get_versions",
    "ModelVersion": "model_version checkpoint model_id model_name metadata name comment notes set_name set_notes iter_metrics"
    " delete reload get_metrics",
    "Project": "set_name set_description archive unarchive add_note remove_note list_experiments reload",
    "Workspace": "create_project delete_project get_project list_projects list_pools",
    "User": "rename activate deactivate change_display_name change_password link_with_agent reload user_id username"
    " display_name admin active remote agent_uid agent_gid agent_user agent_group",
    "ResourcePool": "add_bindings remove_bindings replace_bindings list_workspaces",
    "TrialMetrics": "trial_id trial_run_id steps_completed total_batches end_time metrics group batch_metrics",
}
# Not driven here, and why.
NOT_SERVED: Mapping[tuple[str, str], str] = {
    ("client", "list_oauth_clients"): "enterprise edition",
    ("client", "add_oauth_client"): "enterprise edition",
    ("client", "remove_oauth_client"): "enterprise edition",
    **{
        ("ResourcePool", name): "tier T2, with the pools' bindings"
        for name in MEMBERS["ResourcePool"].split()
    },
    ("Checkpoint", "get_pachyderm_commit"): "reads what a Pachyderm pipeline has written; we talk to none",
}
ALL = {(cls, name) for cls, names in MEMBERS.items() for name in names.split()}
CODE = """
import time
from determined import core, get_cluster_info

rate = get_cluster_info().trial.hparams["lr"]
with core.init() as context:
    for step in (1, 2):
        context.train.report_training_metrics(step, {"loss": rate / step}, batch_metrics=[{"loss": 1.0}])
        context.train.report_validation_metrics(step, {"loss": rate / step})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "weights").write_text("weights")
            (path / "optimizer").write_text("optimizer")
    while rate == 7 and not context.preempt.should_preempt():
        time.sleep(0.1)
"""
SEARCH = {
    "name": "search",
    "entrypoint": "python3 train.py",
    "hyperparameters": {"lr": {"type": "categorical", "vals": [2, 5]}},
    "searcher": {"name": "grid", "metric": "loss"},
    "checkpoint_storage": {"save_trial_best": 2, "save_trial_latest": 2},
    "max_restarts": 0,
    "integrations": {"pachyderm": {"dataset": {"repo": "lines"}}},
}
PAUSE = SEARCH | {"hyperparameters": {"lr": 7}, "searcher": {"name": "single", "metric": "loss"}}


@pytest.fixture(scope="module")
def said(official: Official, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    code = tmp_path_factory.mktemp("code")
    (code / "train.py").write_text(CODE)
    (code / "search.yaml").write_text(yaml.safe_dump(SEARCH))
    (code / "pause.yaml").write_text(yaml.safe_dump(PAUSE))
    script = Path(__file__).with_name("sdk_matrix_script.py")
    found: dict[str, Any] = official.python(script, code, tmp_path_factory.mktemp("got"), user="admin")
    return found


def test_each_member_is_driven_or_excepted_with_a_reason(said: dict[str, Any]) -> None:
    driven = {(cls, name) for cls, name in said["used"]}
    assert ALL - driven == NOT_SERVED.keys()
    assert all(NOT_SERVED.values())


def test_users(said: dict[str, Any]) -> None:
    assert said["user"] == ["augusta", "Augusta Ada", False, True, False, ["augusta"], True]
    *account, refused = said["agent"]
    assert account == [None] * 4 and "not linked with Unix accounts" in refused
    assert said["who"] == ["admin", "admin"]


def test_an_experiment_and_its_trials(said: dict[str, Any]) -> None:
    about = ["matrix", "described", "noted", ["b", "c"], True, 1.0, "grid", 1, 1]
    assert said["experiment"] == ["COMPLETED", "COMPLETED", *about]
    assert said["pachyderm"] == {"dataset": {"repo": "lines"}}
    listed, number = said["listed"]
    assert (listed, said["trials"], said["tops"]) == ([number], [True, 2], [True, True])
    each_trial = [[1.0, 2.5], [5.0, 2.0]]  # what the deprecated method gives: the best of each trial
    assert said["orders"] == [[1.0, 2.0, 2.5, 5.0], [5.0, 2.5, 2.0, 1.0], *each_trial]
    assert Path(said["code"]).stat().st_size > 0
    belongs, state, hparams, trial = said["trial"]
    assert (belongs, state, hparams) == (True, "COMPLETED", {"lr": 2})
    assert said["summary"] == ["avg_metrics", "validation_metrics"]
    everything, deprecated, last = said["log"]
    assert everything == deprecated and everything.endswith(last) and "exit code 0" in last != everything
    assert len(said["metrics"]) == 6
    assert all(found == [[1, 2.0, trial], [2, 1.0, trial]] for found in said["metrics"].values())
    assert said["report"] == [trial, 1, 1, 1, {"loss": 2}, "training", [{"loss": 1}], True]
    assert said["trainings"] == [2, 4]
    assert said["checkpoints"] == [True, True, 2, True, True]


def test_checkpoints_and_models(said: dict[str, Any]) -> None:
    files = ["metadata.json", "optimizer", "weights"]
    assert said["checkpoint"] == [True] * 4 + [files, 2, "COMPLETED", True, True, 1.0, [], True]
    assert said["partly"] == ["PARTIALLY_DELETED", ["metadata.json", "weights"]]
    name, description, metadata, labels, owner, *flags, version, counts, same, found = said["model"]
    assert (name, description, metadata, labels, owner) == (
        "line",
        "a straight line",
        {"more": 1},
        ["x"],
        "admin",
    )
    assert (flags, version, counts, same, found) == ([True] * 3, 1, [1, 1], True, [1, 1, ["x"]])
    assert said["version"] == [1, True, True, "line", {}, "first", "", "it fits", [[], []]]


def test_places(said: dict[str, Any]) -> None:
    assert said["project"] == ["aims", "what we want", ["two"], True]
    assert said["inside"] is True
    assert said["workspace"] == ["matrix", ["aims"], True, ["default"], True]


def test_how_experiments_end(said: dict[str, Any]) -> None:
    assert [said[end] for end in ("cancel", "kill", "kill of a trial")] == ["CANCELED"] * 3


def test_our_own_sdk_has_them_all() -> None:
    for cls, name in ALL - NOT_SERVED.keys():
        where: Any = client if cls == "client" else getattr(experimental, cls)
        assert hasattr(where, name) or name in _attributes(where), f"{cls}.{name}"


def _attributes(cls: type) -> set[str]:
    """Names that an object's code sets or declares."""
    functions = [value for value in vars(cls).values() if hasattr(value, "__code__")]
    return {name for one in functions for name in one.__code__.co_names} | set(
        getattr(cls, "__annotations__", ())
    )
