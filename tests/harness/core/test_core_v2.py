"""Detached mode without a cluster: its configuration, what is printed, and what is said where it is used wrongly."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from determined import core
from determined.common.api import Session, errors
from determined.experimental import core_v2
from determined.experimental.core_v2 import _config, _context, _logs, _registration
from determined.experimental.core_v2._logs import LogShipper
from harness.ranks import on_ranks
from harness.real_master import rig
from master.api.rig import Rig
from support.cluster import free_port, wait_for

__all__ = ["rig"]


class Master:
    """Stands in for a session: takes lines, or does not."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.failure: Exception | None = None
        self.calls = 0

    def post(self, path: str, json: Any) -> None:
        assert path == "/task-logs"
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        self.lines += json


def shipper(master: Master) -> LogShipper:
    return LogShipper(master, "5.task", 3)  # type: ignore[arg-type]


def test_lines_with_their_levels_and_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, errs = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", errs)
    master = Master()
    shipping = shipper(master)
    shipping.start()
    print("one", "two")
    print("WARNING: three", file=sys.stderr)
    sys.stdout.write("10 %\r20 %\r")
    print("no end", end="")
    assert not sys.stdout.isatty()  # all else is the stream's own
    shipping.close()
    print("not for the master")
    assert (sys.stdout, sys.stderr) == (shown, errs)
    assert shown.getvalue() == "one two\n10 %\r20 %\rno endnot for the master\n"
    logs = [(line["stdtype"], line["log"], line.get("level")) for line in master.lines]
    assert [log for kind, log, _ in logs if kind == "stdout"] == ["one two\n", "10 %\r", "20 %\r", "no end"]
    assert [log for log in logs if log[0] == "stderr"] == [("stderr", "three\n", "LOG_LEVEL_WARNING")]
    assert {(line["task_id"], line["rank"]) for line in master.lines} == {("5.task", "3")}


@given(st.lists(st.text("ab \n\r", max_size=6)))
def test_no_text_is_lost_however_it_is_cut(pieces: list[str]) -> None:
    master = Master()
    shipping = shipper(master)
    for piece in pieces:
        shipping.add(piece, "stdout")
    shipping._thread.start()
    shipping.close()
    assert "".join(line["log"] for line in master.lines) == "".join(pieces)
    for line in master.lines:
        assert "\n" not in line["log"][:-1] and "\r" not in line["log"][:-1]


def test_lines_wait_for_a_master_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_logs, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(_logs, "MAX_WAITING", 3)
    master = Master()
    master.failure = errors.MasterUnreachable("away")
    shipping = shipper(master)
    shipping.add("first\n", "stdout")
    shipping._thread.start()
    wait_for(lambda: master.calls > 2, "it tries again")
    for number in range(5):
        shipping.add(f"{number}\n", "stdout")
    master.failure = None
    wait_for(lambda: len(master.lines) >= 5, "it goes on")
    shipping.close()
    kept = [line["log"] for line in master.lines]
    assert kept[0] == "first\n"
    assert "2 lines were lost here" in kept[1]
    assert kept[2:] == ["2\n", "3\n", "4\n"]


def test_a_master_that_refuses_is_left_alone() -> None:
    master = Master()
    master.failure = errors.NotFoundException(404, "task '5.task' not found", "POST /task-logs")
    shipping = shipper(master)
    shipping.add("first\n", "stdout")
    shipping._thread.start()
    shipping._thread.join(10)
    shipping.add("second\n", "stdout")
    shipping.close()
    assert master.calls == 1


def test_heartbeats_go_on_until_the_experiment_is_gone() -> None:
    beats = threading.Semaphore(0)
    answers: list[Exception | None] = [
        None,
        errors.MasterUnreachable("away"),
        errors.APIException(500, "trouble", "PATCH"),
        errors.NotFoundException(404, "trial '1' not found", "PATCH"),
    ]

    class Session:
        def patch(self, path: str, json: Any) -> None:
            assert (path, json) == ("/api/v1/trials/1", {"trialId": 1, "trialRunId": 2})
            answer = answers.pop(0)
            beats.release()
            if answer is not None:
                raise answer

    heart = _registration.Heartbeat(Session(), 1, 2, every=0.001)  # type: ignore[arg-type]
    heart.start()
    for _ in range(4):
        assert beats.acquire(timeout=10)
    heart._thread.join(10)
    heart.close()
    assert answers == []


def test_the_configuration_that_is_submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    named = _config.named(core_v2.Config())
    submitted = yaml.safe_load(_config.as_text(_config.experiment_config(named)))
    folder = str(tmp_path / "determined" / "checkpoints")
    assert submitted.pop("name").startswith("unmanaged-")
    assert submitted == {
        **dict.fromkeys(("data", "description", "labels", "workspace", "project")),
        "checkpoint_storage": {"type": "directory", "container_path": folder},
        "searcher": {"name": "single", "metric": "unmanaged"},
    }
    assert named.external_experiment_id and named.external_trial_id  # so that requests can be repeated


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("/data/c", {"type": "directory", "container_path": "/data/c"}),
        (Path("/data/c"), {"type": "directory", "container_path": "/data/c"}),
        ("s3://bucket/some/prefix", {"type": "s3", "bucket": "bucket", "prefix": "some/prefix"}),
        ({"type": "shared_fs", "host_path": "/x"}, {"type": "shared_fs", "host_path": "/x"}),
    ],
)
def test_checkpoint_storage(place: Any, expected: dict[str, Any]) -> None:
    config = core_v2.Config(checkpoint_storage=place)
    assert _config.experiment_config(config)["checkpoint_storage"] == expected


@pytest.mark.parametrize("wrong", [7, ""])
def test_external_ids_are_texts(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"external_trial_id is .*: it must be a text of your choice"):
        core_v2.Config(external_trial_id=wrong)


def test_older_names_of_the_configuration() -> None:
    with pytest.warns(FutureWarning, match="DefaultConfig is deprecated"):
        defaults = core_v2.DefaultConfig(name="old", hparams={"lr": 1})
    with pytest.warns(FutureWarning, match="UnmanagedConfig is deprecated"):
        unmanaged = core_v2.UnmanagedConfig(external_experiment_id="a", external_trial_id="b")
    with pytest.warns(FutureWarning, match="use config"):
        both = _config.chosen(None, defaults, unmanaged)
    assert both == core_v2.Config(
        name="old", hparams={"lr": 1}, external_experiment_id="a", external_trial_id="b"
    )
    with warnings.catch_warnings(), pytest.raises(ValueError, match="takes the place of"):
        warnings.simplefilter("ignore")
        core_v2.init(config=core_v2.Config(), defaults=defaults)


def test_before_init() -> None:
    with pytest.raises(RuntimeError, match=r"core_v2.train is there after core_v2.init\(\)"):
        _ = core_v2.train
    with pytest.raises(RuntimeError, match="is there after"):
        core_v2.url_reverse_webui_exp_view()
    core_v2.close()  # nothing to close
    with pytest.raises(AttributeError, match="no attribute 'training'"):
        _ = core_v2.training


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (ValueError(), _registration.End.ERROR),
        (KeyboardInterrupt(), _registration.End.CANCELED),
        (SystemExit(), _registration.End.COMPLETED),
        (SystemExit(0), _registration.End.COMPLETED),
        (SystemExit(3), _registration.End.ERROR),
        (SystemExit("bad"), _registration.End.ERROR),
    ],
)
def test_how_a_script_ended(error: BaseException, end: _registration.End) -> None:
    assert _context.end_of(error) is end


async def test_all_ranks_are_one_trial(rig: Rig) -> None:
    def register(config: core_v2.Config) -> Any:
        def run(distributed: core.DistributedContext) -> Any:
            with Session(rig.url, token=rig.tokens["alice"]) as session:
                return _context._registered(session, config, distributed)

        return on_ranks(2, run)

    config = core_v2.Config(external_experiment_id="ranks", external_trial_id="1", hparams={"lr": 1})
    chief, worker = await asyncio.to_thread(register, config)
    assert chief == worker
    assert (chief.trial._trial_run_id, chief.trial.hparams) == (1, {"lr": 1})
    trial = rig.store.trials.get(chief.trial.trial_id)
    assert trial is not None and trial.run_id == 1
    wrong = core_v2.Config(searcher={"name": "luck", "metric": "loss"})
    refused, told = await asyncio.to_thread(register, wrong)
    assert isinstance(refused, errors.APIException) and "luck" in str(refused)
    assert isinstance(told, RuntimeError) and "luck" in str(told)


def test_long_lines_and_dots_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_logs, "MAX_LINE", 10)
    monkeypatch.setattr(_logs, "MAX_TEXT", 25)
    master = Master()
    sizes: list[int] = []

    def post(path: str, json: Any) -> None:
        sizes.append(sum(len(one["log"]) for one in json))
        Master.post(master, path, json)

    monkeypatch.setattr(master, "post", post)
    shipping = shipper(master)
    for _ in range(34):
        shipping.add(".", "stdout")
    shipping.add("x" * 40 + "\n", "stderr")
    shipping._thread.start()
    shipping.close()
    text = {
        kind: [line["log"] for line in master.lines if line["stdtype"] == kind]
        for kind in ("stdout", "stderr")
    }
    assert "".join(text["stdout"]) == "." * 34
    assert "".join(text["stderr"]) == "x" * 40 + "\n"
    assert max(len(line["log"]) for line in master.lines) == 10
    assert max(sizes) < 25 + 10


def test_progress_by_dots_costs_the_script_the_same_however_many_there_were() -> None:
    begun = _logs._Begun()
    for _ in range(20_000):
        assert begun.add(".") == []
    assert len(begun._pieces) == 20_000  # put together once, and not with each
    assert begun.add("\n") == ["." * 20_000 + "\n"]


@pytest.mark.parametrize("kind", ["waiting", "text"])
def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(_logs, "MAX_WAITING" if kind == "waiting" else "MAX_WAITING_TEXT", 3)
    shipping = shipper(Master())
    for number in range(5):
        shipping.add(f"{number}\n" if kind == "waiting" else "\n", "stdout")
    assert (len(shipping._lines), shipping._dropped) == (3, 2)


def test_a_wrong_address_is_not_tried_for_as_long_as_a_training_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"DET_USER": "alice", "DET_USER_TOKEN": "token"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DET_MASTER", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(_context, "FIRST_RETRIES", 0)
    with pytest.raises(errors.MasterUnreachable, match="cannot reach the master"):
        core_v2.init(config=core_v2.Config(name="nowhere"))
