"""Log policies with effect: on a real cluster, a line that a trial prints decides where and whether it runs again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from e2e.conftest import Place, running_place
from e2e.trials import script_config
from support.cluster import wait_for

FAILS = """
import sys
print("uncorrectable trouble: code 7", flush=True)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_place(slots=1, reconnect_wait=8.0) as started:
        yield started


def ended(place: Place, action: str | None, **changes: Any) -> tuple[dict[str, Any], str]:
    """The trial of an experiment whose code fails with a line that a policy knows, after its end, and its log."""
    policy = {"name": "trouble", "pattern": r"^uncorrectable trouble: code \d+$", "action": action}
    config = script_config(place.side, **{"log_policies": [policy], "max_restarts": 2, **changes})
    experiment_id = place.cluster.create(config, {"train.py": FAILS})
    assert place.cluster.wait_for_end(experiment_id) == "ERROR"
    (trial,) = place.cluster.trials(experiment_id)
    return trial, place.cluster.logs(trial["id"])


def agents_of(log: str) -> list[str]:
    return [line.split("Scheduled on ")[1].split()[0] for line in log.splitlines() if "Scheduled on" in line]


def test_cancel_retries_ends_the_trial_at_its_first_failure(place: Place) -> None:
    trial, log = ended(place, "cancel_retries")
    assert (trial["state"], trial["restarts"], trial["logPolicyMatched"]) == ("STATE_ERROR", 0, "trouble")
    assert agents_of(log) == ["agent-1"]
    assert "Log policy 'trouble' matched" in log and "it is not tried again" in log


def test_a_label_alone_changes_nothing_of_the_retries(place: Place) -> None:
    trial, log = ended(place, None, max_restarts=1)
    assert (trial["restarts"], trial["logPolicyMatched"]) == (1, "trouble")
    assert agents_of(log) == ["agent-1"] * 2
    assert log.count("Log policy 'trouble' matched") == 1


def test_a_policy_without_a_pattern_switches_the_inherited_one_off(place: Place) -> None:
    config = script_config(place.side, log_policies=[{"name": "CUDA OOM"}])
    program = 'print("CUDA out of memory"); print("uncorrectable ECC error encountered")'
    experiment_id = place.cluster.create(config, {"train.py": program})
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"
    (trial,) = place.cluster.trials(experiment_id)
    assert trial["logPolicyMatched"] == "ECC Error"
    assert "CUDA OOM" not in place.cluster.logs(trial["id"])


def test_exclude_node_without_another_agent_ends_the_trial_with_the_reason(place: Place) -> None:
    trial, log = ended(place, "exclude_node")
    assert trial["state"] == "STATE_ERROR"
    assert agents_of(log) == ["agent-1"]
    assert "this trial will not run on agent agent-1 again" in log
    last = log.splitlines()[-1]
    assert "log policies exclude agent-1, and no other agent of pool 'default' could run it" in last, log


def test_exclude_node_moves_the_trial_to_another_agent_also_past_a_restart_of_the_master(
    place: Place,
) -> None:
    place.cluster.add_agent("agent-2", slots=1)
    blocker = place.cluster.create(
        script_config(place.side, resources={"slots_per_trial": 1}),
        {"train.py": "import time; time.sleep(600)"},
    )
    blocker_trial = wait_for(lambda: place.cluster.trials(blocker), "it has a trial")[0]["id"]
    wait_for(lambda: agents_of(place.cluster.logs(blocker_trial)), "it runs")
    (taken,) = agents_of(place.cluster.logs(blocker_trial))
    policy = {"pattern": "uncorrectable trouble", "action": "exclude_node"}
    config = script_config(place.side, log_policies=[policy], max_restarts=1)
    experiment_id = place.cluster.create(config, {"train.py": FAILS})
    trial = wait_for(lambda: place.cluster.trials(experiment_id), "it has a trial")[0]["id"]
    wait_for(lambda: "will not run on agent" in place.cluster.logs(trial), "the line has matched")
    free = {"agent-1": "agent-2", "agent-2": "agent-1"}[taken]
    assert agents_of(place.cluster.logs(trial)) == [free]
    wait_for(lambda: place.cluster.trials(experiment_id)[0]["restarts"] == 1, "it waits for its second run")
    place.cluster.kill_master()
    place.cluster.start_master()
    place.cluster.wait_for_agent()
    assert agents_of(place.cluster.logs(trial)) == [free]
    place.cluster.post(f"/api/v1/experiments/{blocker}/kill")
    assert place.cluster.wait_for_end(experiment_id) == "ERROR"
    log = place.cluster.logs(trial)
    assert agents_of(log) == [free, taken], log
