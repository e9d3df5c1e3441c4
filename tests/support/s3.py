"""An S3 server (moto's) on a free port, and a proxy whose connections break."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3.session

from support.cluster import wait_for

KEYS = {"access_key": "AKIDEXAMPLE", "secret_key": "a-secret-that-nobody-shows"}

BUCKET = "checkpoints"


@dataclass(frozen=True)
class S3Server:
    """With one bucket, in which every user has a prefix of their own."""

    url: str
    client: Any

    def config(self, prefix: str, url: str = "") -> dict[str, Any]:
        """A `checkpoint_storage`."""
        return {"type": "s3", "bucket": BUCKET, "prefix": prefix, "endpoint_url": url or self.url, **KEYS}

    def names(self, prefix: str) -> list[str]:
        """Of the objects under the prefix, without it."""
        rows = self.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", ())
        return [row["Key"].removeprefix(f"{prefix}/") for row in rows]

    def read(self, key: str) -> bytes:
        with contextlib.closing(self.client.get_object(Bucket=BUCKET, Key=key)["Body"]) as body:
            return bytes(body.read())

    def write(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", "0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "LANG": "C"}
        )
        try:

            def address() -> str | None:
                assert process.poll() is None, log.seek(0) or log.read()
                log.seek(0)
                found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read())
                return found[1] if found else None

            url = wait_for(address, "moto's server listens", timeout=60)
            client = boto3.session.Session().client(
                "s3",
                endpoint_url=url,
                aws_access_key_id=KEYS["access_key"],
                aws_secret_access_key=KEYS["secret_key"],
                region_name="us-east-1",
            )
            with contextlib.closing(client):
                client.create_bucket(Bucket=BUCKET)
                yield S3Server(url, client)
        finally:
            process.terminate()
            process.wait(10)


class BreakingProxy:
    """Passes bytes on to a server, until a connection has had as many as it may, and breaks.

    Attributes:
        passed: bytes from clients, and from the server.
        room: how many bytes the next connections may pass, each; later ones as many as they like.
        away: whether new connections break at once.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.passed = [0, 0]
        self.room: list[int] = []
        self.away = False
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.away:
                client.close()
                continue
            server = socket.create_connection(self._target)
            self._open |= {client, server}
            room = [self.room.pop(0) if self.room else 1 << 60]
            for way, (source, target) in enumerate(((client, server), (server, client))):
                thread = threading.Thread(target=self._pass, args=(way, source, target, room), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass(self, way: int, source: socket.socket, target: socket.socket, room: list[int]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(64 << 10):
                room[0] -= len(data)
                if room[0] < 0:
                    break
                self.passed[way] += len(data)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Break all connections that are open."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for one in self._open:
            one.close()


@contextlib.contextmanager
def breaking_proxy(url: str) -> Iterator[BreakingProxy]:
    proxy = BreakingProxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
