"""The files that a task starts with, and the archives of model definitions."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import IO, ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.core.errors import NotFound
from detlab_master.core.permissions import Access, Kind
from detlab_master.core.records import Experiment

_PIECE = 768 << 10  # bytes of the file; a multiple of 3, so that the pieces' base64 can be put together


class ArchiveHandler(ApiHandler):
    """Answers with an experiment's model definition, in pieces: it may have 95 MiB."""

    async def reply_archive(self, experiment: Experiment | None) -> None:
        """``{"b64Tgz": ...}``; an empty string when there is no model definition."""
        if experiment is None or not experiment.context_sha256:
            self.reply({"b64Tgz": ""})
            return
        file = await self.read(_open, self.services.contexts.path(experiment.context_sha256), experiment.id)
        with file:
            self.write(b'{"b64Tgz":"')
            while piece := await asyncio.to_thread(file.read, _PIECE):
                self.write(await asyncio.to_thread(base64.b64encode, piece))
                await self.flush()
            self.write(b'"}')


class ContextDirectory(ArchiveHandler):
    rules: ClassVar = {"GET": Rule(Access.READ, Kind.TASK)}

    async def get(self, task_id: str) -> None:
        task = self.found.task
        experiment_id = task.experiment_id if task else None
        experiment = (
            await self.read(self.services.store.experiments.get, experiment_id)
            if experiment_id is not None
            else None
        )
        await self.reply_archive(experiment)


class ModelDefinition(ArchiveHandler):
    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.EXPERIMENT)}

    async def get(self, experiment_id: str) -> None:
        await self.reply_archive(self.found.experiment)


def _open(path: Path, experiment_id: int) -> IO[bytes]:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise NotFound(
            f"the model definition of experiment '{experiment_id}' not found: the master's data folder lacks {path.name}"
        ) from None
