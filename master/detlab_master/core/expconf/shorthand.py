"""Short forms of values, written out: afterwards every key has one shape, and merging needs to know no other.

What has the wrong type is left as it is, for the models to complain about.
"""

import re
from collections.abc import Callable
from typing import Any

_KINDS = ("cpu", "cuda", "rocm")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?) ?(?:([kmgtp])i?)?b?$", re.IGNORECASE)


def write_out(config: dict[str, Any]) -> dict[str, Any]:
    """A copy of a configuration (or part of one) without short forms and without keys set to null."""
    config = _without_nulls(config, _FREE)
    _at(config, ("environment", "image"), _images)
    _at(config, ("environment", "environment_variables"), _variables)
    _at(config, ("resources", "devices"), _devices)
    _at(config, ("resources", "shm_size"), _bytes)
    _at(config, ("log_policies",), _log_policies)
    return config


# Free-form values, in which null is a value.
_FREE: dict[str, Any] = {
    "data": True,
    "hyperparameters": True,
    "environment": {"pod_spec": True},
    "integrations": {"pachyderm": True},
}


def _without_nulls(value: dict[str, Any], free: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, item in value.items():
        below = free.get(key, {})
        if item is None:
            continue
        if isinstance(item, dict) and below is not True:
            kept[key] = _without_nulls(item, below)
        elif isinstance(item, list) and below is not True:
            kept[key] = [_without_nulls(entry, {}) if isinstance(entry, dict) else entry for entry in item]
        else:
            kept[key] = item
    return kept


def _at(config: dict[str, Any], path: tuple[str, ...], change: Callable[[Any], Any]) -> None:
    *above, last = path
    here: Any = config
    for key in above:
        here = here.get(key)
        if not isinstance(here, dict):
            return
    if last in here:
        here[last] = change(here[last])


def _images(image: Any) -> Any:
    if isinstance(image, str):
        return dict.fromkeys(_KINDS, image)
    return _gpu_is_cuda(image)


def _variables(variables: Any) -> Any:
    if isinstance(variables, list):
        return {kind: list(variables) for kind in _KINDS}
    return _gpu_is_cuda(variables)


def _gpu_is_cuda(by_kind: Any) -> Any:
    if isinstance(by_kind, dict) and "gpu" in by_kind:
        by_kind = dict(by_kind)
        gpu = by_kind.pop("gpu")
        by_kind.setdefault("cuda", gpu)
    return by_kind


def _devices(devices: Any) -> Any:
    return [_device(device) for device in devices] if isinstance(devices, list) else devices


def _device(device: Any) -> Any:
    if not isinstance(device, str):
        return device
    parts = device.split(":")
    if len(parts) not in (2, 3):
        return device
    return dict(zip(("host_path", "container_path", "mode"), parts, strict=False))


def _bytes(size: Any) -> Any:
    if not isinstance(size, str) or not (match := _SIZE.match(size.strip())):
        return size
    # As Docker reads sizes of memory: k is 1024, with or without an i.
    number, prefix = match.groups()
    power = "kmgtp".index(prefix.lower()) + 1 if prefix else 0
    return int(float(number) * 1024**power)


def _log_policies(policies: Any) -> Any:
    return [_log_policy(policy) for policy in policies] if isinstance(policies, list) else policies


def _log_policy(policy: Any) -> Any:
    """Older policies wrap their action: `{type: cancel_retries}`."""
    if (
        isinstance(policy, dict)
        and isinstance(policy.get("action"), dict)
        and set(policy["action"]) == {"type"}
    ):
        return {**policy, "action": policy["action"]["type"]}
    return policy
