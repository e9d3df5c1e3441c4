"""The spawn page's form: resource pools with their free slots. Pure: from what the master said to HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True)
class Pool:
    """What the form says about a resource pool."""

    name: str
    description: str
    slots_total: int
    slots_used: int
    slot_type: str  # such as "cpu", "cuda"; "" when there is no slot
    default_aux: bool  # where servers without slots go
    default_compute: bool  # where servers with slots go

    @property
    def slots_free(self) -> int:
        return max(0, self.slots_total - self.slots_used)


def pool(answered: dict[str, Any]) -> Pool:
    """A pool of GET /api/v1/resource-pools."""
    return Pool(
        name=answered["name"],
        description=answered.get("description") or "",
        slots_total=answered["slotsAvailable"],
        slots_used=answered["slotsUsed"],
        slot_type=answered.get("slotType", "").removeprefix("TYPE_").removeprefix("UNSPECIFIED").lower(),
        default_aux=bool(answered.get("defaultAuxPool")),
        default_compute=bool(answered.get("defaultComputePool")),
    )


def render(pools: Sequence[Pool], trouble: str = "") -> str:
    """The form's fields, without the surrounding <form> and its button.

    Args:
        trouble: why `pools` is empty, for the user.
    """
    most = max((each.slots_total for each in pools), default=0)
    limit = f' max="{most}"' if pools else ""
    parts = [_table(pools) if pools else _trouble(trouble)]
    parts.append(
        '<div class="form-group mb-3">'
        '<label class="form-label" for="slots">Slots</label>'
        f'<input class="form-control" type="number" id="slots" name="slots" value="0" min="0"{limit} step="1"'
        ' required aria-describedby="slots-help">'
        '<small class="form-text" id="slots-help">Slots (GPUs, or CPU cores where there are none) that this server'
        " keeps for itself as long as it runs. Experiments that you submit from it get slots of their own:"
        " 0 is enough for that.</small></div>"
    )
    if len(pools) > 1:
        parts.append(_choice(pools))
    parts.append(
        '<details class="mb-3"><summary>More</summary>'
        '<div class="form-group mt-2">'
        '<label class="form-label" for="priority">Priority in the queue</label>'
        '<input class="form-control" type="number" id="priority" name="priority" min="1" max="99" step="1"'
        ' aria-describedby="priority-help">'
        '<small class="form-text" id="priority-help">1 goes first, 99 last; empty for the usual one.</small>'
        "</div></details>"
    )
    return "\n".join(parts)


def _table(pools: Sequence[Pool]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(each.name)}'
        + (f' <small class="text-muted">{escape(each.description)}</small>' if each.description else "")
        + f'</th><td class="detlab-free">{each.slots_free}</td><td>{each.slots_total}</td>'
        f"<td>{escape(each.slot_type) or '–'}</td></tr>"
        for each in pools
    )
    full = ""
    if not any(each.slots_free for each in pools):
        full = (
            '<p role="status">No slot is free at the moment: a server without slots starts at once, one with slots'
            " waits in the queue.</p>"
        )
    return (
        '<table class="table table-sm" id="detlab-pools"><caption class="caption-top">Resource pools at the moment</caption>'
        '<thead><tr><th scope="col">Pool</th><th scope="col">Free slots</th><th scope="col">All slots</th>'
        f'<th scope="col">Kind</th></tr></thead><tbody>{rows}</tbody></table>{full}'
    )


def _trouble(trouble: str) -> str:
    return (
        f'<p role="status" class="alert alert-warning">{escape(trouble)} The free slots cannot be shown;'
        " you can ask for a server all the same.</p>"
    )


def _choice(pools: Sequence[Pool]) -> str:
    options = "".join(
        f'<option value="{escape(each.name)}">{escape(each.name)} ({each.slots_free} of {each.slots_total} slots free)'
        "</option>"
        for each in pools
    )
    return (
        '<div class="form-group mb-3"><label class="form-label" for="resource_pool">Resource pool</label>'
        '<select class="form-control form-select" id="resource_pool" name="resource_pool">'
        f'<option value="">the default one</option>{options}</select></div>'
    )
