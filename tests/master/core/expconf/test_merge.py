"""The merge rules, each by its own example."""

from typing import Any

import pytest

from detlab_master.core.expconf.merge import merge
from detlab_master.core.expconf.shorthand import write_out


@pytest.mark.parametrize(
    ("high", "low", "merged"),
    [
        ({"name": "a"}, {"name": "b", "description": "c"}, {"name": "a", "description": "c"}),
        ({"name": None}, {"name": "b"}, {"name": "b"}),
        (
            {"resources": {"weight": 2}},
            {"resources": {"weight": 3, "priority": 4}},
            {"resources": {"weight": 2, "priority": 4}},
        ),
        ({"labels": ["a"]}, {"labels": ["b"]}, {"labels": ["a"]}),
        ({"data": {"a": {"x": 1}}}, {"data": {"a": {"y": 2}, "b": 3}}, {"data": {"a": {"x": 1}, "b": 3}}),
        (
            {"bind_mounts": [{"host_path": "/1", "container_path": "x"}]},
            {
                "bind_mounts": [
                    {"host_path": "/2", "container_path": "x"},
                    {"host_path": "/2", "container_path": "y"},
                ]
            },
            {
                "bind_mounts": [
                    {"host_path": "/1", "container_path": "x"},
                    {"host_path": "/2", "container_path": "y"},
                ]
            },
        ),
        (
            {"resources": {"devices": ["/a:/x"]}},
            {"resources": {"devices": ["/b:/x:r", "/b:/y:rw"]}},
            {
                "resources": {
                    "devices": [
                        {"host_path": "/a", "container_path": "/x"},
                        {"host_path": "/b", "container_path": "/y", "mode": "rw"},
                    ]
                }
            },
        ),
        (
            {"environment": {"environment_variables": {"gpu": ["A=1"]}}},
            {"environment": {"environment_variables": ["A=0"]}},
            {
                "environment": {
                    "environment_variables": {"cpu": ["A=0"], "cuda": ["A=0", "A=1"], "rocm": ["A=0"]}
                }
            },
        ),
        (
            {"environment": {"proxy_ports": [{"proxy_port": 1, "proxy_tcp": True}], "ports": {"a": 1}}},
            {
                "environment": {
                    "proxy_ports": [{"proxy_port": 1}, {"proxy_port": 2}],
                    "ports": {"a": 2, "b": 3},
                }
            },
            {
                "environment": {
                    "proxy_ports": [{"proxy_port": 1, "proxy_tcp": True}, {"proxy_port": 2}],
                    "ports": {"a": 1, "b": 3},
                }
            },
        ),
        (
            {"environment": {"image": {"cpu": "mine"}}},
            {"environment": {"image": "theirs"}},
            {"environment": {"image": {"cpu": "mine", "cuda": "theirs", "rocm": "theirs"}}},
        ),
        (
            {"log_policies": [{"name": "a", "pattern": "1"}, {"pattern": "p", "action": "exclude_node"}]},
            {
                "log_policies": [
                    {"name": "a", "pattern": "2"},
                    {"name": "b", "pattern": "3"},
                    {"pattern": "p", "action": {"type": "exclude_node"}},
                    {"pattern": "p", "action": "cancel_retries"},
                ]
            },
            {
                "log_policies": [
                    {"name": "b", "pattern": "3"},
                    {"pattern": "p", "action": "cancel_retries"},
                    {"name": "a", "pattern": "1"},
                    {"pattern": "p", "action": "exclude_node"},
                ]
            },
        ),
        (
            {"searcher": {"name": "random", "max_trials": 3}},
            {"searcher": {"name": "random", "max_trials": 5, "metric": "m", "max_concurrent_trials": 2}},
            {"searcher": {"name": "random", "max_trials": 3, "metric": "m", "max_concurrent_trials": 2}},
        ),
        (
            {"searcher": {"name": "single"}},
            {"searcher": {"name": "random", "max_trials": 5, "metric": "m", "smaller_is_better": False}},
            {"searcher": {"name": "single", "metric": "m", "smaller_is_better": False}},
        ),
        (
            {"checkpoint_storage": {"type": "s3", "bucket": "b"}},
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/x", "save_trial_best": 3}},
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 3}},
        ),
        (
            {"checkpoint_storage": {"save_trial_best": 2}},
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/x", "save_trial_best": 3}},
            {"checkpoint_storage": {"type": "shared_fs", "host_path": "/x", "save_trial_best": 2}},
        ),
        (
            {"hyperparameters": {"a": {"type": "int", "minval": 1, "maxval": 2}, "n": {"x": 1}, "c": 5}},
            {
                "hyperparameters": {
                    "a": {"type": "int", "minval": 0, "maxval": 9, "count": 3},
                    "n": {"y": 2},
                    "c": {"z": 1},
                }
            },
            {
                "hyperparameters": {
                    "a": {"type": "int", "minval": 1, "maxval": 2},
                    "n": {"x": 1, "y": 2},
                    "c": 5,
                }
            },
        ),
        (
            {"slurm": {"sbatch_args": ["-a"]}, "pbs": {"pbsbatch_args": ["-b"]}},
            {"slurm": {"sbatch_args": ["-0"]}, "pbs": {"pbsbatch_args": ["-1"]}},
            {"slurm": {"sbatch_args": ["-0", "-a"]}, "pbs": {"pbsbatch_args": ["-1", "-b"]}},
        ),
        (
            {"environment": {"pod_spec": {"spec": {"x": 1, "l": [1]}}}},
            {"environment": {"pod_spec": {"spec": {"y": None, "l": [2]}}}},
            {"environment": {"pod_spec": {"spec": {"x": 1, "y": None, "l": [1]}}}},
        ),
    ],
)
def test_rule(high: dict[str, Any], low: dict[str, Any], merged: dict[str, Any]) -> None:
    before = repr((high, low))
    assert merge(write_out(high), write_out(low)) == merged
    assert repr((high, low)) == before, "merging changed what it merged"


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (5, 5),
        ("10", 10),
        ("10b", 10),
        ("1k", 1024),
        ("1.5 GiB", 3 * 2**29),
        ("2GB", 2**31),
        ("3 m", 3 * 2**20),
        ("1 tib", 2**40),
        ("1P", 2**50),
        ("much", "much"),
        ("1 x", "1 x"),
        ("1  k", "1  k"),
    ],
)
def test_sizes(size: Any, expected: Any) -> None:
    assert write_out({"resources": {"shm_size": size}}) == {"resources": {"shm_size": expected}}


def test_null_is_not_set_except_where_anything_goes() -> None:
    config = {
        "name": None,
        "resources": {"weight": None},
        "data": {"a": None},
        "hyperparameters": {"h": None},
        "environment": {"pod_spec": {"a": None}, "image": None},
        "bind_mounts": [{"host_path": "/x", "propagation": None}],
    }
    assert write_out(config) == {
        "resources": {},
        "data": {"a": None},
        "hyperparameters": {"h": None},
        "environment": {"pod_spec": {"a": None}},
        "bind_mounts": [{"host_path": "/x"}],
    }
