"""A Jupyter server extension that tells the master where the server listens, as soon as it does."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from jupyter_server.extension.application import ExtensionApp

from determined.common.api import Session, errors

REPORT_SECONDS = 60.0  # for a master that is away just then


class Report(ExtensionApp):
    """Started by Jupyter once the server's socket is bound."""

    name = "detlab_spawner.report"
    load_other_extensions = True

    async def _start_jupyter_server_extension(self, serverapp: Any) -> None:
        host = f"[{serverapp.ip}]" if ":" in serverapp.ip else serverapp.ip
        address = f"{host}:{serverapp.port}"
        try:
            await asyncio.to_thread(_report, address)
        except errors.RequestFailed as error:
            self.log.critical("The master could not be told that this server is at %s: %s", address, error)
            serverapp.exit(1)


def _report(address: str) -> None:
    with Session(
        os.environ["DET_MASTER"], allocation_token=os.environ["DET_SESSION_TOKEN"], retries=10
    ) as session:
        allocation = os.environ["DET_ALLOCATION_ID"]
        session.post(f"/api/v1/allocations/{allocation}/proxy_address", {"proxyAddress": address})


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "detlab_spawner.report", "app": Report}]
