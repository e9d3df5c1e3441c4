"""What the task of a notebook server runs: `python -m detlab_spawner.server [arguments of jupyterhub-singleuser]`.

It prepares the user's home and the environment, and becomes jupyterhub-singleuser. A Jupyter extension (report.py) tells
the master the address once the server listens, so a port that somebody else caught in between is never announced.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

_EXAMPLES = "examples"  # in the home, as here: the same command lines hold in both
_MARK = Path(".detlab/examples")  # in the home, once the examples were copied
# Of Jupyter's own shape: a Python kernel that loads the magics, and a Lab that asks for no news of its own.
_JUPYTER = Path(__file__).parent / "jupyter"
_REPORT = "--ServerApp.jpserver_extensions={'detlab_spawner.report': True}"


def main() -> None:
    """Become the server; never returns."""
    home = Path(os.environ["HOME"])
    copy_examples(home)
    os.chdir(home)
    host = own_address(os.environ["DET_MASTER"])
    environment = server_environment(os.environ, host, free_port(host))
    # Not a login shell: /etc/profile would set another PATH, without `det`.
    shell = f"--ServerApp.terminado_settings={{'shell_command': [{environment['SHELL']!r}]}}"
    command = [sys.executable, "-m", "jupyterhub.singleuser", _REPORT, shell, *sys.argv[1:]]
    os.execve(sys.executable, command, environment)


def own_address(master_url: str) -> str:
    """The address of this machine on the way to the master: the loopback's where the master is here."""
    master = urlsplit(master_url)
    family, kind, protocol, _, address = socket.getaddrinfo(
        master.hostname, master.port or 443, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # of a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def server_environment(environment: Mapping[str, str], host: str, port: int) -> dict[str, str]:
    """The environment of the server, its terminals and its kernels."""
    binaries = str(Path(sys.executable).parent)  # with `det` in it
    paths = [path for path in environment.get("PATH", os.defpath).split(":") if path != binaries]
    shown_host = f"[{host}]" if ":" in host else host
    result = {
        **environment,
        "PATH": ":".join([binaries, *paths]),
        "SHELL": environment.get("SHELL", "/bin/bash"),
        "JUPYTERHUB_SERVICE_URL": f"http://{shown_host}:{port}{environment['JUPYTERHUB_SERVICE_PREFIX']}",
        "JUPYTERHUB_ROOT_DIR": environment.get("JUPYTERHUB_ROOT_DIR") or environment["HOME"],
        "JUPYTERHUB_DEFAULT_URL": environment.get("JUPYTERHUB_DEFAULT_URL") or "/lab",
    }
    if not _account_has_name():  # bash would call whoever it is "I have no name!"
        result["PROMPT_COMMAND"] = "PS1=${PS1//\\\\u/$USER}"
    result.pop("PYTHONUSERBASE", None)  # what the user installs is kept in the home
    paths_of_jupyter = ["JUPYTER_CONFIG_PATH"]
    if importlib.util.find_spec("detlab_magics") is not None:
        paths_of_jupyter.append("JUPYTER_PATH")
    for variable in paths_of_jupyter:
        known = environment.get(variable)
        result[variable] = f"{_JUPYTER}:{known}" if known else str(_JUPYTER)
    return result


def _account_has_name() -> bool:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return True


def copy_examples(home: Path, sources: Sequence[Path] | None = None) -> None:
    """Put the examples into the home's folder `examples`, once; nothing that is there already is touched.

    Args:
        sources: files and folders; None for those that come with Detlab.
    """
    mark = home / _MARK
    if mark.exists():
        return
    for source in examples() if sources is None else sources:
        target = home / _EXAMPLES / source.name
        if target.exists():
            continue
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def examples() -> list[Path]:
    """The examples that come with Detlab, in the wheel or beside the sources."""
    here = Path(__file__).resolve().parent
    for folder in (here / "examples", here.parents[1] / "examples"):
        if folder.is_dir():
            return [path for path in (folder / "digits.ipynb", folder / "digits") if path.exists()]
    return []


if __name__ == "__main__":
    main()
