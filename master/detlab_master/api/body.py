"""Typed access to what a request carries: a JSON body, a part of one, or the query string.

Names are lowerCamelCase; the same name in snake_case is accepted everywhere, because clients mix the two. Numbers may be
strings, null is the same as absent, and unknown fields are nobody's business (reference: rest-api.md 2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from detlab_master.core.errors import Invalid
from detlab_master.core.metrics import as_number

T = TypeVar("T")
_BIG = 2**63


class Fields:
    """The fields of one JSON object.

    Args:
        raw: as parsed.
        where: prefix of names in messages, such as ``"metrics."``.
    """

    def __init__(self, raw: Mapping[str, Any], where: str = "") -> None:
        self._raw = raw
        self._where = where

    def raw(self, name: str) -> Any:
        """The value as it came; None when the field is absent."""
        value = self._raw.get(name)
        return self._raw.get(snake_case(name)) if value is None else value

    def present(self, name: str) -> bool:
        """True when the field is there, even as null."""
        return name in self._raw or snake_case(name) in self._raw

    def label(self, name: str) -> str:
        """The name by which messages call the field."""
        return f"{self._where}{name}"

    def text(self, name: str, default: str | None = None) -> str:
        """A string; Invalid when it is absent and has no default."""
        value = self.optional_text(name)
        return self._or_default(name, value, default)

    def optional_text(self, name: str) -> str | None:
        value = self.raw(name)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(name, value, "a string")

    def integer(self, name: str, default: int | None = None) -> int:
        """A 64-bit integer; Invalid when it is absent and has no default."""
        return self._or_default(name, self.optional_integer(name), default)

    def optional_integer(self, name: str) -> int | None:
        value = self.raw(name)
        return None if value is None or value == "" else self._integer(name, value)

    def number(self, name: str) -> float:
        """A float; "NaN" and "Infinity" are numbers."""
        return self._or_default(name, self.optional_number(name), None)

    def optional_number(self, name: str) -> float | None:
        value = self.raw(name)
        if value is None or value == "":
            return None
        number = as_number(value)
        if number is None and isinstance(value, str):
            try:
                number = float(value)
            except ValueError:
                number = None
        if number is None:
            raise self._wrong(name, value, "a number")
        return number

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.optional_flag(name)
        return default if value is None else value

    def optional_flag(self, name: str) -> bool | None:
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false", "1", "0", ""):
            return value.lower() in ("true", "1") if value else None
        raise self._wrong(name, value, "true or false")

    def enum(self, name: str, values: Sequence[str], prefix: str) -> str | None:
        """The name of an enum's value without the prefix; None when it is absent or UNSPECIFIED.

        Args:
            values: without the prefix, in the order of their numbers; number 0 is UNSPECIFIED and not among them.
        """
        value = self.raw(name)
        return None if value is None else self._enum(name, value, values, prefix)

    def enums(self, name: str, values: Sequence[str], prefix: str) -> list[str]:
        """A list of such values, UNSPECIFIED ones left out."""
        found = [self._enum(name, value, values, prefix) for value in self.items(name)]
        return [value for value in found if value is not None]

    def timestamp(self, name: str) -> float | None:
        """An RFC 3339 time as Unix seconds; None when it is absent."""
        value = self.raw(name)
        if value is None or value == "":
            return None
        try:
            # Nine digits are allowed, six are what Python reads.
            time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))
        except (TypeError, ValueError):
            raise self._wrong(name, value, "a time such as 2026-01-31T12:00:00Z") from None
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()

    def object(self, name: str) -> dict[str, Any]:
        """A JSON object with keys of its own; empty when it is absent."""
        value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return value

    def child(self, name: str) -> Fields:
        """A message inside the message; empty when it is absent."""
        return Fields(self.object(name), f"{self.label(name)}.")

    def children(self, name: str) -> list[Fields]:
        """A list of messages."""
        found = []
        for index, item in enumerate(self.items(name)):
            if not isinstance(item, dict):
                raise self._wrong(f"{name}[{index}]", item, "an object")
            found.append(Fields(item, f"{self.label(name)}[{index}]."))
        return found

    def items(self, name: str) -> list[Any]:
        """A list of anything; empty when it is absent."""
        value = self.raw(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings."""
        for index, item in enumerate(self.items(name)):
            if not isinstance(item, str):
                raise self._wrong(f"{name}[{index}]", item, "a string")
        return self.items(name)

    def integers(self, name: str) -> list[int]:
        """A list of integers."""
        return [self._integer(f"{name}[{index}]", item) for index, item in enumerate(self.items(name))]

    def sizes(self, name: str) -> dict[str, int]:
        """A map from paths to bytes."""
        return {path: self._integer(f"{name}[{path!r}]", size) for path, size in self.object(name).items()}

    def refuse(self, name: str, why: str) -> Invalid:
        """The error to raise for a field's value that cannot be taken."""
        return Invalid(f"{self.label(name)} is {_shown(self.raw(name))}: {why}")

    def _integer(self, name: str, value: Any) -> int:
        from_text = isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,19}\s*", value)
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        number = int(value) if from_text or whole else None
        if number is None or not -_BIG <= number < _BIG:
            raise self._wrong(name, value, "an integer")
        return number

    def _enum(self, name: str, value: Any, values: Sequence[str], prefix: str) -> str | None:
        names = ["UNSPECIFIED", *values]
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
            value = names[value]
        short = value.removeprefix(prefix) if isinstance(value, str) else value
        if short in ("", "UNSPECIFIED"):
            return None
        if short not in names:
            raise self._wrong(name, value, "one of " + ", ".join(prefix + n for n in values))
        return str(short)

    def _or_default(self, name: str, value: T | None, default: T | None) -> T:
        if value is not None:
            return value
        if default is None:
            raise Invalid(f"{self.label(name)} is missing: it is required")
        return default

    def _wrong(self, name: str, value: Any, expected: str) -> Invalid:
        return Invalid(f"{self.label(name)} is {_shown(value)}: expected {expected}")


class Query(Fields):
    """The query string. A list is a repeated key; of a single value that is repeated the last one counts."""

    def __init__(self, arguments: Mapping[str, Sequence[bytes]]) -> None:
        super().__init__(
            {name: [v.decode("utf-8", "replace") for v in values] for name, values in arguments.items()}
        )

    def raw(self, name: str) -> Any:
        values = super().raw(name)
        return values[-1] if values else None

    def items(self, name: str) -> list[Any]:
        return list(super().raw(name) or [])


def snake_case(name: str) -> str:
    """``trialRunId`` as ``trial_run_id``; parts between dots are treated alike."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), name)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
