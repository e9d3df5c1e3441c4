"""The files of checkpoints and experiments: in which storage they are, and threads of their own to reach it.

A storage may hang, such as a network folder whose server is away. Then these threads wait, and nothing else does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from detlab_master.core.errors import NotFound
from detlab_master.core.records import Checkpoint, Experiment, Json
from detlab_master.engine.launch import FIRST_TASK_UID
from detlab_master.engine.storage import Storage, StorageElsewhere, StorageUnsupported, StoredFile
from detlab_master.engine.storage_local import LocalStorage, storage_root
from detlab_master.engine.storage_s3 import BucketStorage
from detlab_master.store.base import Store

ALL_FILES = ("**/*",)
_THREADS = 4
T = TypeVar("T")


class CheckpointFiles:
    """
    Args:
        cluster_id: the folder of this cluster's TensorBoard files in every storage.
        own: the ``checkpoint_storage`` of the master's own configuration.
    """

    def __init__(self, store: Store, cluster_id: str, own: Json | None = None) -> None:
        self._store = store
        self._own = own
        self._cluster_id = cluster_id
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="checkpoint-files")

    async def read(self, experiment: Experiment, checkpoint: Checkpoint) -> Iterator[StoredFile]:
        """The files, to go through in a thread. Raises what `Storage.read` does."""
        try:
            return await self._in_thread(
                lambda: self._open(self._storage(experiment, checkpoint), experiment).read(checkpoint.uuid)
            )
        except NotFound as error:
            if not experiment.unmanaged:
                raise
            raise NotFound(
                f"{error}; experiment {experiment.id} is detached: get them where its script ran"
                f" (det checkpoint download {checkpoint.uuid} --mode direct)"
            ) from error

    async def look(self, experiment: Experiment, checkpoint: Checkpoint) -> dict[str, int]:
        """What is there: path -> bytes, folders with a final "/".

        Raises:
            StorageUnreachable: nobody knows.
        """
        return await self.remove(experiment, checkpoint, ())

    async def remove(
        self, experiment: Experiment, checkpoint: Checkpoint, globs: Sequence[str] = ALL_FILES
    ) -> dict[str, int]:
        """Remove the files that match a glob. Returns and raises what `Storage.remove` does.

        Raises:
            StorageElsewhere: of a detached experiment, and not on this machine. Nobody knows what is there.
        """

        def work() -> dict[str, int]:
            storage = self._open(self._storage(experiment, checkpoint), experiment)
            if (
                experiment.unmanaged
                and isinstance(storage, LocalStorage)
                and not storage.has(checkpoint.uuid)
            ):
                if not checkpoint.resources:
                    return {}
                raise StorageElsewhere(
                    f"the files of checkpoint '{checkpoint.uuid}' are where the script of the detached experiment"
                    f" {experiment.id} ran, out of the master's reach: remove them there"
                )
            return storage.remove(checkpoint.uuid, globs)

        return await self._in_thread(work)

    async def remove_tensorboard(self, experiment: Experiment) -> None:
        """Remove what the experiment's trials have written for TensorBoard.

        Raises:
            StorageUnreachable: the storage does not let us.
        """
        path = (self._cluster_id, "tensorboard", "experiment", str(experiment.id))
        config = experiment.config["checkpoint_storage"]
        await self._in_thread(lambda: self._open(config, experiment).remove_tree(path))

    async def remove_rest(self, experiment: Experiment, tasks: Collection[str]) -> None:
        """Remove what an experiment that is deleted leaves beside its checkpoints.

        Args:
            tasks: of its trials: of checkpoints that they were writing when they were killed, there may be halves.

        Raises:
            StorageUnreachable: the storage does not let us.
        """
        await self.remove_tensorboard(experiment)
        config = experiment.config["checkpoint_storage"]
        await self._in_thread(lambda: self._open(config, experiment).remove_incomplete(tasks))

    def close(self) -> None:
        """Waits for what is being removed."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _storage(self, experiment: Experiment, checkpoint: Checkpoint) -> Json:
        """The training code may have chosen another storage than the configuration's."""
        chosen = (
            None
            if checkpoint.storage_id is None
            else self._store.checkpoints.storage(checkpoint.storage_id, experiment.owner_id)
        )
        config: Json = experiment.config["checkpoint_storage"]
        return chosen if chosen and chosen.get("type") else config

    def _open(self, storage: Json, experiment: Experiment) -> Storage:
        """A storage, with what the experiment's owner may have there.

        Raises:
            StorageUnsupported: the master has no way to it.
        """
        kind = storage.get("type")
        if kind in ("shared_fs", "directory"):
            return LocalStorage(storage_root(storage), FIRST_TASK_UID + experiment.owner_id)
        if kind == "s3":
            return BucketStorage(storage, self._own)
        place = storage.get("bucket") or storage.get("container") or "?"
        raise StorageUnsupported(
            f"this master does not reach what is in storage of type {kind!r} ({place}), only in shared_fs, directory and"
            " s3: download and remove the files with that storage's own tools"
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
