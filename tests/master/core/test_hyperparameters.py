"""Parsing, sampling and grids of hyperparameter spaces."""

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detlab_master.core import hyperparameters as hp


def grid(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return list(hp.Grid(hp.parse(raw)))


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        (5, [5]),
        ([1, 2], [[1, 2]]),
        ({"type": "const", "val": {"a": 1}}, [{"a": 1}]),
        ({"type": "categorical", "vals": ["b", "a", 3]}, ["b", "a", 3]),
        ({"type": "int", "minval": 1, "maxval": 3, "count": 9}, [1, 2, 3]),
        ({"type": "int", "minval": 0, "maxval": 5, "count": 1}, [3]),
        ({"type": "int", "minval": -5, "maxval": 0, "count": 1}, [-3]),
        ({"type": "int", "minval": 0, "maxval": 10, "count": 5}, [0, 3, 5, 8, 10]),
        ({"type": "double", "minval": 0, "maxval": 2, "count": 1}, [1.0]),
        ({"type": "double", "minval": 0, "maxval": 1, "count": 3}, [0.0, 0.5, 1.0]),
        ({"type": "log", "minval": -2, "maxval": 0, "base": 10, "count": 3}, [0.01, 0.1, 1.0]),
        ({"type": "log", "minval": 0, "maxval": 4, "base": 2, "count": 1}, [4.0]),
        ({}, [{}]),
    ],
)
def test_grid_values(raw: Any, values: list[Any]) -> None:
    assert [point["x"] for point in grid({"x": raw})] == values


def test_a_grid_is_the_product_with_the_last_name_fastest() -> None:
    raw = {
        "b": {"c": {"type": "categorical", "vals": [1, 2]}},
        "a": {"type": "int", "minval": 0, "maxval": 1, "count": 2},
        "z": "same",
    }
    assert grid(raw) == [{"a": a, "b": {"c": c}, "z": "same"} for a in (0, 1) for c in (1, 2)]


def test_branches_of_a_categorical_hold_hyperparameters_of_their_own() -> None:
    raw = {
        "optimizer": {
            "type": "categorical",
            "vals": [
                {"type": "adam", "beta": {"type": "double", "minval": 0, "maxval": 1, "count": 2}},
                {"name": "sgd"},
                "none",
            ],
        }
    }
    assert [point["optimizer"] for point in grid(raw)] == [
        {"type": "adam", "beta": 0.0},
        {"type": "adam", "beta": 1.0},
        {"name": "sgd"},
        "none",
    ]
    space, rng = hp.parse(raw), random.Random(0)
    drawn = [hp.sample(space, rng)["optimizer"] for _ in range(50)]
    assert {"name": "sgd"} in drawn and "none" in drawn
    adams = [value for value in drawn if isinstance(value, dict) and "beta" in value]
    assert adams and all(0 <= value["beta"] < 1 for value in adams)


ARCHITECTURES = {
    "net": {
        "type": "categorical",
        "vals": [
            {
                "kind": "cnn",
                "blocks": {"type": "int", "minval": 1, "maxval": 3, "count": 3},
                "norm": {"type": "categorical", "vals": ["batch", {"group": {"type": "int", "minval": 2, "maxval": 4, "count": 2}}]},
            },
            {"kind": "mlp", "width": {"type": "log", "minval": 5, "maxval": 7, "base": 2, "count": 3}},
            "linear",
        ],
    },
    "lr": {"type": "double", "minval": 0, "maxval": 1, "count": 2},
}  # fmt: skip


def test_a_grids_size_is_the_sum_over_branches() -> None:
    points = grid(ARCHITECTURES)
    assert len(points) == 2 * (3 * (1 + 2) + 3 + 1)
    assert len({str(point) for point in points}) == len(points)
    assert [point["net"] for point in points if point["lr"] == 0][-4:] == [
        {"kind": "mlp", "width": 32.0},
        {"kind": "mlp", "width": 64.0},
        {"kind": "mlp", "width": 128.0},
        "linear",
    ]


def test_keys_of_a_branch_exist_only_in_it() -> None:
    space, rng = hp.parse(ARCHITECTURES), random.Random(1)
    keys = {"cnn": {"kind", "blocks", "norm"}, "mlp": {"kind", "width"}}
    seen = set()
    for _ in range(200):
        net = hp.sample(space, rng)["net"]
        kind = net if isinstance(net, str) else net["kind"]
        seen.add(kind)
        assert kind == "linear" or set(net) == keys[kind]
    assert seen == {"cnn", "mlp", "linear"}


@pytest.mark.parametrize(
    "value",
    [
        {"type": "adam", "betas": [0.9, 0.99]},
        {"type": "log"},
        {"type": "categorical", "classes": 10},
        {"type": 3},
        {"type": None, "minval": 1},
        {"deep": {"type": "double"}, "list": [{"type": "int", "minval": 1, "maxval": 2}]},
        {},
    ],
)
def test_an_object_without_a_hyperparameter_in_it_is_a_value(value: Any) -> None:
    raw = {"x": {"type": "categorical", "vals": [value]}}
    assert [point["x"] for point in grid(raw)] == [value]
    assert hp.sample(hp.parse(raw), random.Random(0)) == {"x": value}


def test_a_grid_of_any_size_is_not_built() -> None:
    wide = {f"x{i:02}": {"type": "int", "minval": 0, "maxval": 999, "count": 1000} for i in range(5)}
    points = hp.Grid(hp.parse(wide))
    assert len(points) == 10**15
    assert points[10**15 - 1] == dict.fromkeys(wide, 999)
    assert points[1]["x04"] == 1
    assert points[-1] == points[10**15 - 1]
    wider = {f"x{i:02}": wide["x00"] for i in range(20)}
    assert hp.Grid(hp.parse(wider)).size == 10**60
    with pytest.raises(IndexError):
        points[10**15]


def test_a_grid_says_where_a_count_is_missing() -> None:
    raw = {"a": {"b": {"type": "int", "minval": 0, "maxval": 1}}, "c": {"type": "categorical", "vals": [1]}}
    assert list(hp.without_count(hp.parse(raw))) == [("a", "b")]
    with pytest.raises(hp.HyperparameterErrors, match=r"a\.b: a grid needs a count"):
        hp.Grid(hp.parse(raw))


def test_the_same_state_gives_the_same_sample_in_alphabetical_order() -> None:
    ranges: dict[str, Any] = {
        "b": {"type": "int", "minval": 1, "maxval": 6},
        "a": {"type": "double", "minval": -1, "maxval": 1},
        "c": {"type": "log", "minval": -3, "maxval": 0, "base": 10},
    }
    space = hp.parse(ranges)
    rng = random.Random(3)
    expected = {
        "a": -1 + 2 * rng.random(),
        "b": rng.randint(1, 6),
        "c": 10.0 ** (-3 + 3 * rng.random()),
    }
    assert hp.sample(space, random.Random(3)) == expected
    assert list(hp.sample(space, random.Random(3))) == ["a", "b", "c"]


_LEAF = st.one_of(
    st.integers(),
    st.builds(
        lambda a, n: {"type": "int", "minval": a, "maxval": a + n}, st.integers(-50, 50), st.integers(1, 9)
    ),
    st.builds(
        lambda a, w: {"type": "double", "minval": a, "maxval": a + w},
        st.floats(-1e3, 1e3),
        st.floats(1e-3, 1e3),
    ),
    st.builds(
        lambda a, w: {"type": "log", "base": 10, "minval": a, "maxval": a + w},
        st.floats(-5, 0),
        st.floats(0.1, 5),
    ),
    st.builds(
        lambda vals: {"type": "categorical", "vals": vals},
        st.lists(st.text() | st.booleans(), min_size=1, max_size=4),
    ),
)


def _within(raw: Any, value: Any) -> bool:
    match raw:
        case {"type": "int", "minval": low, "maxval": high}:
            return isinstance(value, int) and low <= value <= high
        case {"type": "double", "minval": low, "maxval": high}:
            return bool(low <= value < high)
        case {"type": "log", "minval": low, "maxval": high}:
            return bool(10**low * (1 - 1e-9) <= value <= 10**high * (1 + 1e-9))
        case {"type": "categorical", "vals": vals}:
            return value in vals
        case dict():
            return set(raw) == set(value) and all(_within(raw[key], value[key]) for key in raw)
    return bool(raw == value)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.dictionaries(st.text(max_size=3).filter(lambda k: k != "type"), _LEAF, max_size=4),
        lambda inner: st.dictionaries(st.text(max_size=3).filter(lambda k: k != "type"), inner, max_size=3),
        max_leaves=4,
    ),
    st.integers(0, 2**32),
)
def test_samples_lie_within_their_space(raw: dict[str, Any], seed: int) -> None:
    assert _within(raw, hp.sample(hp.parse(raw), random.Random(seed)))


def test_both_ends_of_an_int_are_drawn_and_the_upper_end_of_a_double_is_not() -> None:
    class Top(random.Random):
        def random(self) -> float:
            return math.nextafter(1.0, 0.0)

    space = hp.parse({"x": {"type": "double", "minval": 1e17, "maxval": 1e17 + 64}})
    assert hp.sample(space, Top())["x"] < 1e17 + 64
    space = hp.parse({"x": {"type": "int", "minval": 1, "maxval": 3}})
    rng = random.Random(0)
    assert {hp.sample(space, rng)["x"] for _ in range(50)} == {1, 2, 3}


@pytest.mark.parametrize(
    ("raw", "path", "message"),
    [
        (
            {"type": "itn", "minval": 1, "maxval": 2},
            "x.type",
            "'itn' is not a hyperparameter type; use const, int",
        ),
        ({"type": "itn"}, "x.type", "Did you mean 'int'?"),
        ({"type": "int", "minval": 1}, "x.maxval", "is required"),
        ({"type": "int", "minval": 1, "maxval": 2.5}, "x.maxval", "must be an integer, not 2.5"),
        ({"type": "int", "minval": 2, "maxval": 2}, "x.minval", "2 must be less than maxval, which is 2"),
        ({"type": "int", "minval": 1, "maxval": 3, "count": 0}, "x.count", "at least 1, not 0"),
        ({"type": "double", "minval": "a", "maxval": 3}, "x.minval", "must be a number, not 'a'"),
        ({"type": "double", "minval": -1e308, "maxval": 1e308}, "x.maxval", "too wide"),
        ({"type": "log", "minval": 1, "maxval": 2}, "x.base", "is required: a number"),
        ({"type": "log", "minval": 1, "maxval": 2, "base": 0}, "x.base", "0.0 must be greater than 0"),
        (
            {"type": "log", "minval": 1, "maxval": 400, "base": 10},
            "x.maxval",
            "minval and maxval are exponents",
        ),
        ({"type": "categorical", "vals": []}, "x.vals", "at least one value, not []"),
        ({"type": "const"}, "x.val", "is required"),
        ({"type": "double", "minval": 1, "maxval": 2, "cuont": 3}, "x.cuont", "Did you mean 'count'?"),
        ({"type": "categorical", "vals": [{"type": "int", "minval": 3}]}, "x.vals.0.maxval", "is required"),
        (
            {"type": "categorical", "vals": [0, {"a": {"b": {"type": "int", "min": 3, "maxval": 4}}}]},
            "x.vals.1.a.b.min",
            "Did you mean 'minval'?",
        ),
        (
            {"type": "categorical", "vals": [{"type": "log", "base": 2}]},
            "x.vals.0.maxval",
            "(To mean the object itself, write {type: const, val: ...}.)",
        ),
    ],
)
def test_mistakes_are_named_with_their_path(raw: Any, path: str, message: str) -> None:
    with pytest.raises(hp.HyperparameterErrors) as caught:
        hp.parse({"x": raw})
    found = {".".join(map(str, where)): text for where, text in caught.value.errors}
    assert message in found[path]
