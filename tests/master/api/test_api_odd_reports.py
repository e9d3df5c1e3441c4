"""Reports that arrive twice, late, out of order, or from a run that was replaced."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from detlab_agent import protocol
from detlab_agent.protocol import ContainerState as State
from master.api.rig import Answer, Rig
from master.api.test_api_experiments import Agent, agent, start_trial


@dataclass
class Running:
    """A trial that runs on an agent, with the token of its container."""

    rig: Rig
    agent: Agent
    spec: protocol.ContainerSpec

    @property
    def trial_id(self) -> int:
        return int(self.spec.environment["DET_TRIAL_ID"])

    @property
    def token(self) -> str:
        return self.spec.environment["DET_SESSION_TOKEN"]

    async def report(
        self, steps: int, *, group: str = "validation", run: int = 1, by: str = "", **values: Any
    ) -> Answer:
        """A report from the container; with ``by``, from a script of that user."""
        body = {
            "group": group,
            "metrics": {
                "trialId": self.trial_id,
                "trialRunId": run,
                "stepsCompleted": steps,
                "metrics": {"avgMetrics": values},
            },
        }
        path = f"/api/v1/trials/{self.trial_id}/metrics"
        if by:
            return await self.rig.call("POST", path, body, by=by)
        return await self.rig.call("POST", path, body, container=self.token)

    async def kept(self, group: str = "validation") -> list[tuple[int, int, dict[str, Any]]]:
        """(run, steps, metrics) of what the master shows."""
        query = {"trialIds": str(self.trial_id), "group": group}
        answer = await self.rig.call("GET", "/api/v1/trials/metrics/trial_metrics", query=query)
        inner = "validation_metrics" if group == "validation" else "avg_metrics"
        return [
            (one["trialRunId"], one["totalBatches"], one["metrics"][inner])
            for line in answer.lines
            for one in line["result"]["metrics"]
        ]

    def told_to_the_search(self) -> list[Any]:
        trial = self.rig.store.trials.get(self.trial_id)
        assert trial is not None
        events = self.rig.store.experiments.searcher_events(trial.experiment_id)
        return [one.event["metrics"] for one in events if one.event["type"] == "validated"]


@pytest.fixture
async def running(rig: Rig) -> AsyncIterator[Running]:
    async with agent(rig) as connected:
        _, spec = await start_trial(rig, connected)
        yield Running(rig, connected, spec)


async def test_a_report_that_arrives_twice_is_kept_once(running: Running) -> None:
    for values in ({"accuracy": 0.5, "loss": "NaN"}, {"accuracy": 0.5, "loss": "NaN"}, {"accuracy": 0.5}):
        assert (await running.report(10, **values)).status == 200
    assert await running.kept() == [(1, 10, {"accuracy": 0.5, "loss": "NaN"})]
    assert len(running.told_to_the_search()) == 1


async def test_a_report_that_arrives_many_times_at_once_is_kept_once(running: Running) -> None:
    answers = await asyncio.gather(*(running.report(10, accuracy=0.5) for _ in range(20)))
    assert {answer.status for answer in answers} == {200}
    assert await running.kept() == [(1, 10, {"accuracy": 0.5})]
    assert len(running.told_to_the_search()) == 1


async def test_another_value_for_the_same_step_is_refused_and_more_metrics_are_added(
    running: Running,
) -> None:
    assert (await running.report(10, accuracy=0.5)).status == 200
    refused = await running.report(10, accuracy=0.6)
    assert refused.status == 400
    assert "has reported 'accuracy' = 0.5 in group 'validation' at step 10 already" in refused.error
    assert (await running.report(10, loss=2.0)).status == 200
    assert await running.kept() == [(1, 10, {"accuracy": 0.5, "loss": 2.0})]
    assert len(running.told_to_the_search()) == 1


async def test_steps_may_go_back_and_groups_come_in_any_order(running: Running) -> None:
    for group, steps in (("validation", 20), ("training", 20), ("validation", 10), ("training", 5)):
        assert (await running.report(steps, group=group, accuracy=steps / 100)).status == 200
    assert [steps for _, steps, _ in await running.kept()] == [10, 20]
    assert [steps for _, steps, _ in await running.kept("training")] == [5, 20]
    trial = (await running.rig.call("GET", f"/api/v1/trials/{running.trial_id}")).json["trial"]
    assert trial["totalBatchesProcessed"] == 20  # it has got that far, whatever came later
    assert trial["latestValidation"]["totalBatches"] == 20
    assert [metrics["accuracy"] for metrics in running.told_to_the_search()] == [0.2, 0.1]


@pytest.mark.parametrize("run", [0, 2, 7])
async def test_a_wrong_run_is_refused(running: Running, run: int) -> None:
    refused = await running.report(10, run=run, accuracy=0.5)
    assert refused.status == 400
    assert f"is in run 1, and this report comes from run {run}" in refused.error
    assert await running.kept() == [] and running.told_to_the_search() == []


async def test_what_comes_late_from_a_run_that_was_replaced_changes_nothing(running: Running) -> None:
    for steps in (10, 20, 30):
        assert (await running.report(steps, accuracy=0.1)).status == 200
    first = running.spec
    await running.agent.moved(first, State.TERMINATED, 1)
    second = await next_start(running.agent)
    assert second.environment["DET_TRIAL_RUN_ID"] == "2"

    assert (await running.report(40, accuracy=0.9)).status == 401  # its token ended with it
    late = await running.report(40, accuracy=0.9, by="alice")
    assert late.status == 400 and "that process was replaced and must end" in late.error
    stale = {
        "uuid": str(uuid.uuid4()),
        "taskId": first.task_id,
        "allocationId": first.allocation_id,
        "state": "STATE_COMPLETED",
        "resources": {"weights": "10"},
        "metadata": {"steps_completed": 30},
        "training": {},
        "reportTime": "2026-01-01T00:00:00+00:00",
    }
    saved = await running.rig.call("POST", "/api/v1/checkpoints", stale, by="alice")
    assert saved.status in (400, 403), saved.body
    listed = await running.rig.call("GET", f"/api/v1/trials/{running.trial_id}/checkpoints")
    assert listed.json["checkpoints"] == []
    assert [steps for _, steps, _ in await running.kept()] == [10, 20, 30]

    running.spec = (
        second  # which starts from step 10 again: what its predecessor reported after that is archived
    )
    assert (await running.report(20, run=2, accuracy=0.2)).status == 200
    assert await running.kept() == [(1, 10, {"accuracy": 0.1}), (2, 20, {"accuracy": 0.2})]


async def next_start(connected: Agent) -> protocol.ContainerSpec:
    while True:
        message = await connected.receive()
        if isinstance(message, protocol.StartContainer):
            return message.spec
        assert message is not None, "the master has closed the connection"


async def test_reports_may_come_together(running: Running) -> None:
    def report(steps: int, **values: Any) -> dict[str, Any]:
        ids = {"trialId": running.trial_id, "trialRunId": 1, "stepsCompleted": steps}
        return {"group": "training", "metrics": {**ids, "metrics": {"avgMetrics": values}}}

    async def send(*reports: Any) -> Answer:
        path = f"/api/v1/trials/{running.trial_id}/metrics"
        return await running.rig.call("POST", path, {"reports": reports}, container=running.token)

    for _ in range(2):  # the answer to the first got lost
        assert (await send(report(1, loss=3.0), report(2, loss=2.0))).status == 200
    kept = [(1, 1, {"loss": 3.0}), (1, 2, {"loss": 2.0})]
    assert await running.kept("training") == kept
    refused = await send(report(3, loss=1.0), report(2, loss=99.0), report(4, loss=0.5))
    assert refused.status == 400
    assert await running.kept("training") == [*kept, (1, 3, {"loss": 1.0})]
    wrong = await send(report(5, loss=1.0), {"group": "training", "metrics": {"stepsCompleted": 6}})
    assert (wrong.status, wrong.error) == (400, "reports[1].metrics.trialRunId is missing: it is required")
    assert len(await running.kept("training")) == 3


async def test_values_of_any_shape_are_kept_as_they_came(running: Running) -> None:
    values: dict[str, Any] = {
        "confusion": [[5, 1], [0, "NaN"]],
        "by class": {"cat": {"recall": [0.5, "-Infinity", None]}},
        "time": "2026-01-31T12:00:00.5+00:00",
        "day": "2026-01-31",
        "version": "2026-01-31-rc1",
        "done": True,
        "many": 2**80,
        "nothing": None,
    }
    for group in ("training", "validation", "own"):
        assert (await running.report(10, group=group, **values)).status == 200
        assert await running.kept(group) == [(1, 10, values)]
    trial = await running.rig.call("GET", f"/api/v1/trials/{running.trial_id}")
    summary = trial.json["trial"]["summaryMetrics"]["own"]
    kinds = {name: summary[name]["type"] for name in values}
    assert kinds == {
        "confusion": "array",
        "by class": "object",
        "time": "date",
        "day": "date",
        "version": "string",
        "done": "bool",
        "many": "number",
        "nothing": "null",
    }
