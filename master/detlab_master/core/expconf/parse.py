"""YAML text to plain JSON values, with messages that name the line.

Read as Determined's master reads it: `1e-3` is a number, `10:30` and `2024-01-01` are strings, keys are
strings.
"""

import math
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import yaml

from detlab_master.core.expconf.errors import ConfigError, ConfigErrors

MAX_CHARACTERS = 1 << 19
MAX_VALUES = 50_000  # after aliases are written out
MAX_DEPTH = 64


def parse_experiment_config(text: str) -> dict[str, Any]:
    """The submitted configuration as JSON values. Raises ConfigErrors where it is not one YAML object."""
    return parse_yaml(text)


def parse_yaml(text: str, root: str = "<config>") -> dict[str, Any]:
    """As `parse_experiment_config`, for any object; `root` names it in messages."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigErrors(
            [ConfigError(root, f"has {len(text)} characters; a configuration may have {MAX_CHARACTERS}.")]
        )
    try:
        loader = _Loader(text)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise ConfigErrors([ConfigError(root, _marked(error))]) from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        raise ConfigErrors([ConfigError(root, f"is not valid YAML: {error}")]) from None
    if not isinstance(value, dict):
        what = "is empty" if value is None else f"is a {_kind(value)}"
        raise ConfigErrors([ConfigError(root, f"{what}, but must be an object (keys and values).")])
    return value


def parse_object(value: Mapping[str, Any], root: str = "<config>") -> dict[str, Any]:
    """A configuration that came as JSON, within the same limits as one that came as YAML. Raises ConfigErrors."""
    here: list[Any] = [value]
    left = MAX_VALUES
    for _ in range(MAX_DEPTH):
        left -= len(here)
        below = [item for v in here for item in _inside(v)]
        if len(below) > left:
            raise ConfigErrors([ConfigError(root, f"holds more than {MAX_VALUES} values")])
        for item in below:
            if isinstance(item, int) and not -(2**63) <= item < 2**63:
                raise ConfigErrors([ConfigError(root, f"the number {item} does not fit in 64 bits")])
            if isinstance(item, float) and not math.isfinite(item):
                raise ConfigErrors([ConfigError(root, f"{item} is not a finite number")])
        if not below:
            return dict(value)
        here = below
    raise ConfigErrors([ConfigError(root, f"nested more than {MAX_DEPTH} deep")])


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _marked(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    context = f" ({error.context})" if error.context and not isinstance(error, _Refused) else ""
    return f"{where}{error.problem}{context}"


def _kind(value: Any) -> str:
    return {list: "list", str: "string", bool: "boolean"}.get(type(value), "number")


class _Refused(yaml.constructor.ConstructorError):
    """Valid YAML that is no configuration."""

    def __init__(self, problem: str, node: yaml.Node) -> None:
        super().__init__(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.get_mark()
            raise yaml.constructor.ConstructorError(None, None, f"nested more than {MAX_DEPTH} deep", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def get_single_data(self) -> Any:
        node = self.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return self.construct_document(node)

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise _Refused("expected an object (keys and values)", node)
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        seen: dict[str, int] = {}
        for key in own:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused("a key must be a string", key)
            if key.value in seen:
                first = seen[key.value] + 1
                raise _Refused(
                    f"the key {key.value!r} stands twice in one object, first in line {first}", key
                )
            seen[key.value] = key.start_mark.line
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}

    def construct_document(self, node: yaml.Node) -> Any:
        return self.construct_object(node, deep=True)


def _count(node: yaml.Node, seen: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """How many values a node stands for, and how deep they are nested, with its aliases written out.

    Refuses what is too much, and what contains itself.
    """
    if id(node) in seen:
        known = seen[id(node)]
        if known is None:
            raise _Refused("an alias refers to the value that contains it", node)
        return known
    seen[id(node)] = None
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    counts = [_count(child, seen) for child in children]
    size, depth = 1 + sum(size for size, _ in counts), 1 + max((depth for _, depth in counts), default=0)
    if size > MAX_VALUES:
        raise _Refused(f"holds more than {MAX_VALUES} values, with its aliases written out", node)
    if depth > MAX_DEPTH:
        raise _Refused(f"nested more than {MAX_DEPTH} deep, with its aliases written out", node)
    seen[id(node)] = size, depth
    return size, depth


def _construct_object(loader: _Loader, node: yaml.Node) -> dict[Hashable, Any]:
    return loader.construct_mapping(node, deep=True)


def _construct_list(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    return [loader.construct_object(child, deep=True) for child in node.value]


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "")
    value = int(text, 0) if re.match(r"[-+]?0[xXoObB]", text) else int(text)
    if not -(2**63) <= value < 2**63:
        raise _Refused(f"the number {node.value} does not fit in 64 bits", node)
    return value


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = node.value.replace("_", "").lower()
    value = math.inf if "inf" in text or "nan" in text else float(text)
    if not math.isfinite(value):
        raise _Refused(f"{node.value} is not a finite number", node)
    return value


def _construct_unknown(loader: _Loader, node: yaml.Node) -> Any:
    raise _Refused(f"the tag {node.tag!r} has no meaning in a configuration", node)


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_object)
_Loader.add_constructor("tag:yaml.org,2002:seq", _construct_list)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
for _tag in ("timestamp", "binary", "omap", "pairs", "set"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct_unknown)
_Loader.add_constructor(None, _construct_unknown)

# Which plain scalars are numbers: PyYAML's own rules (YAML 1.1) take 10:30 for one and 1e-3 for none.
_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag.rpartition(":")[2] not in ("int", "float", "timestamp", "value")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"""^(?:[-+]?(?:[0-9][0-9_]*)?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
             |[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)
             |[-+]?[0-9][0-9_]*\.
             |[-+]?\.(?:inf|Inf|INF)
             |\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list("-+.0123456789"),
)
