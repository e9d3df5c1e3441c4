"""Python environments of agent.yaml, and what a task of the official package sees: here a stub of that package."""

from __future__ import annotations

import json
import os
import sys
import venv
from pathlib import Path

import pytest
import yaml

from agent.fake_master import OWNER_UID, AgentProcess, FakeMaster, eventually, make_spec
from detlab_agent import namespace
from detlab_agent.drivers.ports import BLOCKS, FIRST, VARIABLES, choose_ports
from detlab_agent.protocol import FailureKind, PythonOffer
from detlab_agent.pythons import Harness, find_pythons

as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start agents under several accounts: run the tests as root"
)
needs_namespaces = pytest.mark.skipif(
    bool(namespace.refusal()), reason=f"this machine gives no mount namespace: {namespace.refusal()}"
)
LAUNCH = """
import json, os, sys
fs = "/determined_shared_fs"
open(fs + "/written", "w").close()
open("/tmp/mine", "w").close()
print(json.dumps({
    "cwd": os.getcwd(), "uid": os.getuid(), "hook": os.environ.get("HOOK"), "home": os.environ["HOME"],
    "run": sorted(os.listdir("/run/determined")), "tmp": sorted(os.listdir("/tmp")), "fs": os.listdir(fs),
    "host": sorted(os.listdir("/run")), "ports": [os.environ[name] for name in PORTS],
    "log": os.path.samefile("/run/determined/train/logs/stdout.log", "/proc/self/fd/1"),
}))
open("/dev/stderr", "w").write("INFO: by name\\n")
""".replace("PORTS", str(VARIABLES))
PREPARE = (
    "import sys; print(*sys.argv[1:], flush=True); open('startup-hook.sh', 'w').write('export HOOK=sourced')"
)


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """The prefix of an environment whose `determined` is not ours."""
    prefix = bare(tmp_path / "official")
    (site,) = prefix.glob("lib/python*/site-packages")
    (site / "determined" / "exec").mkdir(parents=True)
    (site / "determined" / "__init__.py").write_text("__version__ = '0.38.1'\n")
    (site / "determined" / "exec" / "prep_container.py").write_text(PREPARE)
    (site / "determined" / "exec" / "launch.py").write_text(LAUNCH)
    return prefix


def bare(prefix: Path) -> Path:
    venv.create(prefix)
    return prefix


def agent_yaml(folder: Path, **environments: Path) -> str:
    file = folder / "agent.yaml"
    file.write_text(
        yaml.safe_dump({"environments": {name: str(path) for name, path in environments.items()}})
    )
    file.chmod(0o644)
    return f"--config-file={file}"


async def check_what_it_sees(
    master: FakeMaster, agent: AgentProcess, storage: Path, uid: int | None
) -> list[str]:
    spec = make_spec(
        "not",
        "this",
        task_type="TRIAL",
        python_environment="lab",
        shared_fs=str(storage),
        allocation_id="7.t.1",
    )
    seen = await master.ended(master.start_spec(spec))
    lines = [line.log.rstrip() for line in seen.lines if line.stdtype == "stdout"]
    assert lines[:2] == ["--download_context_directory --resources --proxy", "--rendezvous"], seen.text
    assert ("LOG_LEVEL_INFO", "by name\n") in [(line.level, line.log) for line in seen.lines]
    said = json.loads(lines[2])
    assert said["uid"] == (OWNER_UID if uid is None else uid)
    assert (said["cwd"], said["home"]) == ("/run/determined/workdir", "/run/determined/home")
    assert said["hook"] == "sourced" and said["log"]
    assert said["run"] == ["home", "info", "tmp", "train", "workdir"]
    assert "mine" in said["tmp"]
    # The host's /tmp is not there; of it only what the task needs, if that lies there.
    assert set(said["tmp"]) <= {"mine", *(part for part in storage.parts)}
    assert said["fs"] == ["written"] and (storage / "written").exists()
    assert set(said["host"]) >= set(os.listdir("/run")) - {"determined"}
    assert not Path("/tmp/mine").exists() and not Path("/determined_shared_fs").exists()
    await eventually(lambda: not agent.folder(spec.container_id).exists())
    ports = said["ports"]
    assert isinstance(ports, list)
    return ports


@needs_namespaces
async def test_the_official_package_gets_its_fixed_paths(
    master: FakeMaster, agent: AgentProcess, official: Path, tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    storage.chmod(0o777)
    agent.start("--slots=1", agent_yaml(tmp_path, lab=official))
    assert (await master.until(lambda: master.hellos))[0].environments == (PythonOffer("lab"),)
    uid = None if os.geteuid() == 0 else os.geteuid()
    ports = await check_what_it_sees(master, agent, storage, uid)
    assert len({*ports}) == 4
    # A command is no trial: it runs as it is, with this Python.
    command = master.start("python", "-c", "import sys; print(sys.prefix)", python_environment="lab")
    assert (await master.ended(command)).text == f"{official}\n"


@as_root
@needs_namespaces
async def test_without_root_a_user_namespace_does(
    master: FakeMaster, agent: AgentProcess, official: Path, tmp_path: Path
) -> None:
    storage = agent.data_dir.parent / "storage"
    storage.mkdir()
    os.chown(storage, OWNER_UID, OWNER_UID)
    agent.start("--slots=1", agent_yaml(tmp_path, lab=official), uid=OWNER_UID)
    await master.until(lambda: master.hellos)
    await check_what_it_sees(master, agent, storage, OWNER_UID)


@as_root
async def test_without_namespaces_the_official_package_is_refused_for_good(
    master: FakeMaster, agent: AgentProcess, official: Path, tmp_path: Path
) -> None:
    config = agent_yaml(tmp_path, lab=official)
    agent.start("--slots=1", config, uid=OWNER_UID, user_namespaces=False)
    (offer,) = (await master.until(lambda: master.hellos))[0].environments
    assert "which this machine refuses (Operation not permitted): run the agent as root" in offer.refusal
    seen = await master.ended(master.start("true", task_type="TRIAL", python_environment="lab"))
    assert seen.end is not None and seen.end.failure is not None
    assert seen.end.failure.kind is FailureKind.ENVIRONMENT_UNUSABLE
    assert seen.end.failure.message == offer.refusal
    ours = await master.ended(master.start("python", "-c", "import determined.core; print('fine')"))
    assert ours.text == "fine\n", "Detlab's own package needs no namespace"


def test_which_determined_an_environment_has(official: Path, tmp_path: Path) -> None:
    broken = bare(tmp_path / "broken")
    (site,) = broken.glob("lib/python*/site-packages")
    (site / "determined.py").write_text("import no_such_module")
    pythons = find_pythons(
        {
            "lab": str(official),
            "bare": str(bare(tmp_path / "bare")),
            "broken": str(broken),
            "same": sys.prefix,
        }
    )
    assert pythons[None].harness is pythons["same"].harness is Harness.DETLAB
    assert (pythons["lab"].harness, pythons["lab"].version) == (Harness.OFFICIAL, "0.38.1")
    assert "has no `determined`: install" in pythons["bare"].refusal
    assert "environments.broken: `import determined` fails" in pythons["broken"].refusal
    assert "no_such_module" in pythons["broken"].refusal


# ---- ports


def test_parts_of_an_allocation_come_to_the_same_ports_and_others_to_others() -> None:
    first, named = choose_ports("1.t.1", (), lambda port: True)
    assert choose_ports("1.t.1", (), lambda port: True) == (first, named)
    assert list(named) == list(VARIABLES) and list(named.values()) == [str(first + i) for i in range(4)]
    second, _ = choose_ports("1.t.1", {first}, lambda port: True)
    assert second == first + 4
    third, _ = choose_ports("1.t.1", {first}, lambda port: port != second + 3)
    assert third == second + 4, "one port of the block is in use"
    assert FIRST <= first < FIRST + 4 * BLOCKS


def test_a_machine_without_free_ports_says_so() -> None:
    with pytest.raises(OSError, match="no ports are free"):
        choose_ports("1.t.1", (), lambda port: False)
