"""YAML text to values, and what is refused with which line."""

from typing import Any

import pytest

from detlab_master.core.expconf import ConfigErrors, parse_experiment_config


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-.5", -0.5),
        ("2.", 2.0),
        ("+1_000", 1000),
        ("0x10", 16),
        ("0o17", 15),
        ("22:22", "22:22"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("0736b6d", "0736b6d"),
        ("._", "._"),
        ("e3", "e3"),
        ("true", True),
        ("yes", True),
        ("~", None),
        ("'1'", "1"),
        ("9223372036854775807", 2**63 - 1),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_values(text: str, value: Any) -> None:
    parsed = parse_experiment_config(f"key: {text}")["key"]
    assert parsed == value and type(parsed) is type(value)


def test_keys_are_strings_as_written() -> None:
    assert parse_experiment_config("1: a\nyes: b\n1e3: c\nnull: d") == {
        "1": "a",
        "yes": "b",
        "1e3": "c",
        "null": "d",
    }


def test_merge_keys_and_aliases_are_written_out() -> None:
    text = "base: &base {a: 1, b: 2}\nhere:\n  <<: *base\n  b: 3\nthere: *base"
    assert parse_experiment_config(text) == {
        "base": {"a": 1, "b": 2},
        "here": {"a": 1, "b": 3},
        "there": {"a": 1, "b": 2},
    }


_BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)
)
_CHAIN = "a: &a0 [x]\n" + "\n".join(f"b{i}: &a{i} [*a{i - 1}]" for i in range(1, 200))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "<config>: is empty, but must be an object"),
        ("- 1", "<config>: is a list"),
        ("just words", "<config>: is a string"),
        ("a: 1\nb: 2\na: 3", "line 3, column 1: the key 'a' stands twice in one object, first in line 1"),
        ("x:\n  a: 1\n  a: 3", "line 3, column 3: the key 'a' stands twice in one object, first in line 2"),
        ("a: [1,\nb: 2", "line 2, column 5: expected ',' or ']'"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
        ("a: *nowhere", "line 1, column 4: found undefined alias 'nowhere'"),
        ("a: &a [*a]", "an alias refers to the value that contains it"),
        (_BOMB, "holds more than 50000 values, with its aliases written out"),
        (_CHAIN, "nested more than 64 deep, with its aliases written out"),
        ("a: " + "[" * 100, "nested more than 64 deep"),
        ("? [1, 2]\n: 3", "a key must be a string"),
        ("a: !!python/object/apply:os.system [ls]", "has no meaning in a configuration"),
        ("a: !!binary aGk=", "has no meaning in a configuration"),
        ("a: .inf", "line 1, column 4: .inf is not a finite number"),
        ("a: 1e999", "1e999 is not a finite number"),
        ("a: 9223372036854775808", "does not fit in 64 bits"),
        ("a: \x00", "is not valid YAML"),
        ("a: " + "x" * 600_000, "a configuration may have 524288"),
        ("a: 1\n---\nb: 2", "line 2, column 1: "),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse_experiment_config(text)
    assert len(caught.value.errors) == 1
    assert message in str(caught.value.errors[0])
    assert str(caught.value).startswith("invalid experiment configuration:")
