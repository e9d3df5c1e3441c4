"""Code in a kernel of a user's server, reached as a browser reaches it: through the Hub's proxy."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from typing import Any

import aiohttp

SUBPROTOCOL = "v1.kernel.websocket.jupyter.org"


class Kernel:
    """One kernel, and one WebSocket to it."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
        server_url: str,
        kernel_id: str,
    ) -> None:
        self._session = session
        self._server_url = server_url
        self.socket = socket
        self.id = kernel_id

    @classmethod
    async def open(cls, server_url: str, cookies: str, xsrf: str) -> Kernel:
        """Start a kernel; `server_url` is the user's, such as http://127.0.0.1:8000/user/anna."""
        session = aiohttp.ClientSession(headers={"Cookie": cookies, "X-XSRFToken": xsrf})
        try:
            async with session.post(f"{server_url}/api/kernels", json={"name": "python3"}) as answer:
                assert answer.status == 201, await answer.text()
                kernel_id = (await answer.json())["id"]
            socket = await _connect(session, server_url, kernel_id)
        except BaseException:
            await session.close()
            raise
        return cls(session, socket, server_url, kernel_id)

    async def switch(self, kernel_id: str) -> None:
        """To another kernel of the same server."""
        await self.socket.close()
        self.socket = await _connect(self._session, self._server_url, kernel_id)
        self.id = kernel_id

    async def run(self, code: str) -> str:
        """What the code prints or gives; AssertionError when it raises."""
        message_id = uuid.uuid4().hex
        header = {
            "msg_id": message_id,
            "msg_type": "execute_request",
            "username": "",
            "session": uuid.uuid4().hex,
            "date": "",
            "version": "5.4",
        }
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        await self.socket.send_bytes(_packed("shell", [header, {}, {}, content]))
        said = []
        while True:
            async with asyncio.timeout(60):
                message = await self.socket.receive()
            assert message.type is aiohttp.WSMsgType.BINARY, f"the WebSocket ended: {message}"
            sent, parent, _, content = _unpacked(message.data)
            if parent.get("msg_id") != message_id:
                continue
            if sent["msg_type"] == "stream":
                said.append(content["text"])
            elif sent["msg_type"] == "execute_result":
                said.append(content["data"]["text/plain"])
            elif sent["msg_type"] == "error":
                raise AssertionError("\n".join(content["traceback"]))
            elif sent["msg_type"] == "status" and content["execution_state"] == "idle":
                return "".join(said)

    async def close(self) -> None:
        await self.socket.close()
        await self._session.close()


async def _connect(
    session: aiohttp.ClientSession, server_url: str, kernel_id: str
) -> aiohttp.ClientWebSocketResponse:
    return await session.ws_connect(
        f"{server_url}/api/kernels/{kernel_id}/channels?session_id={uuid.uuid4().hex}",
        protocols=[SUBPROTOCOL],
        max_msg_size=0,
    )


def _packed(channel: str, parts: list[dict[str, Any]]) -> bytes:
    """A message in the v1 protocol: the number of offsets, the offsets, the channel, the parts."""
    pieces = [channel.encode(), *(json.dumps(part).encode() for part in parts)]
    offsets = [8 * (1 + len(pieces) + 1)]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    numbers = [len(offsets), *offsets]
    return b"".join([*(number.to_bytes(8, "little") for number in numbers), *pieces])


def _unpacked(message: bytes) -> list[Any]:
    count = int.from_bytes(message[:8], "little")
    offsets = [int.from_bytes(message[8 * (i + 1) : 8 * (i + 2)], "little") for i in range(count)]
    parts = [message[start:end] for start, end in itertools.pairwise(offsets[1:6])]
    return [json.loads(part) for part in parts]
