"""An experiment is continued, and its master (and agent) killed right after the answer and again under way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.conftest import Place, running_place
from e2e.invariants import every_acknowledged_report_is_kept, every_line_is_in_the_log_once
from e2e.trials import WITNESS, hyperparameters, searcher, witness_config
from support.cluster import wait_for

STEPS, FAILS_AT, SAVED = 8, 4, 2
# As WITNESS, but it fails as long as a file is there.
BROKEN = WITNESS.replace(
    'if step == hparams.get("fail_at"):', f'if step == {FAILS_AT} and (side / "broken").exists():'
)


@pytest.fixture(scope="module")
def two_slots(db_url: str) -> Iterator[Place]:
    with running_place(slots=2, db_url=db_url) as started:
        yield started


@pytest.mark.parametrize(
    ("search", "override"),
    [
        pytest.param(
            searcher("single"), "{hyperparameters: {seconds: 0.1}}", marks=pytest.mark.full, id="single"
        ),
        pytest.param(searcher("random", max_trials=3, max_concurrent_trials=2), "", id="random"),
    ],
)
def test_continued_and_killed(two_slots: Place, search: dict[str, object], override: str) -> None:
    place, cluster = two_slots, two_slots.cluster
    broken = place.side / "broken"
    broken.touch()
    config = witness_config(
        place.side, searcher=search, hyperparameters=hyperparameters(steps=STEPS, seconds=0.1)
    )
    number = cluster.create(config, {"train.py": BROKEN})
    assert cluster.wait_for_end(number) == "ERROR"
    before = [trial["id"] for trial in cluster.trials(number)]
    broken.unlink()

    cluster.post("/api/v1/experiments/continue", {"id": number, "overrideConfig": override})
    cluster.kill_master()  # before it has done anything about it, or in the middle of that
    cluster.start_master()
    assert cluster.experiment(number)["state"] not in ("STATE_ERROR", "STATE_CANCELED")
    again = cluster.request("POST", "/api/v1/experiments/continue", json={"id": number})
    assert (again.status_code, "only one that has ended" in again.text) == (400, True)
    wait_for(lambda: any(place.record(i).runs == 2 for i in before), "a trial runs again")
    cluster.kill_master()
    cluster.kill_agent()
    cluster.start_master()
    cluster.start_agent()

    assert cluster.wait_for_end(number) == "COMPLETED"
    trials = cluster.trials(number)
    assert [trial["id"] for trial in trials] == before
    for trial in trials:
        record = place.record(trial["id"])
        assert (trial["state"], trial["restarts"]) == ("STATE_COMPLETED", 0)
        assert [start for _, start in record.notes("start")] == [0, SAVED]
        assert record.last("acknowledged") == STEPS
        assert not record.notes("violation"), f"trial {trial['id']} ran twice at once"
        record.assert_resumed_from_its_checkpoints()
        every_acknowledged_report_is_kept(place, record)
        every_line_is_in_the_log_once(place, record)
    wait_for(lambda: not cluster.task_processes(), "all tasks have ended")
