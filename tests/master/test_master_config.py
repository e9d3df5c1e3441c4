"""master.yaml: what it means, and what is said of what it cannot mean."""

from pathlib import Path

import pytest

from detlab_master.config import MasterConfig, MasterConfigError, load


def read(folder: Path, text: str) -> tuple[MasterConfig, list[str]]:
    file = folder / "master.yaml"
    file.write_text(text)
    return load(file, environment={})


def test_task_container_defaults_of_cluster_and_pools(tmp_path: Path) -> None:
    config, warnings = read(
        tmp_path,
        """
task_container_defaults:
  image: {cpu: a, gpu: b}
  environment_variables: [A=1]
  devices: ["/dev/a:/dev/b"]
  log_policies: [{pattern: x, action: {type: exclude_node}}]
  startup_hook: echo hello
resource_pools:
  - pool_name: default
    task_container_defaults: {shm_size_bytes: 5, work_dir: /w}
""",
    )
    assert config.task_container_defaults.shm_size_bytes == 4 << 30
    assert config.task_container_defaults.preemption_timeout == 3600
    container = config.resource_pools[0].task_container_defaults
    assert container is not None and container.given == {"shm_size_bytes": 5}
    assert warnings == [
        (
            "task_container_defaults.startup_hook: has no effect: "
            "a folder of training code may have a startup-hook.sh"
        ),
        (
            "resource_pools[0].task_container_defaults.work_dir: has no effect: tasks run as processes of the "
            "agent, in a folder of their own"
        ),
    ]


def test_where_checkpoints_go(tmp_path: Path) -> None:
    config, _ = read(tmp_path, "checkpoint_storage: {type: s3, bucket: b, save_trial_best: 2}")
    assert config.checkpoint_storage == {"type": "s3", "bucket": "b", "save_trial_best": 2}
    for text, said in (
        ("{type: s3}", "<master.yaml>.checkpoint_storage.bucket: is required"),
        ("{type: s3, buckt: b}", "buckt: unknown key"),
        ("{type: shared_fs, host_path: x}", "<master.yaml>.checkpoint_storage.host_path"),
    ):
        with pytest.raises(MasterConfigError, match=said):
            read(tmp_path, f"checkpoint_storage: {text}")


def test_how_long_logs_are_kept(tmp_path: Path) -> None:
    default, _ = read(tmp_path, "")
    assert default.retention_policy.log_retention_days is None
    assert default.retention_policy.times(7201.0) == 10800.0  # every hour
    config, _ = read(tmp_path, "retention_policy: {log_retention_days: 90, schedule: 24h}")
    assert config.retention_policy.log_retention_days == 90
    assert config.retention_policy.times(1.0) == 86400.0
    at_three, _ = read(tmp_path, "retention_policy: {schedule: '0 3 * * *'}")
    assert at_three.retention_policy.times(0.0) > 0.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retention_policy: {log_retention_days: -2}", "log_retention_days"),
        ("retention_policy: {schedule: soon}", "neither a duration such as '24h' nor a cron expression"),
        ("retention_policy: {schedule: '0 25 * * *'}", "is no cron expression"),
        ("retention_policy: {schedule: 0}", "every 1 seconds at most"),
        ("retention_policy: {days: 3}", "days"),
    ],
)
def test_a_wrong_retention_policy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(MasterConfigError, match="retention_policy") as refused:
        read(tmp_path, text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "task_container_defaults: {bind_mounts: [{host_path: a, container_path: b}]}",
            'task_container_defaults.bind_mounts[0].host_path: is "a": must be an absolute path.',
        ),
        (
            "task_container_defaults: {log_policies: [{name: x, pattern: '['}]}",
            (
                'task_container_defaults.log_policies[0].pattern: is "[": '
                "must be a regular expression (RE2): missing ]: [."
            ),
        ),
        (
            "task_container_defaults: {devices: [nowhere]}",
            (
                'task_container_defaults.devices[0]: is "nowhere", but must be host_path:container_path or '
                "host_path:container_path:mode, or an object."
            ),
        ),
        (
            "resource_pools: [{pool_name: default, task_container_defaults: {environment_variables: [=x]}}]",
            (
                "resource_pools[default].task_container_defaults.environment_variables[0]: "
                'is "=x": must be NAME=VALUE, or NAME for the agent\'s own value.'
            ),
        ),
        ("task_container_defaults: {imgae: x}", "task_container_defaults.imgae: no such key; did you mean"),
    ],
)
def test_what_would_spoil_every_submission_stops_the_master(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(MasterConfigError) as caught:
        read(tmp_path, text)
    lines = [text.strip() for text in str(caught.value).splitlines()[1:]]
    assert len(lines) == 1
    assert lines[0].startswith(line)
