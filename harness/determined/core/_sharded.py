"""One checkpoint of several processes: what each of them brings is put together, or nothing is.

The processes go in step. After each of their steps all know whether it succeeded everywhere; where it did not, it is an
error in every one of them, so that none waits for another that has given up.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from determined.core._distributed import DistributedContext
from determined.errors import StorageError

T = TypeVar("T")


def in_step(distributed: DistributedContext, step: Callable[[], T]) -> list[T]:
    """Do a step on every rank, and give each rank the results of all, in the order of the ranks.

    An error is raised as it is on its own rank, and as StorageError, with its text, on the others.
    """
    result: T | None = None
    error: Exception | None = None
    try:
        result = step()
    except Exception as e:  # noqa: BLE001 - raised below, when the others know
        error = e
    said = None if error is None else f"{type(error).__name__}: {error}"
    answers: list[Any] = distributed.allgather((result, said))
    if error is not None:
        raise error
    for rank, (_, text) in enumerate(answers):
        if text is not None:
            raise StorageError(f"the checkpoint is not saved, since rank {rank} failed: {text}")
    return [result for result, _ in answers]


def check_names(shards: Sequence[Sequence[str]]) -> None:
    """Raise ValueError where two ranks bring the same file. Folders, whose names end with a slash, they may share."""
    brought: dict[str, int] = {}
    for rank, names in enumerate(shards):
        for name in names:
            other = brought.get(name.removesuffix("/") if name.endswith("/") else f"{name}/")
            if not name.endswith("/") and other is None:
                other = brought.get(name)
            if other is not None:
                raise ValueError(
                    f"ranks {other} and {rank} both bring {name.removesuffix('/')!r} to one checkpoint: "
                    "each must write files with names of its own, for example with its rank in them"
                )
            brought.setdefault(name, rank)


def merged_metadata(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All ranks' metadata in one. Raises ValueError where two say different things under one key."""
    merged: dict[str, Any] = {}
    for rank, metadata in enumerate(shards):
        _merge(merged, metadata, "", rank)
    return merged


def _merge(into: dict[str, Any], metadata: Mapping[str, Any], path: str, rank: int) -> None:
    for key, value in metadata.items():
        if key not in into:
            into[key] = dict(value) if isinstance(value, Mapping) else value
        elif isinstance(into[key], dict) and isinstance(value, Mapping):
            _merge(into[key], value, f"{path}{key}.", rank)
        elif into[key] != value:
            raise ValueError(
                f"the checkpoint's metadata {path}{key!s} is {value!r} on rank {rank}, "
                f"and {into[key]!r} on one before it: they must agree"
            )
