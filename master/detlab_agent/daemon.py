"""The agent as a process: performs what machine.py decides, and feeds back what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import logging
import os
import signal
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from detlab_agent import machine
from detlab_agent.config import AgentConfig, ConfigError
from detlab_agent.devices import SlotEnvironment, core_count, find_devices
from detlab_agent.drivers.base import Driver, StartError
from detlab_agent.drivers.process import ProcessDriver
from detlab_agent.link import Link, LinkConfig, LinkRefused
from detlab_agent.logs import LogShipper
from detlab_agent.protocol import ContainerSpec, Failure, Isolation, PythonOffer
from detlab_agent.pythons import find_pythons
from detlab_agent.shim import boot_id, write_json

log = logging.getLogger(__name__)

REPORT_SECONDS = 5.0  # what an agent that stops with its tasks waits for the master to take note
_INHERITED = (
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)


class Daemon:
    """One agent. `run` once."""

    def __init__(self, config: AgentConfig, driver: Driver, state: machine.State) -> None:
        self._config = config
        self._driver = driver
        self._state = state
        self._shippers: dict[str, LogShipper] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._events: deque[machine.Event] = deque()
        self._performing = False
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._link = Link(
            LinkConfig(
                config.master_url,
                config.agent_id,
                config.token,
                config.tls,
                config.reconnect_attempts,
                config.reconnect_backoff,
            ),
            on_connected=lambda addresses: self._handle(machine.Connected(addresses)),
            on_message=lambda message: self._handle(machine.Received(message)),
            on_disconnected=self._on_disconnected,
        )

    async def run(self) -> None:
        """Returns after SIGTERM or SIGINT. LinkRefused when the master will not have this agent."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        for found in self._driver.adopt():
            log.info("found container %s of an earlier run", found.spec.container_id)
            self._handle(machine.Adopted(found.spec, found.killed_by))
        link = asyncio.create_task(self._link.run())
        stopped = asyncio.create_task(stop.wait())
        try:
            await self._until(lambda: link.done() or stopped.done(), link, stopped)
            if stopped.done() and self._config.stop_tasks_on_exit:
                stop.clear()
                await self._stop_tasks(asyncio.create_task(stop.wait()))
        finally:
            self._link.close()
            await _cancel(link, stopped, *self._watches.values(), *self._background)

    async def _stop_tasks(self, again: asyncio.Task[bool]) -> None:
        """Ends all tasks and gives the master a moment to take note. A second signal cuts it short."""
        log.info("ending %d tasks", self._state.alive)
        self._handle(machine.StopRequested())
        await self._until(lambda: self._state.alive == 0 or again.done(), again)
        if not again.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._until(
                        lambda: not self._state.containers or not self._state.welcomed or again.done(), again
                    )
        if self._state.containers:
            log.info(
                "the master is told of %d tasks when this agent starts again", len(self._state.containers)
            )
        await _cancel(again)

    async def _until(self, condition: Any, *also: asyncio.Task[Any]) -> None:
        """Waits for `condition`, which may change with the state and when a task of `also` ends; raises what failed."""
        for task in also:
            task.add_done_callback(lambda _: self._changed.set())
        while True:
            if self._failure is not None:
                raise self._failure
            for task in also:
                if task.done() and not task.cancelled() and (error := task.exception()):
                    raise error
            if condition():
                return
            self._changed.clear()
            await self._changed.wait()

    # ---- decide, then do

    def _handle(self, event: machine.Event) -> None:
        """Takes one event; those that its effects cause are taken in turn, after it."""
        self._events.append(event)
        if self._performing:
            return
        self._performing = True
        try:
            while self._events:
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                self._state, effects = machine.step(self._state, self._events.popleft(), now)
                for effect in effects:
                    self._perform(effect)
        finally:
            self._performing = False
            self._changed.set()

    def _perform(self, effect: machine.Effect) -> None:
        match effect:
            case machine.Send(message):
                self._link.send(message)
            case machine.Start(spec):
                self._start(spec)
            case machine.Watch(spec):
                self._watch(spec)
            case machine.Kill(container_id, grace_seconds, reason):
                log.info("ending container %s (%s)", container_id, reason)
                self._driver.kill(container_id, grace_seconds, reason)
            case machine.Forget(container_id):
                self._forget(container_id)
            case machine.RememberOwner(owner):
                write_json(str(owner_file(self._config.data_dir)), owner)
            case machine.ResumeLogs():
                for shipper in self._shippers.values():
                    shipper.resume()
            case machine.PauseLogs():
                for shipper in self._shippers.values():
                    shipper.pause()
            case machine.NoteAckedLogs(container_id, offset):
                if container_id in self._shippers:
                    self._shippers[container_id].acked(offset)
            case machine.Leave(reason, permanent):
                if permanent:
                    self._failure = LinkRefused(f"the master does not take this agent: {reason}")
                else:
                    self._link.complain(f"the master does not take this agent now: {reason}; trying again")
                    self._link.close()

    def _start(self, spec: ContainerSpec) -> None:
        try:
            self._driver.start(self._with_agent_settings(spec))
        except StartError as e:
            log.warning("container %s: %s", spec.container_id, e)
            self._handle(machine.StartFailed(spec.container_id, Failure(e.kind, str(e))))
            return
        log.info("started container %s of %s for %s", spec.container_id, spec.task_id, spec.owner)
        self._handle(machine.Started(spec.container_id))
        self._watch(spec)

    def _with_agent_settings(self, spec: ContainerSpec) -> ContainerSpec:
        """`container_master_host` and `_port` replace the address that the master names."""
        url = self._config.container_master_url
        if url is None:
            return spec
        parts = urlsplit(url)
        environment = {
            **spec.environment,
            "DET_MASTER": url,
            "DET_MASTER_ADDR": str(parts.hostname),
            "DET_MASTER_HOST": str(parts.hostname),
            "DET_MASTER_PORT": str(parts.port),
        }
        return dataclasses.replace(spec, environment=environment)

    def _watch(self, spec: ContainerSpec) -> None:
        container_id = spec.container_id
        shipper = LogShipper(spec, self._driver.folder(container_id), self._link.send)
        if self._state.welcomed:
            shipper.resume()
        self._shippers[container_id] = shipper
        watch = asyncio.create_task(self._watch_to_the_end(container_id, shipper))
        watch.add_done_callback(self._note_failure)
        self._watches[container_id] = watch

    async def _watch_to_the_end(self, container_id: str, shipper: LogShipper) -> None:
        shipping = asyncio.create_task(shipper.run())
        shipping.add_done_callback(self._note_failure)
        try:
            ended = await self._driver.ended(container_id)
            log.info("container %s ended: %s", container_id, ended.message or f"exit code {ended.exit_code}")
            self._handle(machine.ContainerEnded(container_id, ended))
            if container_id not in self._watches:  # nobody wants it: it was forgotten at once
                return
            shipper.end(ended.lines)
            await shipping
        finally:
            await _cancel(shipping)
        self._handle(machine.LogsDelivered(container_id))

    def _forget(self, container_id: str) -> None:
        self._shippers.pop(container_id, None)
        watch = self._watches.pop(container_id, None)
        if watch is not None and watch is not asyncio.current_task():
            watch.cancel()
        self._in_background(self._driver.forget(container_id))

    # ---- around it

    def _on_disconnected(self) -> None:
        self._handle(machine.Disconnected())
        if self._config.on_connection_lost:
            self._in_background(_run_hook(self._config.on_connection_lost))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(self._note_failure)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._failure = self._failure or error
            self._changed.set()


async def _run_hook(command: tuple[str, ...]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(*command)
    except OSError as e:
        log.error("hooks.on_connection_lost: %s cannot be run: %s", command[0], e.strerror)
        return
    if code := await process.wait():
        log.error("hooks.on_connection_lost: %s ended with exit code %d", command[0], code)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- wiring ----------------------------------------------------------------------------------------------------


def owner_file(data_dir: Path) -> Path:
    """Says which Detlab user an agent without isolation belongs to."""
    return data_dir / "owner.json"


@contextlib.contextmanager
def hold_data_dir(data_dir: Path) -> Iterator[None]:
    """One agent a data folder: ConfigError names the other one."""
    data_dir.mkdir(parents=True, exist_ok=True)
    fd = os.open(data_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 100).decode() or "another process"
            raise ConfigError(
                f"the folder {data_dir} is in use by {holder}: end that agent, or give another --data-dir"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"the agent with pid {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(fd)


async def run_agent(config: AgentConfig, environ: Mapping[str, str]) -> None:
    """Wires one agent together and runs it until it is told to end."""
    devices = find_devices(config.agent_id, config.slot_type, config.slots, config.visible_gpus)
    isolation = Isolation.UNIX_ACCOUNT if os.geteuid() == 0 else Isolation.NONE
    pythons = find_pythons(config.environments)
    driver = ProcessDriver(
        config.data_dir,
        pythons,
        base_environment(config, environ),
        SlotEnvironment(config.agent_id, devices, core_count()),
        keep_folders=config.keep_folders,
    )
    identity = machine.Identity(
        config.agent_id,
        config.resource_pool,
        importlib.metadata.version("detlab"),
        boot_id(),
        devices,
        isolation,
        tuple(PythonOffer(name, python.refusal) for name, python in pythons.items() if name is not None),
        config.shared_trust,
    )
    owner = owner_file(config.data_dir)
    state = machine.State(identity, json.loads(owner.read_text()) if owner.exists() else None)
    kinds = ", ".join(sorted({device.type for device in devices})) or "none"
    log.info(
        "agent %s in pool %s: %d slots (%s), tasks in %s",
        config.agent_id,
        config.resource_pool,
        len(devices),
        kinds,
        config.data_dir,
    )
    if isolation is Isolation.NONE and not config.shared_trust:
        log.warning(
            "not running as root: this agent takes the tasks of one user only%s",
            f", {state.owner}" if state.owner else "",
        )
    await Daemon(config, driver, state).run()


def base_environment(config: AgentConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """What every task gets of the agent's environment: named here, so that no secret slips through."""
    inherited = {k: v for k, v in environ.items() if k in _INHERITED or k.startswith("LC_")}
    proxies = {name: value for key, value in config.proxies.items() for name in (key, key.upper())}
    return inherited | proxies
