"""`detlab-master`: start a master."""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import signal
import sys
from pathlib import Path

from detlab_master import app
from detlab_master.config import MasterConfig, MasterConfigError, load
from detlab_master.store.base import StoreUnavailable
from detlab_master.store.lock import DataFolderInUse, hold


def main() -> None:
    """Run until SIGINT or SIGTERM. Exits with 1 and one readable message when it cannot start."""
    parser = argparse.ArgumentParser(prog="detlab-master", description="The Detlab master.")
    parser.add_argument("--config-file", type=Path, help="master.yaml (default: /etc/determined/master.yaml)")
    parser.add_argument("--port", type=int, help="port to listen on (default: 8080)")
    parser.add_argument("--bind-ip", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--db-url", help="database (default: a SQLite file in the data folder)")
    parser.add_argument("--data-dir", type=Path, help="folder of all that is kept")
    arguments = vars(parser.parse_args())
    try:
        config, warnings = load(arguments.pop("config_file"), flags=arguments)
        level = "DEBUG" if config.log.level == "trace" else config.log.level.upper()
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        if config.log.level not in ("trace", "debug"):
            logging.getLogger("tornado.access").setLevel(
                logging.WARNING
            )  # a line per request is for debugging
        for warning in warnings:
            logging.getLogger("detlab_master").warning("%s", warning)
        with hold(config.folder, f"a master on port {config.port}"):
            asyncio.run(_serve(config))
    except (MasterConfigError, DataFolderInUse, app.PortTaken, StoreUnavailable) as error:
        print(f"detlab-master: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise
        where = error.filename or config.folder
        print(f"detlab-master: {where} cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


async def _serve(config: MasterConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with app.running(config):
        await stop.wait()


if __name__ == "__main__":
    main()
