"""Chromium, which the tests need as a program of the system: found, or installed with apt."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

PACKAGES = ("chromium", "fonts-dejavu-core")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_INSTALL_SECONDS = 600


class NoChromium(Exception):
    """There is none, and it cannot be installed; the text says what to do."""


def chromium(say: Callable[[str], None]) -> str:
    """The path of Chromium; installed first where that can be done, and `say` says so before.

    Raises:
        NoChromium: it is not there and cannot be installed.
    """
    found = _found()
    if found is not None:
        return found
    wanted = " ".join(PACKAGES)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoChromium(f"the browser tests need Chromium: sudo apt-get install {wanted}")
    say(f"\nInstalling {wanted} with apt-get: the browser tests walk through Detlab with a real browser.")
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
    for each in (["apt-get", "update"], command):
        done = subprocess.run(
            each,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    found = _found()
    if found is None:
        raise NoChromium(f"`apt-get install {wanted}` failed: {done.stderr.strip()[-500:]}")
    return found


def _found() -> str | None:
    return next((path for path in map(shutil.which, _NAMES) if path is not None), None)
