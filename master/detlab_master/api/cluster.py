"""The master itself, its agents and its resource pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.encode import cluster as encode
from detlab_master.api.paging import Paging, ordered
from detlab_master.core.permissions import Access
from detlab_master.resources.base import AgentSummary
from detlab_master.store.base import StoreUnavailable

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

_AGENT_SORTS: dict[str, Callable[[AgentSummary], Any]] = {
    "ID": lambda agent: agent.id,
    "TIME": lambda agent: agent.registered_at,
}


@dataclass(frozen=True)
class DefaultPools:
    """The pools of experiments that name none."""

    compute: str = "default"
    aux: str = "default"  # for tasks without slots


class Info(ApiHandler):
    """Read by every client when it starts."""

    rules: ClassVar = {"GET": Rule(Access.PUBLIC)}

    async def get(self) -> None:
        facts = self.services.cluster
        self.reply(
            {
                "version": facts.version,
                "master_id": facts.master_id,
                "cluster_id": facts.cluster_id,
                "cluster_name": facts.cluster_name,
                "telemetry": {"enabled": False},
                "sso_providers": [],
            }
        )


class Master(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.PUBLIC)}

    async def get(self) -> None:
        facts = self.services.cluster
        self.reply(
            {
                "version": facts.version,
                "masterId": facts.master_id,
                "clusterId": facts.cluster_id,
                "clusterName": facts.cluster_name,
                "telemetryEnabled": False,
                "externalLoginUri": "",
                "externalLogoutUri": "",
                "branding": "determined",
                "rbacEnabled": False,
                "product": "PRODUCT_COMMUNITY",
                "featureSwitches": [],
                "userManagementEnabled": True,
                "strictJobQueueControl": False,
                "hasCustomLogo": False,
                "ssoProviders": [],
                "clusterMessage": None,
            }
        )


class Health(ApiHandler):
    """For probes: 503 while the database cannot be read."""

    rules: ClassVar = {"GET": Rule(Access.PUBLIC)}

    async def get(self) -> None:
        try:
            await self.read(self.services.store.projects.project, 1)
            database = "healthy"
        except StoreUnavailable:
            database = "unhealthy"
            self.set_status(503)
        name = self.services.cluster.cluster_name
        self.reply(
            {
                "status": database,
                "database": database,
                "resource_managers": [{"cluster_name": name, "status": "healthy"}],
            }
        )


class Agents(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.LOOK)}

    async def get(self) -> None:
        query = self.query
        paging = Paging.of(query)
        key = _AGENT_SORTS[query.enum("sortBy", list(_AGENT_SORTS), "SORT_BY_") or "ID"]
        page, pagination = paging.cut(ordered(self.services.agents.agents(), key, paging.descending))
        agents = [
            encode.agent(
                summary,
                everything=self.principal.admin,
                with_slots=not query.flag("excludeSlots"),
                with_containers=not query.flag("excludeContainers"),
            )
            for summary in page
        ]
        self.reply({"agents": agents, "pagination": pagination})


class ResourcePools(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.LOOK)}

    def initialize(self, services: Services, default_pools: DefaultPools) -> None:
        super().initialize(services)
        self._defaults = default_pools

    async def get(self) -> None:
        page, pagination = Paging.of(self.query).cut(self.services.agents.pools())
        pools = [
            encode.pool(
                summary,
                cluster_name=self.services.cluster.cluster_name,
                default_compute=summary.name == self._defaults.compute,
                default_aux=summary.name == self._defaults.aux,
            )
            for summary in page
        ]
        # Pools are not bound to workspaces, so all of them are what ?unbound=true asks for.
        self.reply({"resourcePools": pools, "pagination": pagination})
