"""Where submitted contexts are unpacked: small ones in a thread, large ones in a process of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from detlab_master.api import context
from detlab_master.api.received import ReceivedBody
from detlab_master.core.errors import Invalid


class Unpacker:
    """Unpacks requests that carry a context.

    Args:
        folder: for the archives; the caller takes them from there.
        at_once: large requests that are worked on at the same time; each takes some 500 MB of memory.
    """

    def __init__(self, folder: Path, at_once: int = 2) -> None:
        self._folder = folder
        self._slots = asyncio.Semaphore(at_once)

    async def unpack(self, body: ReceivedBody) -> context.Unpacked:
        """Split the request and pack its context.

        Raises:
            Invalid: what is wrong with the request or the context.
        """
        try:
            if not body.is_large:
                return await asyncio.to_thread(context.unpack, await body.whole(), self._folder)
            async with self._slots:
                return await self._in_process(body)
        except context.BadContext as error:
            raise Invalid(str(error)) from None

    async def _in_process(self, body: ReceivedBody) -> context.Unpacked:
        worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            context.__file__,
            str(self._folder),
            stdin=await body.file(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, complaints = await worker.communicate()
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        if worker.returncode != 0:
            last = complaints.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise RuntimeError(f"unpacking a context ended with code {worker.returncode}: {''.join(last)}")
        outcome = await asyncio.to_thread(json.loads, output)
        if "refused" in outcome:
            raise Invalid(outcome["refused"])
        return context.Unpacked(**outcome)
