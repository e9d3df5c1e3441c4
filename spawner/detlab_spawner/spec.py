"""From what a user asked for to what the master is asked for. Pure: no requests, no clock, no state.

Options are kept by the Hub between spawns and may come from its REST API as well as from the form, so they are validated
here whatever their way, and the request is built afresh from them each time.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRIORITIES = range(1, 100)  # 1 goes first
# Of the Hub's machine or decided by the server itself: they would be wrong where the server runs.
_NOT_FOR_TASKS = frozenset({"PATH", "PYTHONPATH", "HOME", "USER", "SHELL", "JUPYTERHUB_SERVICE_URL"})


class OptionError(ValueError):
    """Spawn options that cannot be used; the text is for the user."""


@dataclass(frozen=True)
class ServerOptions:
    """What a user may choose for a notebook server."""

    slots: int = 0
    resource_pool: str = ""  # "": the master's default
    priority: int | None = None  # None: the pool's default


def validated(options: Mapping[str, Any]) -> ServerOptions:
    """Check options in the shape of `user_options`; numbers may be strings.

    Raises:
        OptionError: an unknown option, or a value that is none.
    """
    known = ("slots", "resource_pool", "priority")
    for key in options:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise OptionError(f"there is no spawn option {str(key)!r}: {hint}")
    pool = options.get("resource_pool")
    if pool is not None and not isinstance(pool, str):
        raise OptionError(f"resource_pool is {pool!r}: it must be the name of a resource pool")
    slots = _number("slots", options.get("slots"))
    if slots is not None and slots < 0:
        raise OptionError(f"slots is {slots}: it must be 0 or more")
    priority = _number("priority", options.get("priority"))
    if priority is not None and priority not in PRIORITIES:
        raise OptionError(f"priority is {priority}: it must be from 1 (goes first) to 99")
    return ServerOptions(slots or 0, (pool or "").strip(), priority)


def _number(name: str, value: Any) -> int | None:
    if isinstance(value, str):
        value = value.strip()
        if not value:
            return None
        try:
            return int(value)
        except ValueError:
            raise OptionError(f"{name} is {value!r}: it must be a whole number") from None
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise OptionError(f"{name} is {value!r}: it must be a whole number")


def options_from_form(form: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The `user_options` of a submitted form, whose fields arrive as lists of strings.

    Raises:
        OptionError: as `validated`, so that the form is shown again with the message.
    """
    sent = {}
    for key, values in form.items():
        if key == "_xsrf":
            continue
        if len(values) != 1:
            raise OptionError(f"{key} was given {len(values)} times: it can have one value")
        sent[key] = values[0]
    options = validated(sent)
    kept: dict[str, Any] = {"slots": options.slots}
    if options.resource_pool:
        kept["resource_pool"] = options.resource_pool
    if options.priority is not None:
        kept["priority"] = options.priority
    return kept


def request_body(
    options: ServerOptions,
    *,
    task_id: str,
    username: str,
    admin: bool,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    home: str | None,
) -> dict[str, Any]:
    """The body of POST /api/v1/hub/servers.

    Args:
        task_id: a UUID of the Hub's choice: asked again with it, the master makes no second server.
        name: of a named server; "" for the user's default one.
        environment: for the server, secrets included; what belongs to the Hub's own process is left out.
        home: folder of the user that outlives the server, an absolute path; None for none.
    """
    body: dict[str, Any] = {
        "taskId": task_id,
        "username": username,
        "admin": admin,
        "name": name,
        "slots": options.slots,
        "resourcePool": options.resource_pool,
        "command": list(command),
        "environment": {key: value for key, value in environment.items() if key not in _NOT_FOR_TASKS},
        "home": home,
    }
    if options.priority is not None:
        body["priority"] = options.priority
    return body
