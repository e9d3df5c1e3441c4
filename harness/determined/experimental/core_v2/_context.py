"""The context of a detached script: a Core API context that also keeps the trial alive at the master, and ends it."""

import atexit
import contextlib
import logging
import os
import sys
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

from determined import core
from determined._info import ClusterInfo, get_cluster_info
from determined.common import api
from determined.common.api import authentication, errors
from determined.core import _context as core_context
from determined.core._distributed import DistributedContext, DummyDistributedContext
from determined.core._preempt import DummyPreemptContext
from determined.experimental import Determined
from determined.experimental.core_v2 import _config
from determined.experimental.core_v2._logs import LogShipper
from determined.experimental.core_v2._registration import END_RETRIES, End, Heartbeat, register, report_state

logger = logging.getLogger("determined.core")

# With the session's waits nearly a minute. A training puts up with a master that is away for ten; whoever has mistyped an
# address should hear of it.
FIRST_RETRIES = 10


class Detached:
    """What runs beside a detached script's context: heartbeats of the chief, logs of each process; and how it ends."""

    def __init__(self, session: api.Session, info: ClusterInfo, rank: int) -> None:
        self._session = session
        self._trial_id = info.trial.trial_id
        self._run_id = info.trial._trial_run_id
        self._chief = rank == 0
        self._greeting = (
            f"Reports to {info.master_url} as trial {info.trial.trial_id} of experiment {info.trial.experiment_id}"
            f" (det experiment describe {info.trial.experiment_id})"
        )
        self._beats = session.again(retries=0, read_timeout=None)
        self._lines = session.again(retries=END_RETRIES, read_timeout=None)
        self._heartbeat = Heartbeat(self._beats, self._trial_id, self._run_id)
        self._logs = LogShipper(self._lines, info.task_id, rank)
        self._ended = False

    def start(self) -> None:
        if self._chief:  # before its log begins: it is for who started the script
            print(self._greeting, file=sys.stderr, flush=True)
        self._logs.start()
        if self._chief:
            self._heartbeat.start()

    def close(self, end: End) -> None:
        """Send what was printed, and say how the script ended. Repeating it does nothing."""
        if self._ended:
            return
        self._ended = True
        with contextlib.ExitStack() as stack:
            for session in (self._session, self._beats, self._lines):
                stack.callback(session.close)
            if self._chief:
                stack.callback(self._say, end)
            stack.callback(self._logs.close)
            stack.callback(self._heartbeat.close)

    def _say(self, end: End) -> None:
        try:
            report_state(self._session, self._trial_id, self._run_id, end.value)
        except (errors.APIException, errors.MasterUnreachable) as error:
            logger.warning("the master was not told that this script has ended (%s): %s", end.name, error)


class DetachedContext(core.Context):
    """A `core.Context` of a script that runs outside of the cluster. Its trial ends with it: COMPLETED, or ERROR after an
    exception. Made by `core_v2.init_context()`."""

    def __init__(self, detached: Detached, **parts: Any) -> None:
        super().__init__(**parts)
        self._detached = detached
        self._closed = False

    def start(self) -> None:
        self._detached.start()
        super().start()

    def close(self) -> None:
        """Send what is still to be reported, and end the trial as COMPLETED, or as ERROR if something cannot be sent."""
        self.end(End.COMPLETED)

    def end(self, end: End) -> None:
        """Close, and end the trial like this. Repeating it does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            super().close()
        except BaseException:
            end = End.ERROR
            raise
        finally:
            self._detached.close(end)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.end(end_of(error))
        except Exception:  # the error of the training code is the one to show
            logger.exception("could not send all reports")


def end_of(error: BaseException) -> End:
    """How a script ended that an exception has left."""
    if isinstance(error, KeyboardInterrupt):
        return End.CANCELED
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return End.COMPLETED
    return End.ERROR


def init_context(
    *,
    config: _config.Config | None = None,
    defaults: _config.Config | None = None,
    unmanaged: _config.Config | None = None,
    client: Determined | None = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | os.PathLike[str] | dict[str, Any] | None = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
) -> core.Context:
    """Connect this script to a master that did not start it: `with core_v2.init_context(...) as core_context:`.

    `config`: what the master shows of it. `client`: a connection to the master; by default the user and the master of
    `det` (`DET_MASTER`, `det user login`). `checkpoint_storage` goes before that of `config`. `defaults` and
    `unmanaged` are older names of `config`. In a trial that the cluster started this is `core.init()`: `config` has no
    effect there, and the same script runs both ways.

    Raises NotLoggedIn, MasterUnreachable or APIException (`determined.common.api.errors`).
    """
    settings = _config.chosen(config, defaults, unmanaged)
    if checkpoint_storage is not None:
        # In the experiment's configuration, so that others find the checkpoints, too.
        settings = replace(settings, checkpoint_storage=checkpoint_storage)
    running = get_cluster_info()
    if running is not None and running.task_type == "TRIAL":
        return core.init(
            distributed=distributed,
            checkpoint_storage=checkpoint_storage,
            preempt_mode=preempt_mode,
            tensorboard_mode=tensorboard_mode,
        )
    distributed = distributed or DummyDistributedContext()
    session = _session(client)
    detached = None
    try:
        with session.again(retries=FIRST_RETRIES, read_timeout=None) as first:
            info = _registered(first, settings, distributed)
        detached = Detached(session, info, distributed.rank)
        return core_context.trial_context(
            info,
            lambda retries: session.again(retries=retries, read_timeout=None),
            distributed,
            info.trial._config["checkpoint_storage"],
            tensorboard_mode,
            lambda _: DummyPreemptContext(distributed, preempt_mode),
            partial(DetachedContext, detached),
        )
    except BaseException as error:
        if detached is not None:
            detached.close(end_of(error))
        session.close()
        raise


def _session(client: Determined | None) -> api.Session:
    """A session of the script's own: the client's may be closed before."""
    if client is None:
        patience = authentication.Patience(retries=FIRST_RETRIES)
        with authentication.logged_in_session(patience=patience) as first:
            return first.again(retries=core_context.MASTER_RETRIES, read_timeout=None)
    return client.session.again(retries=core_context.MASTER_RETRIES, read_timeout=None)


def _registered(session: api.Session, config: _config.Config, distributed: DistributedContext) -> ClusterInfo:
    """The chief registers the script, and tells the others."""
    told: tuple[ClusterInfo | None, str] = (None, "")
    failure: Exception | None = None
    if distributed.rank == 0:
        try:
            told = (register(session, config), "")
        except Exception as error:  # noqa: BLE001 - raised again, once the others know
            failure, told = error, (None, str(error))
    info, why = distributed.broadcast(told)
    if failure is not None:
        raise failure
    if info is None:
        raise RuntimeError(f"the chief could not register this script with the master: {why}")
    return info


class AtExit:
    """Ends a context when the script does, and as that does: Python tells nobody with which code a process exits, so
    uncaught exceptions and calls of `sys.exit` are listened to."""

    def __init__(self, context: core.Context) -> None:
        self._context = context
        self._end = End.COMPLETED
        self._hook = sys.excepthook
        self._exit = sys.exit

    def install(self) -> None:
        sys.excepthook = self._failed
        sys.exit = self._exiting
        atexit.register(self._script_ends)

    def close(self) -> None:
        """End the context now: COMPLETED, or what the exception says that is under way (`finally: close()`)."""
        error = sys.exc_info()[1]
        self._close(End.COMPLETED if error is None else end_of(error))

    def _script_ends(self) -> None:
        self._close(self._end)

    def _close(self, end: End) -> None:
        atexit.unregister(self._script_ends)
        if sys.excepthook == self._failed:
            sys.excepthook = self._hook
        if sys.exit == self._exiting:
            sys.exit = self._exit
        if isinstance(self._context, DetachedContext):
            self._context.end(end)
        else:
            self._context.close()

    def _failed(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        self._end = end_of(error)
        self._hook(kind, error, traceback)

    def _exiting(self, status: Any = None, /) -> NoReturn:
        self._end = end_of(SystemExit(status))
        self._exit(status)
