"""What `configure` hands on to the parts."""

from __future__ import annotations

from pathlib import Path

import yaml
from traitlets.config import Config

from detlab_hub import configure


def test_the_agents_own_keys(tmp_path: Path) -> None:
    c = Config()
    configure(c, folder=tmp_path, agent={"environments": {"lab": "/opt/lab"}})
    file = tmp_path / "hub" / "agent.yaml"
    assert yaml.safe_load(file.read_text()) == {"environments": {"lab": "/opt/lab"}}
    assert file.stat().st_mode & 0o777 == 0o600
    (agent,) = [service for service in c.JupyterHub.services if service["name"] == "agent"]
    command = agent["command"]
    assert command[command.index("--config-file") + 1] == str(file)


def test_without_any_the_agent_looks_for_its_file_itself(tmp_path: Path) -> None:
    c = Config()
    configure(c, folder=tmp_path)
    (agent,) = [service for service in c.JupyterHub.services if service["name"] == "agent"]
    assert "--config-file" not in agent["command"]
