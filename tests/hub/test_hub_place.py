"""Passwords, secrets, ports and the lock of an installation."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

import pytest

from detlab_hub.logins import logins
from detlab_hub.place import AlreadyRuns, CannotStart, Place, check_ports, claim, secret
from support.hub import free_ports


def place(folder: Path, port: int = 8080) -> Place:
    made = Place("127.0.0.1", port, folder)
    made.hub.mkdir(parents=True)
    return made


def test_one_number_moves_all_ports(tmp_path: Path) -> None:
    made = place(tmp_path, 9000)
    assert (made.port, made.hub_port, made.proxy_api_port, made.master_port) == (9000, 9001, 9002, 9003)
    assert made.url == "http://127.0.0.1:9000" and made.master_url == "http://127.0.0.1:9003"


def test_a_secret_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    (tmp_path / "secret.new").write_text("left by a crash")
    assert secret(file, "first") == "first"
    assert secret(file, "second") == "first"
    assert file.stat().st_mode & 0o777 == 0o600


def test_passwords_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    made = logins(tmp_path / "passwords", environment={})
    again = logins(tmp_path / "passwords", environment={})
    assert made.new and not again.new
    assert (made.admin, made.admin_password, made.user_password) == (
        again.admin,
        again.admin_password,
        again.user_password,
    )
    assert made.admin == "admin"
    assert len(made.admin_password) >= 32 and len(made.user_password) >= 8  # JupyterHub's rules
    assert made.admin_password != logins(tmp_path / "others", environment={}).admin_password


def test_without_root_there_is_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    alone = logins(tmp_path / "passwords", environment={})
    assert alone.admin == pwd.getpwuid(65534).pw_name and alone.user_password == ""
    trusted = logins(tmp_path / "passwords", environment={"DETLAB_SHARED_TRUST": "1"})
    assert trusted.admin == "admin" and trusted.user_password


def test_the_folder_is_for_one(tmp_path: Path) -> None:
    made = place(tmp_path)
    claim(made)
    with pytest.raises(AlreadyRuns, match=rf"runs already in {tmp_path} \({made.url}, pid {os.getpid()}\)"):
        claim(made)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    made = place(tmp_path, free_ports())
    check_ports(made, frozenset())
    with socket.socket() as other:
        other.bind(("127.0.0.1", made.master_port))
        other.listen()
        with pytest.raises(
            CannotStart, match=f"Port {made.master_port}, wanted for the master, cannot be had"
        ):
            check_ports(made, frozenset())
        check_ports(made, frozenset({made.master_port}))  # it is our own
