"""The proxy's table."""

from __future__ import annotations

from datetime import UTC, datetime

from detlab_hub.routes import Route, RouteTable

THEN = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def table(*paths: str) -> RouteTable:
    made = RouteTable()
    for path in paths:
        made.add(path, Route(f"http://{path}", THEN))
    return made


def found(routes: RouteTable, path: str) -> str | None:
    match = routes.find(path)
    return match and match[0]


def test_the_longest_path_wins() -> None:
    routes = table("/", "/user/anna", "/user/anna/second")
    assert found(routes, "/") == "/"
    assert found(routes, "/hub/login") == "/"
    assert found(routes, "/user/anna") == "/user/anna"
    assert found(routes, "/user/anna/") == "/user/anna"
    assert found(routes, "/user/anna/lab/tree") == "/user/anna"
    assert found(routes, "/user/anna/second/lab") == "/user/anna/second"


def test_a_path_is_matched_by_whole_names() -> None:
    routes = table("/user/ann")
    assert found(routes, "/user/anna/lab") is None
    assert found(routes, "/user") is None


def test_spelling_does_not_matter() -> None:
    routes = table("/user/anna/")
    assert routes.get("user/anna") is not None
    assert routes.remove("/user/anna")
    assert not routes.remove("/user/anna")
    assert found(routes, "/user/anna") is None


def test_activity_is_noted() -> None:
    routes = table("/user/anna")
    routes.touch("/user/anna", LATER)
    route = routes.get("/user/anna")
    assert route is not None and route.last_activity == LATER
    routes.touch("/user/bert", LATER)  # gone meanwhile
    assert list(routes.all()) == ["/user/anna"]
