"""What every command shares: usage, help, exit codes, tables."""

import subprocess
import sys

import pytest
import tabulate

from determined.cli import main, render
from determined.cli.overrides import apply, parse_value
from determined.cli.terminal import CliError
from harness.api_stub import PASSWORD, Reply, StubMaster, failure, user

from .conftest import Det


def test_importing_the_command_is_light() -> None:
    """No torch, and nothing that talks HTTP, before a command needs it: `det --help` answers at once."""
    script = "import sys, determined.cli, determined.cli.parser as p; p.build(); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    for module in ("torch", "numpy", "requests", "yaml", "tabulate"):
        assert f"'{module}'" not in loaded


def test_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "determined.cli", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["det", "0.38.1"])


def test_help_names_every_noun(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for noun in ("experiment (e)", "trial (t)", "checkpoint (c)", "user (u)", "master", "version"):
        assert noun in out
    assert "det user login" in out


@pytest.mark.parametrize(
    "argv", [[], ["trial"], ["e", "set"], ["nonsense"], ["e", "describe", "x"], ["e", "create"]]
)
def test_wrong_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert "usage: det" in captured.out + captured.err


def test_a_failure_is_1_and_one_line(master: StubMaster, det: Det) -> None:
    master.answer("GET", "/api/v1/trials/9", failure(404, "NotFound", "trial '9' not found"))
    ran = det("trial", "describe", "9")
    assert (ran.code, ran.out, ran.err) == (1, "", "trial '9' not found\n")


def test_nobody_there(det: Det) -> None:
    ran = det("-m", "127.0.0.1:9", "e", "list")
    assert ran.code == 1
    assert ran.err.startswith("cannot reach the master at http://127.0.0.1:9 (Connection refused)")
    assert "DET_MASTER" in ran.err


def test_something_else_there(master: StubMaster, det: Det) -> None:
    master.version = ""
    ran = det("-m", f"{master.url}/elsewhere", "e", "list")
    assert ran.code == 1
    assert "not as a master" in ran.err


def test_interrupted_is_3(master: StubMaster, det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(url: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("determined.cli.connect.master_info", interrupt)
    assert det("e", "list").code == 3


def test_another_version_is_a_warning(master: StubMaster, det: Det) -> None:
    master.version = "0.27.0"
    ran = det("user", "whoami")
    assert ran.code == 0
    assert "Warning: the master is of version 0.27.0" in ran.err


def test_version(master: StubMaster, det: Det) -> None:
    ran = det("version")
    assert ran.code == 0
    assert "client:\n  version: 0.38.1\n" in ran.out
    assert "  cluster_name: stub\n" in ran.out
    assert f"master_address: {master.url}\n" in ran.out


def test_master_info(master: StubMaster, det: Det) -> None:
    master.answer("GET", "/api/v1/master", {"version": "0.38.1", "clusterName": "stub"})
    assert det("master", "info").out == "version: 0.38.1\nclusterName: stub\n"
    assert det("master", "info", "--json").out == '{\n  "version": "0.38.1",\n  "clusterName": "stub"\n}\n'


def test_tables_are_presto_and_leave_names_alone(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(["ID", "Name"], [[1, "1e5"], [20, None]])
    out = capsys.readouterr().out
    assert out == "   ID | Name\n------+--------\n    1 | 1e5\n   20 |\n"
    assert tabulate.tabulate([[1]], headers=["ID"], tablefmt="presto") == "   ID\n------\n    1"


def test_times_sizes_and_durations() -> None:
    assert render.time("2026-01-02T03:04:05.678Z") == "2026-01-02 03:04:05+0000"
    assert render.time("2026-01-02T03:04:05+02:00") == "2026-01-02 01:04:05+0000"
    assert (render.time(None), render.percent(None), render.percent(0.4567)) == ("", "", "45.7%")
    assert [render.size(n) for n in (5, 2048, 5 << 20, 3 << 40)] == ["5 B", "2.0 KiB", "5.0 MiB", "3.0 TiB"]
    assert render.duration(3725.4) == "1:02:05"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("1e-3", 0.001),
        ("true", True),
        ("null", None),
        ("text", "text"),
        ("1,2,x", [1, 2, "x"]),
        ("[1, 2]", [1, 2]),
        ('"a,b"', "a,b"),
        ("'a,b'", "a,b"),
        ("{type: const, val: 3}", {"type": "const", "val": 3}),
        ("", None),
    ],
)
def test_override_values(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_override_keys() -> None:
    config = {"a": {"b": 1}, "c": None}
    for override in ("a.b=2", "a.d.e=x=y", "c.f=3"):
        apply(config, override)
    assert config == {"a": {"b": 2, "d": {"e": "x=y"}}, "c": {"f": 3}}
    with pytest.raises(CliError, match=r"a\.b is 2, which has no key 'z'"):
        apply(config, "a.b.z=1")
    for wrong in ("a", "=1", "a..b=1"):
        with pytest.raises(CliError, match="is not of the form key=value"):
            apply(config, wrong)


# Users


def test_login_keeps_the_user_and_logout_forgets(master: StubMaster, det: Det) -> None:
    master.passwords["bob"] = PASSWORD
    master.answer("POST", "/api/v1/auth/logout", {})
    ran = det("user", "login", "bob", typed=f"{PASSWORD}\n")
    assert (ran.code, ran.out) == (0, f"Logged in as 'bob' at {master.url}\n")
    assert det("user", "whoami").out == "You are logged in as user 'bob'\n"
    assert det("-u", "ada", "user", "whoami").out == "You are logged in as user 'ada'\n"
    assert det("user", "logout", "--all").out == "Logged out 'ada'\nLogged out 'bob'\n"
    assert master.requests[-1].headers["Authorization"] == "Bearer bob-token"


def test_a_wrong_password_and_no_password(master: StubMaster, det: Det) -> None:
    ran = det("user", "login", "ada", typed="wrong\n")
    assert ran.code == 1
    assert "refused the login of 'ada': wrong name or password" in ran.err
    assert "Users of a JupyterHub have no password here: type `det token create`" in ran.err
    ran = det("user", "login", "ada")
    assert ran.code == 1
    assert "no answer on standard input" in ran.err


def test_a_weak_password_is_warned_of(master: StubMaster, det: Det) -> None:
    master.passwords["bob"] = "weak"
    ran = det("user", "login", "bob", typed="weak\n")
    assert ran.code == 0
    assert "Warning: a password needs at least 8 characters" in ran.err


def test_login_that_the_environment_overrules_says_so(
    master: StubMaster, det: Det, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_USER", "task-owner")
    monkeypatch.setenv("DET_USER_TOKEN", "t")
    ran = det("user", "login", "ada", typed=f"{PASSWORD}\n")
    assert "name this user with -u ada" in ran.err


def test_token_login(master: StubMaster, det: Det) -> None:
    master.tokens["long-lived"] = "eve"
    assert det("token", "login", "long-lived").out == f"Logged in as 'eve' at {master.url}\n"
    assert det("user", "whoami").out == "You are logged in as user 'eve'\n"
    ran = det("tkn", "login", "unknown")
    assert ran.code == 1
    assert "does not know this token" in ran.err


def test_not_logged_in(master: StubMaster, det: Det) -> None:
    master.answer("POST", "/api/v1/auth/logout", Reply({}))
    assert det("user", "logout").code == 0
    ran = det("e", "list")
    assert ran.code == 1
    assert "type `det user login <name>`" in ran.err
    assert det("user", "logout").code == 1


def test_user_list_is_the_default_and_hides_the_inactive(master: StubMaster, det: Det) -> None:
    master.paged("/api/v1/users", "users", [user("ada", admin=True, displayName="Ada L.")])
    out = det("user").out
    assert master.requests[-1].query["active"] == ["true"]
    assert [c.strip() for c in out.splitlines()[0].split("|")][:4] == [
        "User Id",
        "Username",
        "Display Name",
        "Admin",
    ]
    assert [c.strip() for c in out.splitlines()[2].split("|")][:5] == ["7", "ada", "Ada L.", "True", "True"]
    det("user", "ls", "-a")
    assert "active" not in master.requests[-1].query


def test_create_user_and_change_password(master: StubMaster, det: Det) -> None:
    master.answer("POST", "/api/v1/users", {"user": user("bob", id=9)})
    master.answer("GET", "/api/v1/users/bob/by-username", {"user": user("bob", id=9)})
    master.answer("GET", "/api/v1/users/9", {"user": user("bob", id=9)})
    master.answer("PATCH", "/api/v1/users/9", {"user": user("bob", id=9)})
    assert det("user", "create", "bob", "--admin", typed=f"{PASSWORD}\n").out == "Created user 'bob'\n"
    assert master.sent("POST", "/api/v1/users")[0].body["user"]["admin"] is True
    assert det("user", "create", "bob", "--remote").code == 0
    assert "password" not in master.sent("POST", "/api/v1/users")[1].body
    assert det("user", "change-password", "bob", typed=f"{PASSWORD}\n").code == 0
    assert set(master.sent("PATCH", "/api/v1/users/9")[0].body) == {"password", "isHashed"}
    ran = det("user", "create", "bob", typed="weak\n")
    assert (ran.code, len(master.sent("POST", "/api/v1/users"))) == (1, 2)
    assert "a password needs at least" in ran.err
