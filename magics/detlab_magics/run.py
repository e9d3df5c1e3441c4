"""`det` commands in a notebook, and what there is to say of the cluster: what %det does."""

import argparse
import contextlib
import html
import io
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from IPython.core.getipython import get_ipython

from determined import cli
from determined.cli import parser
from determined.common.api import Session, authentication, errors
from determined.experimental import client
from detlab_magics.errors import NotebookError, explained

# After these the connection that this process shares would still be the former user's.
_LOGINS = (["user", "login"], ["u", "login"], ["token", "login"], ["tkn", "login"])


@dataclass(frozen=True)
class Pool:
    """A resource pool; free and total are slots."""

    name: str
    free: int
    total: int


@dataclass(frozen=True, repr=False)
class ClusterStatus:
    """Which cluster this is, who one is there, and what is free."""

    master: str
    cluster_name: str
    version: str
    username: str
    admin: bool
    pools: tuple[Pool, ...]

    @property
    def _cluster(self) -> str:
        return f"{self.cluster_name} at {self.master}" if self.cluster_name else self.master

    @property
    def _user(self) -> str:
        return f"{self.username} (administrator)" if self.admin else self.username

    def __repr__(self) -> str:
        width = max(len(pool.name) for pool in self.pools) if self.pools else 0
        pools = [f"  {pool.name:<{width}}  {pool.free} of {pool.total} slots free" for pool in self.pools]
        lines = [f"Cluster {self._cluster}, version {self.version}", f"You are {self._user}"]
        return "\n".join([*lines, *(pools or ["  There are no resource pools"])])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(pool.name)}</td><td>{pool.free} of {pool.total}</td></tr>"
            for pool in self.pools
        )
        return (
            f"<p>Cluster <b>{html.escape(self._cluster)}</b>, version {html.escape(self.version)}<br>"
            f"You are <b>{html.escape(self._user)}</b></p>"
            f"<table><thead><tr><th>Resource pool</th><th>Free slots</th></tr></thead><tbody>{rows}</tbody></table>"
        )


def status() -> ClusterStatus:
    """Ask the master. Not retried, so that an address that is wrong says so at once. Raises NotebookError."""
    with explained("no answer from the cluster"), _session() as session:
        master = session.get_json("/api/v1/master")
        user = session.get_json("/api/v1/me")["user"]
        pools = session.get_json("/api/v1/resource-pools")["resourcePools"] or []
        return ClusterStatus(
            master=session.master,
            cluster_name=master.get("clusterName") or "",
            version=master["version"],
            username=user["username"],
            admin=user["admin"],
            pools=tuple(
                Pool(pool["name"], pool["slotsAvailable"] - pool["slotsUsed"], pool["slotsAvailable"])
                for pool in pools
            ),
        )


def _session() -> Session:
    shared = client.current()
    if shared is not None:  # a person may have chosen another master with client.login
        return shared.session.again(retries=0, read_timeout=None)
    return authentication.logged_in_session(patience=authentication.Patience(retries=0))


def det(line: str | Sequence[str]) -> None:
    """Run a `det` command, as in `det("experiment list")`; its output goes to the running cell.

    Raises NotebookError when the command fails, with what it says.
    """
    argv = _split(line) if isinstance(line, str) else list(line)
    args = _parsed(argv)
    if args is None:
        return
    try:
        with _questions_in_notebook():
            code = cli.run(args)
    except KeyboardInterrupt:
        raise NotebookError("interrupted") from None
    except Exception as e:
        explanation = cli.explain(e)
        if explanation is None:
            raise
        raise NotebookError(explanation) from e
    if code:
        raise NotebookError(f"det {shlex.join(argv)} ended with exit code {code}")
    if argv[:2] in _LOGINS and client.current() is not None:
        with contextlib.suppress(errors.NotLoggedIn):  # logged in to another master than this process uses
            client.login()


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as e:
        raise NotebookError(f"cannot read {line!r}: {e}") from None


def _parsed(argv: list[str]) -> argparse.Namespace | None:
    """The arguments; None after help, which has been printed."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return parser.parse(argv)
    except SystemExit as e:
        if e.code:
            raise NotebookError(said.getvalue().strip()) from None
        print(said.getvalue(), end="")
        return None


class _Questions(io.TextIOBase):
    """Standard input by way of the notebook's input field."""

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return input() + "\n"


@contextlib.contextmanager
def _questions_in_notebook() -> Iterator[None]:
    """A kernel has no terminal, but most front ends can ask: passwords too, by ipykernel's getpass."""
    kernel = getattr(get_ipython(), "kernel", None)
    if not getattr(kernel, "_allow_stdin", False):
        yield
        return
    before, sys.stdin = sys.stdin, _Questions()
    try:
        yield
    finally:
        sys.stdin = before
