"""The proxy's table: which path leads where. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Route:
    """Where requests below a path go."""

    target: str  # http://host:port
    last_activity: datetime
    data: Mapping[str, Any] = field(default_factory=dict)  # what the Hub keeps with it


class RouteTable:
    """Routes by path; the longest path that a request is at or below wins. Paths are unescaped."""

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}

    def add(self, path: str, route: Route) -> None:
        self._routes[clean(path)] = route

    def remove(self, path: str) -> bool:
        """False when there is none."""
        return self._routes.pop(clean(path), None) is not None

    def get(self, path: str) -> Route | None:
        return self._routes.get(clean(path))

    def all(self) -> Mapping[str, Route]:
        return self._routes

    def find(self, path: str) -> tuple[str, Route] | None:
        """The route for a request's path (without the query), and the path that it stands at."""
        at = path
        while True:
            route = self._routes.get(clean(at))
            if route is not None:
                return clean(at), route
            if at in ("", "/"):
                return None
            at = at.rpartition("/")[0]

    def touch(self, path: str, now: datetime) -> None:
        """Something was answered by the route at this path."""
        route = self._routes.get(path)
        if route is not None:
            self._routes[path] = replace(route, last_activity=now)


def clean(path: str) -> str:
    """The one spelling of a path."""
    return "/" + path.strip("/")
