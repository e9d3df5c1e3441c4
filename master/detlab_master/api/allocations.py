"""What the containers of an allocation ask and report."""

from __future__ import annotations

from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.encode import wire
from detlab_master.core.permissions import Access, Kind


class Preemption(ApiHandler):
    """A container waits for being asked to stop."""

    rules: ClassVar = {"GET": Rule(Access.REPORT, Kind.ALLOCATION)}

    async def get(self, allocation_id: str) -> None:
        query = self.query
        timeout = query.optional_number("timeoutSeconds")
        if timeout is not None and not 0 <= timeout <= 3600:
            raise query.refuse("timeoutSeconds", "it must be from 0 to 3600")
        wait = self.services.allocations.wait_preemption(allocation_id, 60.0 if timeout is None else timeout)
        self.reply({"preempt": await self.unless_gone(wait)})


class AckPreemption(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.ALLOCATION)}

    async def post(self, allocation_id: str) -> None:
        await self.services.allocations.ack_preemption(allocation_id)
        self.reply({})


class Ready(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.ALLOCATION)}

    async def post(self, allocation_id: str) -> None:
        await self.services.allocations.ready(allocation_id)
        self.reply({})


class ProxyAddress(ApiHandler):
    """A task says where it serves."""

    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.ALLOCATION)}

    async def post(self, allocation_id: str) -> None:
        address = (await self.fields()).text("proxyAddress")
        await self.services.servers.set_address(allocation_id.rpartition(".")[0], address)
        self.reply({})


class AcceleratorData(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.ALLOCATION)}

    async def post(self, allocation_id: str) -> None:
        data = (await self.fields()).child("acceleratorData")
        shown: wire.Object = {
            "acceleratorType": data.text("acceleratorType", ""),
            "acceleratorUuids": data.texts("acceleratorUuids"),
            "nodeName": data.text("nodeName", ""),
            "containerId": data.text("containerId", ""),
        }
        await self.services.allocations.accelerator_data(allocation_id, shown)
        self.reply({})


class Rendezvous(ApiHandler):
    """A container waits until all containers of its allocation run."""

    rules: ClassVar = {"GET": Rule(Access.REPORT, Kind.ALLOCATION)}

    async def get(self, allocation_id: str, resources_id: str) -> None:
        wait = self.services.allocations.rendezvous(allocation_id, resources_id)
        addresses, rank, slots = await self.unless_gone(wait)
        self.reply({"rendezvousInfo": {"addresses": addresses, "rank": rank, "slots": slots}})


class Daemon(ApiHandler):
    """The container may be killed once all others have ended well."""

    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.ALLOCATION)}

    async def post(self, allocation_id: str, resources_id: str) -> None:
        await self.services.allocations.mark_daemon(allocation_id, resources_id)
        self.reply({})
