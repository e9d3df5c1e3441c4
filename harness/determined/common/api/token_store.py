"""The file that keeps login tokens: `<config>/detlab-auth.json`, readable by its owner only.

{"format": "detlab-tokens-1",
 "masters": {"http://host:8080": {"active_user": "ada", "tokens": {"ada": "..."}}}}
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from determined.common.api.errors import TokenStoreError

_FORMAT = "detlab-tokens-1"


def config_dir() -> Path:
    """Where the client keeps its files; `DET_DEBUG_CONFIG_PATH` names another folder."""
    override = os.environ.get("DET_DEBUG_CONFIG_PATH")
    return Path(override) if override else Path(platformdirs.user_config_dir("determined"))


@dataclass
class _Master:
    active_user: str | None = None
    tokens: dict[str, str] = field(default_factory=dict)


class TokenStore:
    """The tokens for one master. Every change reads, changes and replaces the file under a lock."""

    def __init__(self, master: str, path: Path | None = None) -> None:
        self.master = master
        self.path = (
            path or config_dir() / "detlab-auth.json"
        )  # beside the official client's auth.json, whose format is its own

    def active_user(self) -> str | None:
        """Who logged in last, and did not log out."""
        return self._read().get(self.master, _Master()).active_user

    def token(self, username: str) -> str | None:
        return self._read().get(self.master, _Master()).tokens.get(username)

    def users(self) -> dict[str, str]:
        """Token by username."""
        return dict(self._read().get(self.master, _Master()).tokens)

    def put(self, username: str, token: str, *, activate: bool = False) -> None:
        """Keep a token; with `activate`, commands that name no user act as this one from now on."""
        with self._changing() as master:
            master.tokens[username] = token
            if activate:
                master.active_user = username

    def drop(self, username: str) -> None:
        """Forget a user's token. Forgetting one that is not there is no error."""
        with self._changing() as master:
            master.tokens.pop(username, None)
            if master.active_user == username:
                master.active_user = None

    @contextmanager
    def _changing(self) -> Iterator[_Master]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with open(self.path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                masters = self._read()
                yield masters.setdefault(self.master, _Master())
                self._write({url: m for url, m in masters.items() if m.tokens})
        except OSError as e:
            raise TokenStoreError(f"cannot keep the login in {self.path}: {e.strerror}") from e

    def _read(self) -> dict[str, _Master]:
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return {}
        except OSError as e:
            raise TokenStoreError(f"cannot read the logins in {self.path}: {e.strerror}") from e
        try:
            content: Any = json.loads(text)
            if content["format"] != _FORMAT:
                raise ValueError(content["format"])
            return {
                url: _Master(entry["active_user"], dict(entry["tokens"]))
                for url, entry in content["masters"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            # Not repaired and not overwritten: the file may hold the logins of another program.
            raise TokenStoreError(
                f"{self.path} was not written by this program: move it away, "
                "or name another folder with DET_DEBUG_CONFIG_PATH"
            ) from e

    def _write(self, masters: dict[str, _Master]) -> None:
        content = {"format": _FORMAT, "masters": {url: vars(m) for url, m in masters.items()}}
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".auth-")  # made with mode 0600
        try:
            with open(handle, "w") as file:
                json.dump(content, file, indent=1)
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
