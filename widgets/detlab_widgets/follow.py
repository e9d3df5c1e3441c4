"""One thread and one connection for everything that the views of a kernel follow.

The thread starts with the first view and ends with the last. It prints nothing: in a notebook that would land
under whichever cell runs at the time. What goes wrong is said to the views; while the master is away the
pauses grow, up to LONGEST_PAUSE, and they end at once when somebody calls `wake`.
"""

import atexit
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from determined.common.api import authentication, errors
from determined.experimental import Determined, client

FIRST_PAUSE = 1.0  # seconds after the first failure
LONGEST_PAUSE = 15.0
READ_TIMEOUT = 10.0  # seconds for which an answer may be silent before the master counts as away
SHARE = 0.2  # of the time may be spent on reading: what takes long to read is read more rarely
LONGEST_GOODBYE = 2.0  # seconds that the end of the process waits for the thread
MOST_BETWEEN = 60.0  # seconds between two readings however long they take

logger = logging.getLogger("detlab_widgets")
logger.addHandler(logging.NullHandler())  # silent unless a program asks for it

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Reading(Generic[T_co]):
    """What a source found, and after how many seconds to look again; None: nothing will change any more."""

    facts: T_co
    again_after: float | None


class Source(Protocol[T_co]):
    """Something that can be read. Sources of one key are read once for all; `str()` names it for people."""

    @property
    def key(self) -> Hashable: ...

    def read(self, client: Determined) -> Reading[T_co]:
        """May raise what the SDK raises."""
        ...


@dataclass(frozen=True)
class Update(Generic[T_co]):
    """What a view is told, in the follower's thread."""

    facts: T_co | None  # the latest; None before the first
    trouble: str = ""  # why there is nothing newer, in one line; "" when all is well
    ended: bool = False  # nothing more will come


Listener = Callable[[Update[Any]], None]


class Following:
    """A view's hold on what it follows. Let go with `stop`."""

    def __init__(self, follower: "Follower", key: Hashable, listener: Listener) -> None:
        self._follower = follower
        self.key = key
        self.listener = listener

    def wake(self) -> None:
        """Look now."""
        self._follower._wake(self.key)

    def stop(self) -> None:
        """The listener is not called again, except where a call has already begun."""
        self._follower._drop(self)


@dataclass
class _Followed:
    source: Source[Any]
    due: float = 0.0  # of the monotonic clock
    update: Update[Any] = field(default_factory=lambda: Update(None))
    followings: list[Following] = field(default_factory=list)


def connect() -> Determined:
    """A connection that gives up soon, as the user whom `client.login` chose, else as the usual one."""
    patience = authentication.Patience(retries=0, read_timeout=READ_TIMEOUT)
    shared = client.current()
    if shared is not None:
        return shared.with_patience(patience)
    return Determined.with_session(authentication.logged_in_session(patience=patience))


class Follower:
    """Reads sources on a thread of its own and tells their listeners."""

    def __init__(self, connect: Callable[[], Determined] = connect) -> None:
        self._connect = connect
        self._changed = threading.Condition()
        self._followed: dict[Hashable, _Followed] = {}
        self._thread: threading.Thread | None = None  # the latest; it may have ended
        self._running = False  # whether the latest will look again

    def follow(self, source: Source[T], listener: Callable[[Update[T]], None]) -> Following:
        """Call `listener` after every reading, in the follower's thread, until the source ends or `stop`."""
        following = Following(self, source.key, listener)
        with self._changed:
            followed = self._followed.setdefault(source.key, _Followed(source))
            followed.followings.append(following)
            followed.due = 0.0
            if not self._running:
                self._running = True
                self._thread = threading.Thread(target=self._run, name="detlab-follow", daemon=True)
                self._thread.start()
            self._changed.notify()
        return following

    @property
    def running(self) -> bool:
        """Whether its thread goes on reading."""
        return self._running

    def close(self) -> None:
        """Let go of everything, and wait a little for the thread to end."""
        with self._changed:
            self._followed.clear()
            self._changed.notify()
        self.join(LONGEST_GOODBYE)

    def join(self, timeout: float) -> None:
        """Wait until the thread has ended, which it does when nothing is followed."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _wake(self, key: Hashable) -> None:
        with self._changed:
            followed = self._followed.get(key)
            if followed is not None:
                followed.due = 0.0
                self._changed.notify()

    def _drop(self, following: Following) -> None:
        with self._changed:
            followed = self._followed.get(following.key)
            if followed is None or following not in followed.followings:
                return
            followed.followings.remove(following)
            if not followed.followings:
                del self._followed[following.key]
            self._changed.notify()

    def _run(self) -> None:
        connection: Determined | None = None
        pause = FIRST_PAUSE
        try:
            while (due := self._wait_for_due()) is not None:
                try:
                    connection = connection or self._connect()
                    for followed in due:
                        self._read(followed, connection)
                    pause = FIRST_PAUSE
                except (errors.RequestFailed, errors.NotLoggedIn, errors.TokenStoreError) as e:
                    if connection is not None:  # the token may have run out, the master may be another one
                        connection.close()
                        connection = None
                    self._put_off(_one_line(e), pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            if connection is not None:
                connection.close()

    def _wait_for_due(self) -> list[_Followed] | None:
        """What is to be read now; None when nothing is followed any more, and the thread is over."""
        with self._changed:
            while self._followed:
                now = time.monotonic()
                due = [followed for followed in self._followed.values() if followed.due <= now]
                if due:
                    return due
                self._changed.wait(min(followed.due for followed in self._followed.values()) - now)
            self._running = False
            return None

    def _read(self, followed: _Followed, connection: Determined) -> None:
        """Read a source and tell its listeners. Raises what concerns every source."""
        with self._changed:
            followed.due = math.inf  # until it has been read; who wakes it meanwhile has it read once more
        began = time.monotonic()
        try:
            reading = followed.source.read(connection)
        except (errors.NotFoundException, errors.ForbiddenException) as e:
            self._tell(followed, Update(followed.update.facts, _one_line(e), ended=True))
            return
        except (errors.RequestFailed, errors.NotLoggedIn):
            raise
        except Exception as e:  # one source that cannot be read must not stop the others
            logger.exception("cannot read %s", followed.source)
            self._tell(
                followed,
                Update(followed.update.facts, f"cannot show {followed.source}: {_one_line(e)}", True),
            )
            return
        now = time.monotonic()
        wait = min(max(reading.again_after or 0.0, (now - began) / SHARE), MOST_BETWEEN)
        with self._changed:
            followed.due = min(followed.due, now + wait)
        self._tell(followed, Update(reading.facts, ended=reading.again_after is None))

    def _put_off(self, trouble: str, pause: float) -> None:
        with self._changed:
            everything = list(self._followed.values())
            for followed in everything:
                followed.due = time.monotonic() + pause
        text = f"no news from the cluster: {trouble}; trying again"
        for followed in everything:
            self._tell(followed, Update(followed.update.facts, text))

    def _tell(self, followed: _Followed, update: Update[Any]) -> None:
        with self._changed:
            followed.update = update
            followings = list(followed.followings)
            if update.ended and self._followed.get(followed.source.key) is followed:
                del self._followed[followed.source.key]
        for following in followings:
            try:
                following.listener(update)
            except Exception:  # a view that fails must not stop the others
                logger.exception("a view of %s failed", followed.source)
                following.stop()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


shared = Follower()  # of this process's views
# The interpreter must not fall apart around a thread that is drawing: native code would abort the process.
atexit.register(shared.close)
