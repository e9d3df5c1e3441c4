"""From a submitted configuration to the one that runs."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detlab_master.core.expconf import ConfigErrors, Resolved, parse_experiment_config, resolve, restore

STORAGE = {"type": "shared_fs", "host_path": "/data/checkpoints"}
SMALL: dict[str, Any] = {"entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "loss"}}


def run(
    config: dict[str, Any] | str,
    *,
    template: dict[str, Any] | None = None,
    unmanaged: bool = False,
    **defaults: Any,
) -> Resolved:
    submitted = parse_experiment_config(config) if isinstance(config, str) else config
    return resolve(
        submitted,
        template=template,
        defaults={"checkpoint_storage": STORAGE, **defaults},
        experiment_seed=77,
        default_name="brave-blue-whale",
        unmanaged=unmanaged,
    )


def problems(config: dict[str, Any] | str, **options: Any) -> dict[str, str]:
    with pytest.raises(ConfigErrors) as caught:
        run(config, **options)
    return {error.path: error.message for error in caught.value.errors}


def with_searcher(**searcher: Any) -> dict[str, Any]:
    return {**SMALL, "searcher": {"metric": "loss", **searcher}}


def test_defaults_fill_every_key() -> None:
    resolved = run(SMALL)
    assert resolved.warnings == []
    config = resolved.as_dict
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    assert set(config) == {
        "name",
        "description",
        "labels",
        "data",
        "workspace",
        "project",
        "entrypoint",
        "hyperparameters",
        "searcher",
        "resources",
        "environment",
        "checkpoint_storage",
        "checkpoint_policy",
        "bind_mounts",
        "max_restarts",
        "log_policies",
        "retention_policy",
        "reproducibility",
        "profiling",
        "preemption_timeout",
        "perform_initial_validation",
        "debug",
        "integrations",
        "slurm",
        "pbs",
        "scheduling_unit",
        "min_validation_period",
        "min_checkpoint_period",
        "records_per_epoch",
        "optimizations",
        "data_layer",
        "tensorboard_storage",
        "security",
        "internal",
    }
    assert config["name"] == "brave-blue-whale"
    assert config["reproducibility"] == {"experiment_seed": 77}
    assert config["max_restarts"] == 5
    assert config["preemption_timeout"] == 3600
    assert config["scheduling_unit"] == 100
    assert config["checkpoint_policy"] == "best"
    assert config["min_validation_period"] == config["min_checkpoint_period"] == {"batches": 0}
    assert config["profiling"] == {
        "enabled": False,
        "begin_on_batch": 0,
        "end_after_batch": None,
        "sync_timings": True,
    }
    assert config["optimizations"] == {
        "aggregation_frequency": 1,
        "average_aggregated_gradients": True,
        "average_training_metrics": True,
        "gradient_compression": False,
        "mixed_precision": "O0",
        "tensor_fusion_threshold": 64,
        "tensor_fusion_cycle_time": 1,
        "auto_tune_tensor_fusion": False,
        "grad_updates_size_file": None,
    }
    assert config["searcher"] == {
        "name": "single",
        "metric": "loss",
        "smaller_is_better": True,
        "source_trial_id": None,
        "source_checkpoint_uuid": None,
        "max_length": None,
        "unit": None,
        "time_metric": None,
        "max_time": None,
    }
    assert config["checkpoint_storage"] == {
        **STORAGE,
        "storage_path": None,
        "propagation": "rprivate",
        "save_experiment_best": 0,
        "save_trial_best": 1,
        "save_trial_latest": 1,
    }
    assert config["resources"]["slots_per_trial"] == 1
    assert [policy["name"] for policy in config["log_policies"]] == ["CUDA OOM", "ECC Error"]


def test_a_resolved_configuration_resolves_to_itself_and_is_restored() -> None:
    resolved = run(
        """
name: everything
description: d
labels: [a, b]
data: {x: null}
workspace: w
project: p
entrypoint: [python3, train.py]
hyperparameters: {global_batch_size: 32, lr: {type: log, minval: -4, maxval: 0, base: 10}, n: {m: [1, null]}}
searcher: {name: asha, metric: acc, smaller_is_better: false, max_trials: 4, num_rungs: 2, max_length: {records: 100}}
resources: {slots_per_trial: 2, max_slots: 4, priority: 3, shm_size: 1 GiB, devices: ["/dev/a:/dev/b"]}
environment: {image: python, environment_variables: [A=1, B], proxy_ports: [{proxy_port: 8000}], ports: {a: 1}}
bind_mounts: [{host_path: /a, container_path: b}]
log_policies: [{name: CUDA OOM}, {pattern: x, action: {type: cancel_retries}}]
retention_policy: {log_retention_days: -1}
profiling: {enabled: true, begin_on_batch: 1, end_after_batch: 1}
min_validation_period: {epochs: 1}
integrations: {webhooks: {webhook_name: [x]}}
"""
    )
    again = run(resolved.as_dict)
    assert again.as_dict == resolved.as_dict
    assert again.config == resolved.config == restore(json.loads(json.dumps(resolved.as_dict)))
    assert resolved.as_dict["searcher"]["name"] == "async_halving"
    assert resolved.as_dict["searcher"]["max_length"] == {"records": 100}
    assert resolved.as_dict["resources"]["shm_size"] == 2**30
    assert resolved.as_dict["log_policies"][1] == {"name": "CUDA OOM", "pattern": None, "action": None}


def test_submitted_goes_before_template_before_pool_before_cluster() -> None:
    resolved = run(
        {
            "entrypoint": "x",
            "searcher": {"metric": "m"},
            "bind_mounts": [{"host_path": "/u", "container_path": "u"}],
        },
        template={
            "description": "from template",
            "entrypoint": "y",
            "searcher": {"name": "random", "metric": "t", "max_trials": 3},
            "checkpoint_storage": {"save_trial_best": 9},
        },
        pools={
            "": {
                "task_container_defaults": {"environment_variables": ["A=pool"], "preemption_timeout": 5},
                "default_priority": 41,
            }
        },
        task_container_defaults={
            "environment_variables": ["A=cluster"],
            "preemption_timeout": 6,
            "bind_mounts": [{"host_path": "/c", "container_path": "c"}],
            "image": "img",
            "shm_size_bytes": 1,
            "cpu_pod_spec": {"metadata": {"labels": {"a": "b"}}},
        },
        workspace_checkpoint_storage={"type": "directory", "container_path": "/ckpt"},
        default_priority=42,
    )
    config = resolved.as_dict
    assert config["entrypoint"] == "x"
    assert config["description"] == "from template"
    assert (config["searcher"]["name"], config["searcher"]["metric"], config["searcher"]["max_trials"]) == (
        "random",
        "m",
        3,
    )
    assert config["checkpoint_storage"]["type"] == "directory"
    assert config["checkpoint_storage"]["save_trial_best"] == 9
    assert config["environment"]["environment_variables"]["cpu"] == ["A=cluster", "A=pool"]
    assert config["environment"]["image"]["cuda"] == "img"
    assert config["environment"]["pod_spec"] is None
    assert config["preemption_timeout"] == 5
    assert [mount["container_path"] for mount in config["bind_mounts"]] == ["u", "c"]
    assert config["resources"]["priority"] == 41
    assert config["resources"]["shm_size"] == 1


def test_the_pool_is_the_clusters_default_and_must_exist() -> None:
    pools: Any = {
        "default_compute_resource_pool": "gpu",
        "default_aux_resource_pool": "cpu",
        "pools": {"gpu": {}, "cpu": {}},
        "task_container_defaults": {"cpu_pod_spec": {"kind": "Pod"}},
    }
    assert run(SMALL, **pools).config.resources.resource_pool == "gpu"
    aux = run({**SMALL, "resources": {"slots_per_trial": 0}}, **pools).config
    assert aux.resources.resource_pool == "cpu"
    assert aux.environment.pod_spec == {"kind": "Pod"}
    assert problems({**SMALL, "resources": {"resource_pool": "gpus"}}, **pools) == {
        "<config>.resources.resource_pool": "there is no resource pool \"gpus\"; there are gpu, cpu. Did you mean 'gpu'?"
    }
    with pytest.raises(ValueError, match="unknown defaults"):
        run(SMALL, checkpoints={})


def test_unmanaged_experiments_need_no_entrypoint() -> None:
    config = {"searcher": SMALL["searcher"]}
    assert run(config, unmanaged=True).config.entrypoint is None
    assert problems(config) == {
        "<config>.entrypoint": "is required: the command that a trial runs, or module:TrialClass."
    }


# What is refused (each rule has its rows in test_config_table)


def test_problems_are_collected_and_secrets_are_not_shown() -> None:
    found = problems(
        """
        resources: {slots: 1, priority: 0}
        checkpoint_storage: {type: azure, container: c, connection_string: hunter2, account_url: u}
        environmnt: {}
        """
    )
    assert list(found) == [
        "<config>.resources.priority",
        "<config>.resources.slots",
        "<config>.checkpoint_storage",
        "<config>.environmnt",
    ]
    assert "hunter2" not in str(found)


def test_a_template_is_checked_under_its_own_name() -> None:
    found = problems(SMALL, template={"resources": {"slotss": 1}})
    assert "slots_per_trial" in found["<template>.resources.slotss"]


def test_without_storage_anywhere_the_submission_says_so() -> None:
    assert "where checkpoints go" in problems(SMALL, checkpoint_storage=None)["<config>.checkpoint_storage"]


# Searchers


def test_grid_needs_counts() -> None:
    space = {"hyperparameters": {"a": {"b": {"type": "int", "minval": 1, "maxval": 2}}}}
    assert list(problems({**with_searcher(name="grid"), **space})) == ["<config>.hyperparameters.a.b.count"]
    assert run({**SMALL, **space}).space.members


@pytest.mark.parametrize(
    "searcher",
    [
        {"name": "random", "max_trials": 10_001, "max_concurrent_trials": 0},
        {"name": "grid", "max_concurrent_trials": 0},
        {"name": "async_halving", "max_trials": 10**6, "num_rungs": 12, "max_concurrent_trials": 0, "max_length": {"batches": 3}},
        {"name": "adaptive_asha", "max_trials": 10**6, "max_concurrent_trials": 20_000, "max_length": {"batches": 3}},
    ],
)  # fmt: skip
def test_a_search_may_not_start_any_number_of_trials_at_once(searcher: dict[str, Any]) -> None:
    wide = {f"x{i}": {"type": "int", "minval": 0, "maxval": 99, "count": 100} for i in range(3)}
    found = problems({**with_searcher(**searcher), "hyperparameters": wide})
    assert "at most 10000 may" in found["<config>.searcher.max_concurrent_trials"]


def test_rungs_that_no_number_can_count_are_refused() -> None:
    config = with_searcher(
        name="async_halving", max_trials=5, num_rungs=1000, divisor=10, time_metric="batches", max_time=5
    )
    assert "is too large" in problems(config)["<config>.searcher"]


@pytest.mark.parametrize(
    ("given_keys", "time_metric", "max_time"),
    [
        ({"max_length": {"batches": 500}}, "batches", 500),
        ({"max_length": {"epochs": 5}}, "epochs", 5),
        ({"max_length": {"records": 100}}, "batches", 4),
        ({"max_length": 7, "time_metric": "epochs"}, "epochs", 7),
        ({"max_length": 7, "unit": "epochs"}, "epochs", 7),
        ({"max_length": {"epochs": 5}, "time_metric": "epochs"}, "epochs", 5),
        ({"max_length": {"epochs": 5}, "max_time": 9}, "epochs", 9),
        ({"max_steps": 3}, "batches", 300),
        ({"max_length": {"epochs": 5}, "time_metric": "batches", "max_time": 9}, "batches", 9),
    ],
)
def test_halving_times_are_derived_from_a_max_length(
    given_keys: dict[str, Any], time_metric: str, max_time: int
) -> None:
    config = with_searcher(name="adaptive_asha", max_trials=4, **given_keys)
    resolved = run({**config, "hyperparameters": {"global_batch_size": 32}})
    assert (resolved.config.searcher.time_metric, resolved.config.searcher.max_time) == (
        time_metric,
        max_time,
    )
    assert resolved.warnings
    assert resolved.as_dict["searcher"]["max_length"] == given_keys.get("max_length", {"batches": 300})


@pytest.mark.parametrize(
    ("given_keys", "path", "message"),
    [
        ({}, "time_metric", "is required for adaptive_asha"),
        ({"time_metric": "epochs"}, "max_time", "is required for adaptive_asha"),
        ({"max_length": 7}, "time_metric", "has no unit to tell it from"),
        (
            {"max_length": {"epochs": 5}, "time_metric": "steps"},
            "max_time",
            'in epochs, but time_metric is "steps"',
        ),
        ({"max_length": {"records": 5}}, "max_length", "global_batch_size"),
    ],
)
def test_halving_without_times_is_refused(given_keys: dict[str, Any], path: str, message: str) -> None:
    found = problems(with_searcher(name="adaptive_asha", max_trials=4, **given_keys))
    assert message in found[f"<config>.searcher.{path}"]


# Anything at all

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 200)
    | st.floats(-9, 9)
    | st.sampled_from(["", "x", "single", "epochs"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "metric", "type", "val", "vals", "batches", "image", "cpu", "devices", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "name",
                "labels",
                "data",
                "entrypoint",
                "hyperparameters",
                "searcher",
                "resources",
                "environment",
                "checkpoint_storage",
                "bind_mounts",
                "log_policies",
                "profiling",
                "min_validation_period",
                "slurm",
                "integrations",
                "internal",
                "security",
                "x",
            ]
        ),
        _JSON,
        max_size=4,
    )
)
def test_whatever_is_submitted_resolves_or_is_refused_in_words(config: dict[str, Any]) -> None:
    try:
        resolved = run({**SMALL, **config})
    except ConfigErrors as errors:
        assert errors.errors
        assert all(error.path.startswith("<config>") and error.message for error in errors.errors)
    else:
        assert run(resolved.as_dict).as_dict == resolved.as_dict
