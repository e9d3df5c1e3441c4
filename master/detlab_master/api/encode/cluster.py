"""Agents with their slots, and resource pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.resources.base import AgentSummary, PoolSummary, SlotSummary

_FITTING = {"best": "FITTING_POLICY_BEST", "worst": "FITTING_POLICY_WORST"}
_SCHEDULERS = {
    "priority": "SCHEDULER_TYPE_PRIORITY",
    "fair_share": "SCHEDULER_TYPE_FAIR_SHARE",
    "round_robin": "SCHEDULER_TYPE_ROUND_ROBIN",
}


def device_type(name: str) -> str:
    """devicev1Type of a slot's type."""
    return f"TYPE_{name.upper()}" if name else "TYPE_UNSPECIFIED"


def _device(slot: SlotSummary) -> Object:
    return {"id": slot.id, "brand": slot.brand, "uuid": slot.uuid, "type": device_type(slot.type)}


def _container(container_id: str, agent_id: str, slots: Sequence[SlotSummary]) -> Object:
    return {
        "id": container_id,
        "parent": agent_id,
        "state": "STATE_RUNNING",
        "devices": [_device(slot) for slot in slots if slot.container_id == container_id],
        "permissionDenied": False,
    }


def _slot(slot: SlotSummary, agent: AgentSummary) -> Object:
    used = slot.container_id is not None
    return {
        "id": str(slot.id),
        "device": _device(slot),
        "enabled": slot.enabled and agent.enabled,
        "draining": agent.draining,
        "container": _container(slot.container_id or "", agent.id, [slot]) if used else None,
    }


def _stats(slots: Sequence[SlotSummary], agent: AgentSummary) -> Object:
    states = Counter("STATE_RUNNING" for slot in slots if slot.container_id is not None)
    return {
        "total": len(slots),
        "disabled": sum(1 for slot in slots if not (slot.enabled and agent.enabled)),
        "draining": len(slots) if agent.draining else 0,
        "states": dict(states),
    }


def agent(
    summary: AgentSummary, *, everything: bool, with_slots: bool = True, with_containers: bool = True
) -> Object:
    """v1Agent.

    Args:
        everything: False hides what other people's containers are: who asks is no administrator.
    """
    slots = summary.slots
    by_brand = {brand: [s for s in slots if s.brand == brand] for brand in {s.brand for s in slots}}
    by_type = {kind: [s for s in slots if s.type == kind] for kind in {s.type for s in slots}}
    shown = [_slot(slot, summary) for slot in slots] if with_slots else []
    containers = [_container(c, summary.id, slots) for c in summary.containers] if with_containers else []
    if not everything:
        for slot in shown:
            if slot["container"] is not None:
                slot["container"] = {**slot["container"], "id": "", "devices": [], "permissionDenied": True}
        containers = []
    return {
        "id": summary.id,
        "registeredTime": timestamp(summary.registered_at),
        "slots": {slot["id"]: slot for slot in shown},
        "containers": {container["id"]: container for container in containers},
        "addresses": list(summary.addresses),
        "enabled": summary.enabled,
        "draining": summary.draining,
        "version": summary.version,
        "resourcePools": [summary.pool],
        "slotStats": {
            "brandStats": {brand: _stats(of_brand, summary) for brand, of_brand in sorted(by_brand.items())},
            "typeStats": {
                device_type(kind): _stats(of_type, summary) for kind, of_type in sorted(by_type.items())
            },
        },
    }


def pool(summary: PoolSummary, *, cluster_name: str, default_compute: bool, default_aux: bool) -> Object:
    """v1ResourcePool. What concerns clouds and Docker is there, because clients want the keys, and empty."""
    agents = max(1, summary.agents)
    return {
        "name": summary.name,
        "description": summary.description,
        "type": "RESOURCE_POOL_TYPE_STATIC",
        "numAgents": summary.agents,
        "slotsAvailable": summary.slots_total,
        "slotsUsed": summary.slots_used,
        "slotsPerAgent": summary.slots_total // agents,
        "slotType": device_type(summary.slot_type),
        "auxContainerCapacity": summary.aux_capacity_per_agent * summary.agents,
        "auxContainerCapacityPerAgent": summary.aux_capacity_per_agent,
        "auxContainersRunning": summary.aux_running,
        "defaultAuxPool": default_aux,
        "defaultComputePool": default_compute,
        "preemptible": summary.preemption,
        "schedulerType": _SCHEDULERS[summary.scheduler],
        "schedulerFittingPolicy": _FITTING[summary.fitting_policy],
        "details": {
            "aws": None,
            "gcp": None,
            "priorityScheduler": {
                "preemption": summary.preemption,
                "defaultPriority": summary.default_priority,
                "k8Priorities": [],
            },
        },
        "stats": {"queuedCount": summary.queued, "scheduledCount": summary.scheduled},
        "clusterName": cluster_name,
        "minAgents": 0,
        "maxAgents": 0,
        "maxIdleAgentPeriod": 0,
        "maxAgentStartingPeriod": 0,
        "agentDockerImage": "",
        "agentDockerNetwork": "",
        "agentDockerRuntime": "",
        "agentFluentImage": "",
        "containerStartupScript": "",
        "startupScript": "",
        "imageId": "",
        "instanceType": "",
        "location": "",
        "masterCertName": "",
        "masterUrl": "",
        "resourceManagerMetadata": {},
        "accelerator": "",
    }
