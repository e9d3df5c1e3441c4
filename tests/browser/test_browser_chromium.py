"""How the tests come by a browser, with an apt-get that installs a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from browser.chromium import NoChromium, chromium

APT_GET = """#!/bin/sh
echo "$@" >> {log}
case "$1" in install) printf '#!/bin/sh\\n' > {folder}/chromium; {chmod} +x {folder}/chromium;; esac
"""


def test_says_what_it_installs_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    log, apt_get = tmp_path / "log", tmp_path / "apt-get"
    apt_get.write_text(APT_GET.format(log=log, folder=tmp_path, chmod="/bin/chmod"))
    apt_get.chmod(0o755)
    said: list[str] = []
    assert chromium(said.append) == str(tmp_path / "chromium")
    assert re.search("Installing chromium fonts-dejavu-core with apt-get: .* real browser", "".join(said))
    assert log.read_text().splitlines() == [
        "update",
        "install --yes --no-install-recommends chromium fonts-dejavu-core",
    ]
    assert chromium(said.append) == str(tmp_path / "chromium")
    assert len(said) == 1, "found, and not installed again"


@pytest.mark.parametrize(("user", "apt_get"), [(1000, True), (0, False)])
def test_says_what_to_install_where_it_cannot(
    user: int, apt_get: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if apt_get:
        (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "apt-get").chmod(0o755)
    with pytest.raises(NoChromium, match="sudo apt-get install chromium fonts-dejavu-core"):
        chromium(pytest.fail)


def test_says_why_an_installation_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho 'no space left' >&2; exit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    with pytest.raises(NoChromium, match="no space left"):
        chromium(lambda text: None)
