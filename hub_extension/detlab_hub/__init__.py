"""Detlab's part of JupyterHub: its configuration, its proxy, and the Hub's users as the master's users."""

from typing import Any

__all__ = ["configure"]


def __getattr__(name: str) -> Any:
    # Imported when it is asked for: the proxy and the keepers are processes that have no use for the Hub's code.
    if name == "configure":
        from detlab_hub.configuration import configure

        return configure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
