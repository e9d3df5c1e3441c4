"""Answers that come in pieces: logs, metrics, archives, model definitions, and waiting for preemption."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from dataclasses import replace
from typing import Any

import pytest
from tornado.simple_httpclient import HTTPStreamClosedError

from detlab_master.api import archive
from detlab_master.core.records import LogLine, MetricReport
from detlab_master.core.states import CheckpointState
from detlab_master.store.writes import AppendLogs, InsertReport, SaveCheckpoint, SaveExperiment, SaveTask
from master.api.rig import T0, Answer, Rig, Things


def line(things: Things, number: int, **changes: Any) -> LogLine:
    made = LogLine(
        things.task.id, things.allocation.id, T0 + number, f"line {number}\n", container_id="c" * 10
    )
    return replace(made, **changes)


async def logs(rig: Rig, things: Things, **query: Any) -> Answer:
    return await rig.call("GET", f"/api/v1/trials/{things.trial.id}/logs", query=query)


def texts(answer: Answer) -> list[str]:
    return [item["result"]["log"].strip() for item in answer.lines]


async def test_kept_logs(rig: Rig) -> None:
    things = await rig.things()
    lines = [line(things, n, rank_id=n % 2, level="LOG_LEVEL_ERROR" if n == 3 else "") for n in range(2500)]
    await rig.keep(AppendLogs(tuple(lines)))
    assert texts(await logs(rig, things)) == [f"line {n}" for n in range(2500)]
    assert texts(await logs(rig, things, limit=1500)) == [f"line {n}" for n in range(1500)]
    tail = await logs(rig, things, limit=2, orderBy="ORDER_BY_DESC")
    assert texts(tail) == ["line 2499", "line 2498"]
    assert texts(await logs(rig, things, levels="LOG_LEVEL_ERROR")) == ["line 3"]
    assert len(texts(await logs(rig, things, levels=["LOG_LEVEL_ERROR", "LOG_LEVEL_UNSPECIFIED"]))) == 2500
    assert len(texts(await logs(rig, things, rankIds=1))) == 1250
    assert texts(await logs(rig, things, searchText=r"line 12\s", enableRegex="true")) == ["line 12"]
    assert texts(await logs(rig, things, timestampAfter="2027-01-15T08:41:38Z")) == ["line 2499"]
    assert texts(await logs(rig, things, sources="master")) == []
    first = tail.lines[1]["result"]
    assert first["trialId"] == things.trial.id
    assert first["message"].endswith("line 2498\n")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"follow": "true", "limit": 5}, "it cannot be combined with limit"),
        ({"searchText": "(", "enableRegex": "true"}, "searchText is '(': "),
        ({"limit": -1}, "limit is '-1'"),
        ({"levels": "LOUD"}, "levels is 'LOUD': expected one of LOG_LEVEL_TRACE"),
    ],
)
async def test_bad_questions_about_logs(rig: Rig, query: dict[str, Any], error: str) -> None:
    answer = await logs(rig, await rig.things(), **query)
    assert answer.status == 400
    assert error in answer.error


async def test_following_logs(rig: Rig) -> None:
    """Lines arrive while they are followed; the stream ends when the task has, and not before."""
    things = await rig.things()
    await rig.keep(SaveTask(replace(things.task, end_time=None)))
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    head = f"GET /api/v1/trials/{things.trial.id}/logs?follow=true HTTP/1.1\r\nHost: x\r\n"
    writer.write(f"{head}Authorization: Bearer {rig.tokens['alice']}\r\n\r\n".encode())
    for number in range(3):
        await rig.services.logs.append([line(things, number)])
        assert f"line {number}" in (await asyncio.wait_for(reader.readuntil(b"}}\n"), 10)).decode()
    await rig.services.logs.append([line(things, 3)])
    await rig.keep(SaveTask(things.task))
    rest = await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 10)
    assert b"line 3" in rest
    writer.close()
    await writer.wait_closed()


async def test_shipping_logs(rig: Rig) -> None:
    things = await rig.things()
    shipped = {
        "task_id": things.task.id,
        "allocation_id": "forged",
        "timestamp": "2027-01-15T08:00:00.5+00:00",
    }
    entry = {
        **shipped,
        "log": "hi\n",
        "level": "LOG_LEVEL_INFO",
        "rank_id": 2,
        "stdtype": "stderr",
        "source": "task",
    }
    answer = await rig.call("POST", "/api/v1/task/logs", {"logs": [entry]}, container=things.token)
    assert answer.json == {}
    (kept,) = (await logs(rig, things)).lines
    wanted = {
        "level": "LOG_LEVEL_INFO",
        "rankId": 2,
        "stdtype": "stderr",
        "allocationId": things.allocation.id,
    }
    assert {key: kept["result"][key] for key in wanted} == wanted
    assert kept["result"]["timestamp"] == "2027-01-15T08:00:00.500Z"
    other = await rig.things()
    mixed = {"logs": [entry, {**entry, "task_id": other.task.id}]}
    assert (await rig.call("POST", "/api/v1/task/logs", mixed, container=things.token)).status == 400


async def test_streaming_metrics(rig: Rig) -> None:
    one, other = await rig.things(), await rig.things()
    more = [MetricReport(one.trial.id, 1, "training", n, T0 + n, {"loss": 1.0}) for n in range(201, 2401)]
    await rig.keep(*map(InsertReport, more))

    async def stream(name: str, **query: Any) -> list[list[tuple[int, int]]]:
        answer = await rig.call("GET", f"/api/v1/trials/metrics/{name}", query=query)
        items = [item["result"]["metrics"] for item in answer.lines]
        return [[(report["trialId"], report["totalBatches"]) for report in item] for item in items]

    ids = [other.trial.id, one.trial.id]
    items = await stream("trial_metrics", trialIds=ids, group="training")
    assert [len(item) for item in items] == [1000, 1000, 204]
    flat = [pair for item in items for pair in item]
    assert flat == sorted(flat)
    assert flat[-1] == (other.trial.id, 200)
    assert sum(map(len, await stream("trial_metrics", trialIds=one.trial.id))) == 2203
    assert await stream("validation_metrics", trialIds=ids) == [[(one.trial.id, 200), (other.trial.id, 200)]]
    assert await stream("trial_metrics", trialIds=one.trial.id, group="nothing") == []
    assert (await rig.call("GET", "/api/v1/trials/metrics/trial_metrics")).status == 400


async def test_an_error_after_the_first_item(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    things = await rig.things()
    await rig.keep(AppendLogs(tuple(line(things, n) for n in range(1001))))
    find = rig.store.logs.find

    def fails_later(where: Any, *, after_id: int = 0, **more: Any) -> Any:
        if after_id:
            raise ZeroDivisionError("secret")
        return find(where, after_id=after_id, **more)

    monkeypatch.setattr(rig.store.logs, "find", fails_later)
    answer = await logs(rig, things)
    assert answer.status == 200
    last = answer.lines[-1]["error"]
    assert (len(answer.lines), last["httpCode"], last["details"]) == (1001, 500, [])
    assert "secret" not in last["message"]


async def download(rig: Rig, things: Things, accept: str) -> Answer:
    return await rig.call("GET", f"/checkpoints/{things.checkpoint.uuid}", headers={"Accept": accept})


CONTENT = {"code/train.py": b"print('hi')\n", "weights": b"w" * 1000}


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/x-tar", "application/gzip", "text/html, application/zip;q=0.5"]
)
async def test_checkpoint_archives(rig: Rig, accept: str) -> None:
    things = await rig.things()
    outside = rig.folder / "outside"
    outside.write_text("not yours")
    files = rig.folder / "checkpoints" / things.checkpoint.uuid
    (files / "link").symlink_to(outside)
    (files / "links").symlink_to(rig.folder, target_is_directory=True)
    os.mkfifo(files / "pipe")
    answer = await download(rig, things, accept)
    assert answer.status == 200
    if "zip" in accept and "gzip" not in accept:
        with zipfile.ZipFile(io.BytesIO(answer.body)) as opened:
            assert {n: opened.read(n) for n in opened.namelist() if not n.endswith("/")} == CONTENT
        return
    assert answer.headers["Content-Type"] == ("application/gzip" if "gzip" in accept else "application/x-tar")
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        content = {m.name: tar.extractfile(m) for m in tar.getmembers() if not m.isdir()}
        assert {name: file.read() for name, file in content.items() if file} == CONTENT


async def test_checkpoints_that_cannot_be_downloaded(rig: Rig) -> None:
    things = await rig.things()
    answer = await download(rig, things, "text/html")
    assert (answer.status, set(answer.json)) == (415, {"message"})
    await rig.keep(SaveCheckpoint(replace(things.checkpoint, state=CheckpointState.DELETED)))
    answer = await download(rig, things, "*/*")
    assert (answer.status, answer.json["message"]) == (
        404,
        f"checkpoint '{things.checkpoint.uuid}' is DELETED: it has no files to download",
    )


async def test_an_archive_that_breaks_off_is_seen_to_be_broken(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = await rig.things()

    def breaks(file: Any, files: Any, media_type: str) -> None:
        file.write(bytes(1 << 20))
        raise OSError("disk failed")

    monkeypatch.setattr("detlab_master.api.checkpoints.write_archive", breaks)
    with pytest.raises(HTTPStreamClosedError):
        await download(rig, things, "*/*")


async def test_an_archive_does_not_wait_in_memory() -> None:
    """The writer goes no further than a few chunks ahead of the reader, and ends when nobody reads."""
    written, ended = 0, asyncio.Event()
    loop = asyncio.get_running_loop()

    def endless(file: Any) -> None:
        nonlocal written
        try:
            while True:
                written += file.write(bytes(64 << 10))
        finally:
            loop.call_soon_threadsafe(ended.set)

    chunks = archive.Pipe().chunks(endless)
    await anext(chunks)
    before = -1
    while before != written:
        before = written
        await asyncio.sleep(0.05)
    assert written <= 12 * (256 << 10)
    await chunks.aclose()
    await asyncio.wait_for(ended.wait(), 10)


async def test_model_definitions(rig: Rig) -> None:
    things = await rig.things()
    path = f"/api/v1/experiments/{things.experiment.id}/model_def"
    assert (await rig.call("GET", path)).json == {"b64Tgz": ""}
    packed = gzip.compress(os.urandom(1_000_000))
    sha256 = hashlib.sha256(packed).hexdigest()
    await rig.keep(SaveExperiment(replace(things.experiment, context_sha256=sha256)))
    missing = await rig.call("GET", path)
    assert (missing.status, sha256 in missing.error) == (404, True)
    rig.services.contexts.path(sha256).write_bytes(packed)
    for answer in (
        await rig.call("GET", path),
        await rig.call("GET", f"/api/v1/tasks/{things.task.id}/context_directory", container=things.token),
    ):
        assert base64.b64decode(answer.json["b64Tgz"]) == packed


async def test_waiting_ends_when_the_client_goes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    things = await rig.things()
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(allocation_id: str, timeout_s: float) -> bool:
        begun.set()
        assert (allocation_id, timeout_s) == (things.allocation.id, 60)
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
        return False

    monkeypatch.setattr(rig.services.allocations, "wait_preemption", wait)
    _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    path = f"/api/v1/allocations/{things.allocation.id}/signals/preemption?timeout_seconds=60"
    header = f"Grpc-Metadata-x-allocation-token: Bearer {things.token}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
    await asyncio.wait_for(begun.wait(), 10)
    writer.close()
    await asyncio.wait_for(cancelled.wait(), 10)


async def test_preemption_of_what_has_ended(rig: Rig) -> None:
    things = await rig.things()
    path = f"/api/v1/allocations/{things.allocation.id}/signals/preemption"
    answer = await rig.call("GET", path, query={"timeout_seconds": "5"}, container=things.token)
    assert answer.json == {"preempt": True}
    answer = await rig.call("GET", path, query={"timeout_seconds": "-5"}, container=things.token)
    assert answer.error == "timeoutSeconds is '-5': it must be from 0 to 3600"
