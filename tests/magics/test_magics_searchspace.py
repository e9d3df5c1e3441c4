"""What a search may choose from, as it is written in a notebook."""

import math
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from detlab_magics.searchspace import choice, const, loguniform, randint, space, uniform, varies


def test_functions_give_determineds_own_form() -> None:
    declared = {
        "learning_rate": loguniform(1e-4, 1e-1),
        "momentum": loguniform(0.5, 8, base=2, count=4),
        "width": randint(4, 24, count=3),
        "dropout": uniform(0, 0.5),
        "activation": ["relu", "gelu"],
        "depth": range(2, 5),
        "sizes": const([3, 3]),
        "optimizer": {"name": choice(("adam", "sgd")), "nesterov": True},
        "seed": {"type": "int", "minval": 0, "maxval": 9},
        "type": "resnet",
        "nothing": None,
    }
    assert space(declared) == {
        "learning_rate": {"type": "log", "base": 10.0, "minval": -4.0, "maxval": -1.0},
        "momentum": {"type": "log", "base": 2.0, "minval": -1.0, "maxval": 3.0, "count": 4},
        "width": {"type": "int", "minval": 4, "maxval": 24, "count": 3},
        "dropout": {"type": "double", "minval": 0.0, "maxval": 0.5},
        "activation": {"type": "categorical", "vals": ["relu", "gelu"]},
        "depth": {"type": "categorical", "vals": [2, 3, 4]},
        "sizes": {"type": "const", "val": [3, 3]},
        "optimizer": {"name": {"type": "categorical", "vals": ["adam", "sgd"]}, "nesterov": True},
        "seed": {"type": "int", "minval": 0, "maxval": 9},
        "type": "resnet",
        "nothing": None,
    }


def test_numbers_of_numpy_become_numbers() -> None:
    made = space({"a": np.float32(0.5), "b": list(np.linspace(0, 1, 3)), "c": np.int64(3)})
    assert yaml.safe_load(yaml.safe_dump(made)) == {
        "a": 0.5,
        "b": {"type": "categorical", "vals": [0.0, 0.5, 1.0]},
        "c": 3,
    }


def test_a_choice_of_architectures_has_hyperparameters_of_their_own() -> None:
    nets = [{"kind": "cnn", "blocks": randint(2, 5)}, {"kind": "mlp", "width": loguniform(8, 64, base=2)}]
    expected = {
        "type": "categorical",
        "vals": [
            {"kind": "cnn", "blocks": {"type": "int", "minval": 2, "maxval": 5}},
            {"kind": "mlp", "width": {"type": "log", "base": 2.0, "minval": 3.0, "maxval": 6.0}},
        ],
    }
    assert space({"net": nets}) == space({"net": choice(nets)}) == {"net": expected}
    assert varies({"net": expected})


@given(st.floats(1e-12, 1e12), st.floats(1.001, 1e6), st.floats(1.5, 100))
def test_log_exponents_are_those_of_the_ends(low: float, ratio: float, base: float) -> None:
    made = loguniform(low, low * ratio, base=base)
    assert math.isclose(base ** made["minval"], low, rel_tol=1e-9)
    assert math.isclose(base ** made["maxval"], low * ratio, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("hyperparameters", "answer"),
    [
        ({}, False),
        ({"a": 1, "b": const(2), "c": {"d": 3, "type": "resnet"}}, False),
        ({"a": [1, 2]}, True),
        ({"a": {"b": uniform(0, 1)}}, True),
    ],
)
def test_varies(hyperparameters: dict[str, Any], answer: bool) -> None:
    assert varies(space(hyperparameters)) is answer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: uniform(1, 1), r"uniform\(1, 1\): the first must be below the second"),
        (lambda: uniform(0, math.inf), "must be below"),
        (lambda: loguniform(0, 1), "both ends must be above 0"),
        (lambda: loguniform(1, 2, base=1), "base is 1; it must be above 1"),
        (lambda: randint(1, 2.5), "both ends must be whole numbers"),  # type: ignore[arg-type]
        (lambda: uniform(0, 1, count=0), "count is 0"),
        (lambda: space({"a": {"b": []}}), "a.b is an empty list"),
        (lambda: space({"a": math.nan}), "a is nan, of type float"),
        (lambda: space({"a": {1: 2}}), "the name 1 in a is not a string"),
        (lambda: space({"a": [object]}), "a is .* of type type"),
    ],
)
def test_what_cannot_be_searched(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
