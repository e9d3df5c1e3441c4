"""Checkpoints: reports of them, reading them, and removing their files."""

from __future__ import annotations

import re
import uuid
from contextlib import aclosing
from pathlib import PurePosixPath
from typing import ClassVar

from detlab_master.api.archive import FORMATS, Pipe, write_archive
from detlab_master.api.base import ApiHandler, Rule, distinct
from detlab_master.api.body import Fields
from detlab_master.api.encode import checkpoints as encode
from detlab_master.api.errors import Unsupported
from detlab_master.api.trial_lists import checkpoint_view
from detlab_master.core.errors import Conflict, Invalid, NotFound
from detlab_master.core.permissions import Access, Kind
from detlab_master.core.records import Checkpoint, Task
from detlab_master.core.states import CheckpointState

_STATES = tuple(CheckpointState)
_WITH_FILES = (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED)


class OneCheckpoint(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.READ, Kind.CHECKPOINT)}

    async def get(self, checkpoint_uuid: str) -> None:
        found = self.found
        view = await self.read(
            checkpoint_view, self.services.store, found.experiment, found.checkpoint, found.trial
        )
        self.reply({"checkpoint": encode.checkpoint(view)})


class CheckpointMetadata(ApiHandler):
    """What people note about a checkpoint; the new metadata takes the place of the old."""

    rules: ClassVar = {"POST": Rule(Access.OWN, Kind.CHECKPOINT)}

    async def post(self, checkpoint_uuid: str) -> None:
        found = self.found
        assert found.checkpoint is not None
        metadata = (await self.fields()).child("checkpoint").object("metadata")
        changed = await self.services.checkpoints.describe(found.checkpoint, metadata)
        view = await self.read(checkpoint_view, self.services.store, found.experiment, changed, found.trial)
        self.reply({"checkpoint": encode.checkpoint(view)})


class Checkpoints(ApiHandler):
    rules: ClassVar = {
        "POST": Rule(Access.REPORT, Kind.TASK, in_body=True),
        "PATCH": Rule(Access.REPORT, Kind.CHECKPOINT, in_body=True),
        "DELETE": Rule(Access.OWN, Kind.CHECKPOINT, in_body=True),
    }

    async def post(self) -> None:
        """A trial has written a checkpoint. Repeating the report is safe."""
        fields = await self.fields()
        task_id = fields.text("taskId")
        await self.admit(Kind.TASK, task_id, Access.REPORT)
        task = await self.read(self.services.store.trials.task, task_id)
        if task is None:
            raise NotFound(f"task '{task_id}' not found")
        allocation_id = fields.text("allocationId", self.principal.allocation_id or "")
        if await self._is_detached(task):
            if allocation_id and not re.fullmatch(re.escape(task_id) + r"\.\d{1,9}", allocation_id):
                raise fields.refuse("allocationId", f"a run of detached task {task_id} is {task_id}.NUMBER")
        else:
            allocation = await self.read(self.services.store.trials.allocation, allocation_id)
            if allocation is None or allocation.task_id != task_id:
                raise fields.refuse("allocationId", f"task {task_id} has no such allocation")
        checkpoint = _reported(fields, task, allocation_id, self.services.now())
        store, storage_id = self.services.store.checkpoints, checkpoint.storage_id
        if storage_id is not None and await self.read(store.storage, storage_id, task.owner_id) is None:
            raise fields.refuse("storageId", "expected the number that /api/v1/runs/start has answered")
        known = await self.read(store.get, checkpoint.uuid)
        if known is not None and known.trial_id != checkpoint.trial_id:
            raise Conflict(
                f"checkpoint '{checkpoint.uuid}' is there already: every checkpoint needs a uuid of its own"
            )
        await self.services.experiments.report_checkpoint(checkpoint)
        self.reply({})

    async def _is_detached(self, task: Task) -> bool:
        """Whether it runs outside of the cluster, and so has no allocations."""
        trial = await self.read(self.services.store.trials.get, task.trial_id) if task.trial_id else None
        return trial is not None and trial.unmanaged

    async def patch(self) -> None:
        """Somebody has removed files of checkpoints, and says what is left."""
        changes: dict[str, dict[str, int]] = {}
        for entry in (await self.fields()).children("checkpoints"):
            checkpoint_uuid = entry.text("uuid")
            await self.admit(Kind.CHECKPOINT, checkpoint_uuid, Access.REPORT)
            if entry.raw("resources") is not None:
                changes[checkpoint_uuid] = entry.child("resources").sizes("resources")
        self._require(changes, "checkpoints")
        await self.services.checkpoints.patch(changes)
        self.reply({})

    async def delete(self) -> None:
        uuids = distinct((await self.fields()).texts("checkpointUuids"))
        self._require(uuids, "checkpointUuids")
        for checkpoint_uuid in uuids:
            await self.admit(Kind.CHECKPOINT, checkpoint_uuid, Access.OWN)
        await self.services.checkpoints.delete(uuids)
        self.reply({})

    def _require(self, items: object, name: str) -> None:
        if not items:
            raise Invalid(f"{name} is empty: expected at least one checkpoint")


def _reported(fields: Fields, task: Task, allocation_id: str, now: float) -> Checkpoint:
    if task.trial_id is None or task.experiment_id is None:
        raise fields.refuse("taskId", f"it is a {task.type} task: only trials report checkpoints")
    state = fields.enum("state", _STATES, "STATE_") or CheckpointState.COMPLETED
    if state != CheckpointState.COMPLETED:
        raise fields.refuse("state", "a checkpoint is reported once it is complete: expected STATE_COMPLETED")
    metadata = fields.object("metadata")
    resources = fields.sizes("resources")
    for path in resources:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise Invalid(f"the path {path!r} in resources leaves the checkpoint")
    reported_at = fields.timestamp("reportTime")
    return Checkpoint(
        uuid=_uuid(fields),
        task_id=task.id,
        allocation_id=allocation_id,
        experiment_id=task.experiment_id,
        trial_id=task.trial_id,
        state=CheckpointState.COMPLETED,
        reported_at=now if reported_at is None else reported_at,
        steps_completed=Fields(metadata, "metadata.").integer("steps_completed"),
        resources=resources,
        metadata=metadata,
        storage_id=fields.optional_integer("storageId"),
    )


def _uuid(fields: Fields) -> str:
    """The checkpoint's name is that of its folder, so nothing but a uuid is taken, and each in one spelling: in another
    it would be a second checkpoint, perhaps somebody else's, with the files of the first."""
    text = fields.text("uuid").lower()
    try:
        if str(uuid.UUID(text)) == text:
            return text
    except ValueError:
        pass
    raise fields.refuse("uuid", "expected a uuid such as 3f2b8c1e-0d7a-4b57-9a51-6f1c1f6a2b9e")


class RemoveFiles(ApiHandler):
    """Removes the files that match a glob; without globs it only looks what is left."""

    rules: ClassVar = {"POST": Rule(Access.OWN, Kind.CHECKPOINT, in_body=True)}

    async def post(self) -> None:
        fields = await self.fields()
        uuids, globs = distinct(fields.texts("checkpointUuids")), fields.texts("checkpointGlobs")
        if not uuids:
            raise Invalid("checkpointUuids is empty: expected at least one checkpoint")
        for glob in globs:
            if not glob or ".." in glob:
                raise Invalid(f"checkpointGlobs has {glob!r}: a glob must not be empty nor contain '..'")
        for checkpoint_uuid in uuids:
            await self.admit(Kind.CHECKPOINT, checkpoint_uuid, Access.OWN)
        await self.services.checkpoints.remove_files(uuids, globs)
        self.reply({})


class CheckpointArchive(ApiHandler):
    """A checkpoint's files as one archive, made while it is sent."""

    rules: ClassVar = {"GET": Rule(Access.READ, Kind.CHECKPOINT)}

    async def get(self, checkpoint_uuid: str) -> None:
        kind = _accepted(self.request.headers.get("Accept", ""))
        checkpoint, experiment = self.found.checkpoint, self.found.experiment
        assert checkpoint is not None
        assert experiment is not None
        if checkpoint.state not in _WITH_FILES:
            raise NotFound(
                f"checkpoint '{checkpoint.uuid}' is {checkpoint.state}: it has no files to download"
            )
        files = await self.services.files.read(experiment, checkpoint)
        name = f"{checkpoint.uuid}{FORMATS[kind]}"
        self.set_header("Content-Type", kind)
        self.set_header("Content-Disposition", f'attachment; filename="{name}"')
        async with aclosing(Pipe().chunks(write_archive, files, kind)) as chunks:
            async for chunk in chunks:
                self.write(chunk)
                await self.flush()


def _accepted(header: str) -> str:
    """The archive's media type: the first in an Accept header that we can make."""
    wanted = [part.partition(";")[0].strip().lower() for part in header.split(",")]
    for media_type in wanted:
        if media_type in FORMATS:
            return media_type
        if media_type in ("", "*/*", "application/*"):
            return "application/x-tar"
    raise Unsupported(f"Accept is {header!r}: a checkpoint can be had as {', '.join(FORMATS)}")
