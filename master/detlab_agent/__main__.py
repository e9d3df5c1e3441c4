"""The command `detlab-agent`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from detlab_agent.config import ConfigError, load_config
from detlab_agent.daemon import hold_data_dir, run_agent
from detlab_agent.devices import DeviceError
from detlab_agent.link import LinkRefused
from detlab_agent.pythons import PythonError


def main() -> None:
    args = _parser().parse_args()
    flags = {key: value for key, value in vars(args).items() if key != "config_file"}
    try:
        config = load_config(args.config_file, flags, os.environ)
        logging.basicConfig(
            level=config.log_level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
        )
        for warning in config.warnings:
            logging.getLogger(__name__).warning(warning)
        with hold_data_dir(config.data_dir):
            asyncio.run(run_agent(config, os.environ))
    except (ConfigError, DeviceError, PythonError, LinkRefused) as e:
        sys.exit(f"detlab-agent: {e}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="detlab-agent",
        description="Runs tasks of a Detlab master on this machine. Tasks outlive the agent unless it is told otherwise.",
        epilog="Every key of agent.yaml can be given as DET_<KEY> in the environment; flags win over both.",
    )
    parser.add_argument(
        "--config-file", type=Path, help="agent.yaml (default: /etc/determined/agent.yaml if it exists)"
    )
    parser.add_argument("--master-url", help="http://host:port of the master")
    parser.add_argument("--agent-id", help="name of this agent in the cluster (default: the host's name)")
    parser.add_argument("--resource-pool", help="pool that the slots belong to (default: default)")
    parser.add_argument(
        "--slots",
        type=int,
        help="offer so many CPU slots (default: the GPUs, or else one per core, at least 2)",
    )
    parser.add_argument("--data-dir", help="folder for the tasks and what must survive a restart")
    parser.add_argument(
        "--token-file", type=Path, help="file with the master's agent token (or DET_AGENT_TOKEN)"
    )
    parser.add_argument(
        "--stop-tasks-on-exit",
        action="store_true",
        default=None,
        help="on SIGINT or SIGTERM end all tasks too; the master starts them again elsewhere",
    )
    return parser


if __name__ == "__main__":
    main()
