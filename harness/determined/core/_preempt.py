"""Preemption: the master asks a trial to save its work and leave."""

import enum
import logging
import threading

from determined.common import api
from determined.common.api import errors
from determined.core._distributed import DistributedContext
from determined.errors import DistributedError

logger = logging.getLogger("determined.core")

LONG_POLL_SECONDS = 60
# How much longer than the long poll to wait for its answer.
_MARGIN_SECONDS = 10
_RETRY_SECONDS = 10.0


class PreemptMode(enum.Enum):
    """Who asks the master, and who may call `should_preempt`."""

    # Every rank calls should_preempt(), all at the same point; the chief asks and tells the others.
    WorkersAskChief = "WORKERS_ASK_CHIEF"
    # Only the chief calls it. Telling the others is up to the training code.
    ChiefOnly = "CHIEF_ONLY"
    # Every rank asks the master for itself. Their answers may come at different moments.
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptionWatcher:
    """A thread that waits for the preemption signal of an allocation."""

    def __init__(self, session: api.Session, allocation_id: str) -> None:
        self._session = session
        self._path = f"/api/v1/allocations/{allocation_id}/signals/preemption"
        self._preempted = False
        self._failure: errors.RequestFailed | None = None
        self._answered = threading.Event()  # the first poll has come back, one way or the other
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="determined-preemption", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def preempted(self) -> bool:
        """Whether the signal has come. Blocks until the master has answered for the first time.

        Raises the request's error when the master refuses to answer that first time.
        """
        self._answered.wait()
        if self._failure is not None:
            raise self._failure
        return self._preempted

    def close(self) -> None:
        """Stop asking. A long poll that is under way is left to the end of the process: it holds nothing."""
        self._closed.set()
        self._session.close()

    def _run(self) -> None:
        timeout = 0  # the first answer is wanted at once
        while not self._closed.is_set():
            try:
                answer = self._session.get(
                    self._path, params={"timeout_seconds": timeout}, timeout=timeout + _MARGIN_SECONDS
                ).json()
            except (errors.RequestFailed, ValueError) as e:
                if self._closed.is_set():
                    return
                if isinstance(e, errors.APIException) and not self._answered.is_set():
                    self._failure = e
                    self._answered.set()
                    return
                logger.warning("cannot ask for the preemption signal: %s; asking again", e)
                self._closed.wait(_RETRY_SECONDS)
                continue
            timeout = LONG_POLL_SECONDS
            self._preempted = answer.get("preempt") is True
            self._answered.set()
            if self._preempted:
                return


class PreemptContext:
    """Asks whether to stop early. Get it as `core_context.preempt`."""

    def __init__(
        self,
        session: api.Session,
        allocation_id: str,
        distributed: DistributedContext,
        mode: PreemptMode,
        watcher: PreemptionWatcher,
    ) -> None:
        self._session = session
        self._allocation_id = allocation_id
        self._distributed = distributed
        self._mode = mode
        self._watcher = watcher
        self._acknowledged = False

    def start(self) -> None:
        """Begin to watch. `core.init()` does it."""
        if self._asks_master:
            self._watcher.start()

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Whether the trial should save a checkpoint and exit now.

        The first call waits until the master has answered. With `auto_ack` the first True is acknowledged,
        which promises the master that an exit is about to follow: the trial will then be started again
        later, from its checkpoint, whatever code it exits with. It is the chief that acknowledges; a rank that
        may leave before the chief has seen the signal must wait for it.
        """
        if self._mode is PreemptMode.ChiefOnly and self._distributed.rank != 0:
            raise RuntimeError(
                f"should_preempt() was called on rank {self._distributed.rank} in mode ChiefOnly"
            )
        if self._mode is PreemptMode.WorkersAskChief:
            preempted = self._as_the_chief_says()
        else:
            preempted = self._watcher.preempted()
        if preempted and auto_ack:
            self.acknowledge_preemption_signal()
        return preempted

    def _as_the_chief_says(self) -> bool:
        if self._distributed.rank != 0:
            answer: bool | str = self._distributed.broadcast("")
            if isinstance(answer, str):
                raise DistributedError(f"rank 0 cannot ask the master for the preemption signal: {answer}")
            return answer
        try:
            preempted = self._watcher.preempted()
        except errors.RequestFailed as e:
            self._distributed.broadcast(str(e))  # the others must not wait for an answer that never comes
            raise
        return self._distributed.broadcast(preempted)

    def acknowledge_preemption_signal(self) -> None:
        """Tell the master that the signal was seen and an exit follows. The chief tells it once."""
        if self._acknowledged or self._distributed.rank != 0:
            return
        self._session.post(f"/api/v1/allocations/{self._allocation_id}/signals/ack_preemption")
        self._acknowledged = True

    def close(self) -> None:
        self._watcher.close()

    @property
    def _asks_master(self) -> bool:
        return self._distributed.rank == 0 or self._mode is PreemptMode.WorkersAskMaster


class DummyPreemptContext(PreemptContext):
    """Where there is no cluster, nothing is preempted."""

    def __init__(self, distributed: DistributedContext, mode: PreemptMode) -> None:
        self._distributed = distributed
        self._mode = mode

    def start(self) -> None:
        """There is nothing to watch."""

    def should_preempt(self, auto_ack: bool = True) -> bool:
        if self._mode is PreemptMode.ChiefOnly and self._distributed.rank != 0:
            raise RuntimeError(
                f"should_preempt() was called on rank {self._distributed.rank} in mode ChiefOnly"
            )
        return False

    def acknowledge_preemption_signal(self) -> None:
        """There is nobody to tell."""

    def close(self) -> None:
        """There is nothing to close."""
