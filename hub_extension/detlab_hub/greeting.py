"""What a person reads who starts Detlab on a machine."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from detlab_hub.logins import Logins
from detlab_hub.place import Place

ENDED = "Detlab has ended. Experiments that were running go on from their checkpoints at the next `make up`."
RESTARTING = "The Hub has ended. Servers and trials that run are left running and will be found again at the next start."


def banner(place: Place, who: Logins, slots: int) -> str:
    """The address, who to log in as, what to do next, and where things are kept."""
    folder = os.path.relpath(place.folder)
    if slots:
        up = f"Detlab is up at {place.url} with {slots} slots. Ctrl-C ends it."
    else:
        up = (
            f"JupyterHub is up at {place.url}, but no agent offers slots yet: see {folder}/agent.log and"
            f" {folder}/master.log. Ctrl-C ends it."
        )
    return (
        f"\n{up}\n{_login(place, who)}\n"
        f"Kept in {folder}: logs, database, checkpoints, homes, passwords.\n\n"
        f"{next_steps(place.url, place.activate)}"
    )


def next_steps(url: str, activate: Path) -> str:
    """What to do now, in the browser or in a terminal."""
    return (
        f"Next: open {url} in a browser, log in, press Start, and open examples/digits.ipynb.\n"
        "Or, in another terminal, in this folder:\n"
        f"    source {os.path.relpath(activate)}\n"
        "    det experiment create examples/digits/adaptive.yaml examples/digits -f\n"
    )


def activation(place: Place, user: str, token: str) -> str:
    """The lines of the file to source: `det` on the path, where the master is, and who one is there."""
    return "".join(
        f"export {name}={value}\n"
        for name, value in (
            ("PATH", f"{shlex.quote(str(Path(sys.executable).parent))}:$PATH"),
            ("DET_MASTER", place.master_url),
            ("DET_USER", shlex.quote(user)),
            ("DET_USER_TOKEN", shlex.quote(token)),
        )
    )


def _login(place: Place, who: Logins) -> str:
    """Passwords are printed once, when they are new."""
    file = os.path.relpath(place.passwords)
    admin = f"password {who.admin_password}" if who.new else f'password "admin" in {file}'
    lines = [f"Log in as {who.admin}, {admin}"]
    if who.user_password:
        user = f"password {who.user_password}" if who.new else f'password "user" in {file}'
        lines.append(f"or as a user with a name of your choice, {user}")
    else:
        lines.append(
            "Not started as root, so users' tasks cannot be kept apart: this Detlab has one user"
            " (DETLAB_SHARED_TRUST=1 admits others)."
        )
    if who.new:
        lines.append(f"The passwords are printed this once and kept in {file}, readable by you alone.")
    return "\n".join(lines)
