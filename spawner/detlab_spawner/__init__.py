"""JupyterHub spawners that go through the master's scheduler: a notebook server waits in the same queue as a trial."""

from typing import Any

__all__ = ["DetlabSpawner"]


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: the task of a server imports this package too, and has no use for the Hub's code.
    if name == "DetlabSpawner":
        from detlab_spawner.spawner import DetlabSpawner

        return DetlabSpawner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
