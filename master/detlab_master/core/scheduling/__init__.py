"""Who gets which slots, and when."""

from detlab_master.core.scheduling.explain import explain
from detlab_master.core.scheduling.priority import PriorityScheduler
from detlab_master.core.scheduling.requests import (
    Assignment,
    Decision,
    PoolConfig,
    Preempt,
    Request,
    SlotId,
    Start,
)

__all__ = [
    "Assignment",
    "Decision",
    "PoolConfig",
    "Preempt",
    "PriorityScheduler",
    "Request",
    "SlotId",
    "Start",
    "explain",
]
