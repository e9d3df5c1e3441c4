"""Hyperparameter spaces: parsing, random sampling and grids.

A space is a tree. Its leaves are `Const`, `Int`, `Double`, `Log` and `Categorical`; an object without a
`type` key is an inner node (`Nested`). A value of a categorical may itself hold hyperparameters (a
conditional branch): they are drawn only when that value is, and a grid's points are those of all branches.

Sampling walks names in alphabetical order, so the same generator state always gives the same values.
Grid points are computed from their index; the product is never built.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias

JSON: TypeAlias = Any


class Generator(Protocol):
    """A source of randomness; `random.Random` is one. Its state belongs to the caller."""

    def random(self) -> float: ...
    def randint(self, a: int, b: int, /) -> int: ...
    def choice(self, seq: Sequence[Any], /) -> Any: ...
    def getrandbits(self, k: int, /) -> int: ...


class HyperparameterErrors(ValueError):
    """Everything wrong with a space. `errors` holds (path of keys from the space's root, message)."""

    def __init__(self, errors: list[tuple[tuple[str | int, ...], str]]) -> None:
        self.errors = errors
        super().__init__("; ".join(f"{'.'.join(map(str, path))}: {message}" for path, message in errors))


@dataclass(frozen=True)
class Const:
    val: JSON


@dataclass(frozen=True)
class Int:
    minval: int
    maxval: int  # inclusive
    count: int | None = None  # number of grid points


@dataclass(frozen=True)
class Double:
    minval: float
    maxval: float
    count: int | None = None


@dataclass(frozen=True)
class Log:
    minval: float  # exponents, not values
    maxval: float
    base: float
    count: int | None = None


@dataclass(frozen=True)
class Categorical:
    vals: tuple["Hyperparameter", ...]


@dataclass(frozen=True)
class Nested:
    members: dict[str, "Hyperparameter"] = field(default_factory=dict)  # in alphabetical order


Hyperparameter: TypeAlias = Const | Int | Double | Log | Categorical | Nested

TYPES = ("const", "int", "double", "log", "categorical")
_KEYS = {
    "const": ("val",),
    "int": ("minval", "maxval", "count"),
    "double": ("minval", "maxval", "count"),
    "log": ("minval", "maxval", "base", "count"),
    "categorical": ("vals",),
}


_AS_ITSELF = "(To mean the object itself, write {type: const, val: ...}.)"


# ---------------------------------------------------------------------------------------------------- parsing


def parse(raw: Mapping[str, JSON]) -> Nested:
    """The space that a configuration's `hyperparameters` object describes.

    Raises HyperparameterErrors with all problems together.
    """
    parser = _Parser()
    space = parser.nested(raw, ())
    if parser.errors:
        raise HyperparameterErrors(parser.errors)
    return space


class _Parser:
    def __init__(self) -> None:
        self.errors: list[tuple[tuple[str | int, ...], str]] = []

    def nested(self, raw: Mapping[str, JSON], path: tuple[str | int, ...], *, branch: bool = False) -> Nested:
        return Nested({name: self.value(raw[name], (*path, name), branch=branch) for name in sorted(raw)})

    def value(self, raw: JSON, path: tuple[str | int, ...], *, branch: bool = False) -> Hyperparameter:
        """`branch` says that we are inside a value of a categorical."""
        if not isinstance(raw, Mapping):
            return Const(raw)
        if "type" not in raw or (branch and not _is_meant(raw)):
            return self.nested(raw, path, branch=branch)
        before = len(self.errors)
        parsed = self._typed(raw, path)
        if branch and len(self.errors) > before and not self.errors[-1][1].endswith(_AS_ITSELF):
            where, message = self.errors[-1]
            self.errors[-1] = where, f"{message} {_AS_ITSELF}"
        return parsed

    def _typed(self, raw: Mapping[str, JSON], path: tuple[str | int, ...]) -> Hyperparameter:
        kind = raw["type"]
        if not isinstance(kind, str) or kind not in TYPES:
            near = get_close_matches(str(kind), TYPES, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            self._error(
                (*path, "type"), f"{kind!r} is not a hyperparameter type; use {_any_of(TYPES)}.{hint}"
            )
            return Const(None)
        for key in raw:
            if key != "type" and key not in _KEYS[kind]:
                near = get_close_matches(str(key), _KEYS[kind], 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                self._error(
                    (*path, key), f"unknown key; {kind} hyperparameters have {_all_of(_KEYS[kind])}.{hint}"
                )
        match kind:
            case "const":
                if "val" not in raw:
                    self._error((*path, "val"), "is required: the constant's value.")
                return Const(raw.get("val"))
            case "categorical":
                return self._categorical(raw, path)
            case "int":
                return self._int(raw, path)
            case "double":
                low, high = self._ends(raw, path)
                return Double(low, high, self._count(raw, path))
            case _:
                return self._log(raw, path)

    def _categorical(self, raw: Mapping[str, JSON], path: tuple[str | int, ...]) -> Categorical:
        vals = raw.get("vals")
        if "vals" not in raw:
            self._error((*path, "vals"), "is required: a list of at least one value.")
            return Categorical((Const(None),))
        if not isinstance(vals, list) or not vals:
            self._error((*path, "vals"), f"must be a list of at least one value, not {vals!r}.")
            return Categorical((Const(None),))
        return Categorical(tuple(self.value(v, (*path, "vals", i), branch=True) for i, v in enumerate(vals)))

    def _int(self, raw: Mapping[str, JSON], path: tuple[str | int, ...]) -> Int:
        ends = []
        for key in ("minval", "maxval"):
            end = raw.get(key)
            if isinstance(end, float) and end.is_integer():
                end = int(end)
            if not isinstance(end, int) or isinstance(end, bool):
                self._error(
                    (*path, key), f"must be an integer, not {end!r}." if key in raw else "is required."
                )
                return Int(0, 1)
            ends.append(end)
        if ends[0] >= ends[1]:
            self._error((*path, "minval"), f"{ends[0]} must be less than maxval, which is {ends[1]}.")
        return Int(ends[0], ends[1], self._count(raw, path))

    def _log(self, raw: Mapping[str, JSON], path: tuple[str | int, ...]) -> Log:
        low, high = self._ends(raw, path)
        base = self._number(raw, "base", path)
        if base is None:
            base = 10.0
        elif base <= 0:
            self._error((*path, "base"), f"{base!r} must be greater than 0.")
            base = 10.0
        try:
            top = max(base**low, base**high)
        except OverflowError:
            top = math.inf
        if math.isinf(top):
            self._error(
                (*path, "maxval"),
                f"base {base!r} to the power of {high!r} is too large; minval and maxval are exponents.",
            )
        return Log(low, high, base, self._count(raw, path))

    def _ends(self, raw: Mapping[str, JSON], path: tuple[str | int, ...]) -> tuple[float, float]:
        low, high = self._number(raw, "minval", path), self._number(raw, "maxval", path)
        if low is None or high is None:
            return 0.0, 1.0
        if low >= high:
            self._error((*path, "minval"), f"{raw['minval']!r} must be less than maxval, {raw['maxval']!r}.")
        if not math.isfinite(high - low):
            self._error((*path, "maxval"), f"the range from {low!r} to {high!r} is too wide for a float.")
        return low, high

    def _number(self, raw: Mapping[str, JSON], key: str, path: tuple[str | int, ...]) -> float | None:
        value = raw.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        self._error(
            (*path, key), f"must be a number, not {value!r}." if key in raw else "is required: a number."
        )
        return None

    def _count(self, raw: Mapping[str, JSON], path: tuple[str | int, ...]) -> int | None:
        count = raw.get("count")
        if count is None:
            return None
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            self._error((*path, "count"), f"must be an integer of at least 1, not {count!r}.")
            return None
        return count

    def _error(self, path: tuple[str | int, ...], message: str) -> None:
        self.errors.append((path, message))


def _is_meant(raw: Mapping[str, JSON]) -> bool:
    """Whether an object inside a value of a categorical is a hyperparameter.

    Such values were plain constants in Determined, so an object with a `type` of its own (`{type: adam, ...}`,
    `{type: log}`) stays one: it takes a type of ours, and one of that type's keys, or nearly.
    """
    kind = raw["type"]
    if not isinstance(kind, str) or kind not in TYPES:
        return False
    return any(get_close_matches(str(key), _KEYS[kind], 1) for key in raw if key != "type")


def _any_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _all_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"only {names[0]}"


# --------------------------------------------------------------------------------------------------- sampling


def sample(space: Nested, rng: Generator) -> dict[str, JSON]:
    """One point drawn at random. Integers include both ends; doubles are in [minval, maxval)."""
    return {name: _sample(member, rng) for name, member in space.members.items()}


def _sample(hp: Hyperparameter, rng: Generator) -> JSON:
    match hp:
        case Const(val):
            return val
        case Int(minval, maxval):
            return rng.randint(minval, maxval)
        case Double(minval, maxval):
            return _uniform(minval, maxval, rng)
        case Log(minval, maxval, base):
            return base ** _uniform(minval, maxval, rng)
        case Categorical(vals):
            return _sample(rng.choice(vals), rng)
        case Nested():
            return sample(hp, rng)


def _uniform(low: float, high: float, rng: Generator) -> float:
    value = low + rng.random() * (high - low)
    # Rounding can reach the open end.
    return value if value < high else math.nextafter(high, low)


# ------------------------------------------------------------------------------------------------------ grids


class Grid(Sequence[dict[str, JSON]]):
    """All points of a space, in order: the first name (alphabetically) varies slowest.

    A point is computed when asked for. Every `Int`, `Double` and `Log` of the space needs a count:
    see `without_count`.
    """

    def __init__(self, space: Nested) -> None:
        missing = list(without_count(space))
        if missing:
            raise HyperparameterErrors([(path, "a grid needs a count here.") for path in missing])
        self._root = _GridNode(space)

    @property
    def size(self) -> int:
        """How many points; `len` counts no further than `sys.maxsize`."""
        return self._root.size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"grid point {index} of {len(self)}")
        return self._root.point(index % len(self))


class _GridNode:
    def __init__(self, hp: Hyperparameter) -> None:
        self._hp = hp
        self._children: list[_GridNode] = []
        self.size: int
        match hp:
            case Nested(members):
                self._children = [_GridNode(member) for member in members.values()]
                self.size = math.prod(child.size for child in self._children)
            case Categorical(vals):
                self._children = [_GridNode(val) for val in vals]
                self.size = sum(child.size for child in self._children)
            case Int(minval, maxval, count):
                self.size = min(count or 1, maxval - minval + 1)
            case Double(count=count) | Log(count=count):
                self.size = count or 1
            case Const():
                self.size = 1

    def point(self, index: int) -> JSON:
        match self._hp:
            case Nested(members):
                values = []
                for child in reversed(self._children):
                    index, rest = divmod(index, child.size)
                    values.append(child.point(rest))
                return dict(zip(members, reversed(values), strict=True))
            case Categorical():
                for child in self._children:
                    if index < child.size:
                        return child.point(index)
                    index -= child.size
                raise IndexError("grid index out of range")
            case Const(val):
                return val
            case Int(minval, maxval):
                return _round(_spaced(minval, maxval, index, self.size))
            case Double(minval, maxval):
                return _spaced(minval, maxval, index, self.size)
            case Log(minval, maxval, base):
                return base ** _spaced(minval, maxval, index, self.size)


def without_count(hp: Hyperparameter, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of the hyperparameters that a grid search cannot enumerate."""
    match hp:
        case Int(count=None) | Double(count=None) | Log(count=None):
            yield path
        case Nested(members):
            for name, member in members.items():
                yield from without_count(member, (*path, name))
        case Categorical(vals):
            for i, val in enumerate(vals):
                yield from without_count(val, (*path, "vals", i))


def _spaced(low: float, high: float, index: int, count: int) -> float:
    """The index-th of `count` values evenly spaced from low to high; the midpoint where there is but one."""
    if count == 1:
        return low + (high - low) / 2
    return low + index * (high - low) / (count - 1)


def _round(value: float) -> int:
    """Half away from zero; the built-in rounds halves to even."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
