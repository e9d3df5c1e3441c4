"""Who can log in on one machine, and with which generated passwords."""

from __future__ import annotations

import json
import os
import pwd
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from detlab_hub.place import secret

ADMIN = "admin"
_ADMIN_BYTES, _USER_BYTES = 16, 6  # JupyterHub wants 32 characters for an admin, 8 for others


@dataclass(frozen=True)
class Logins:
    """The passwords, and whom they admit."""

    admin: str  # user name
    admin_password: str
    user_password: str  # of every other name; "" where the admin is the only one admitted
    new: bool  # whether the passwords were made just now


def logins(file: Path, *, environment: Mapping[str, str] = os.environ) -> Logins:
    """The passwords of a file that only its owner can read, made where it is missing.

    Only root can keep users apart from each other. Without that there is one user, who is asked for by the name of the
    account that runs the Hub, unless DETLAB_SHARED_TRUST=1 says that users trust each other.
    """
    new = not file.exists()
    made = {"admin": secrets.token_hex(_ADMIN_BYTES), "user": secrets.token_hex(_USER_BYTES)}
    kept = json.loads(secret(file, json.dumps(made)))
    if os.geteuid() == 0 or environment.get("DETLAB_SHARED_TRUST") == "1":
        return Logins(ADMIN, kept["admin"], kept["user"], new)
    return Logins(pwd.getpwuid(os.geteuid()).pw_name, kept["admin"], "", new)
