"""The JSON Schema of configurations as people write them, for editors.

The models describe a configuration that is written out and complete. What a person may write is more: short forms,
keys of older releases, null for any key, and parts, because a template or the cluster may have the rest. So nothing
is required here but inside the items of lists, which nothing is merged into. What a schema cannot say (rules between
keys, regular expressions of RE2) the master says.
"""

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

from detlab_master.core.expconf.schema import ExperimentConfig

Schema: TypeAlias = dict[str, Any]

_REF = "#/definitions/"
_ITEMS = ("Device", "BindMount", "ProxyPort", "LogPolicy")
_INTEGER: Schema = {"type": "integer"}
_ANYTHING: Schema = {}
_EXPONENT: Schema = {"type": "number", "description": "an exponent of base"}


def json_schema() -> Schema:
    """The schema (draft 7, which every editor knows), as JSON values."""
    schema = ExperimentConfig.model_json_schema(ref_template=_REF + "{model}")
    definitions: Schema = schema.pop("$defs")
    for name, definition in definitions.items():
        _as_written(definition, keep_required=name in _ITEMS)
        if name not in _ITEMS:
            definition["type"] = ["object", "null"]
    _as_written(schema)
    _top(schema["properties"])
    _resources(definitions["ResourcesConfig"]["properties"])
    _environment(definitions)
    _log_policy(definitions["LogPolicy"])
    _searchers(schema["properties"], definitions)
    _storages(schema["properties"], definitions)
    definitions.update(_hyperparameters())
    definitions["Length"] = _length(0)
    definitions["PositiveLength"] = _length(1)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Experiment configuration",
        "description": "What `det experiment create` takes: Determined 0.38.1's, and the keys of older releases.",
        **{key: schema[key] for key in ("type", "additionalProperties", "properties")},
        "definitions": dict(sorted(definitions.items())),
    }


def _ref(name: str) -> Schema:
    return {"$ref": _REF + name}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _replace(properties: Schema, key: str, rule: Schema) -> None:
    """Another rule for a key, which keeps its description."""
    old = properties[key]
    properties[key] = {**{word: old[word] for word in ("description", "default") if word in old}, **rule}


def _deprecated(schema: Schema, why: str) -> Schema:
    return {**schema, "deprecated": True, "description": f"Of older releases: {why}."}


def _as_written(definition: Schema, *, keep_required: bool = False) -> None:
    """Any key may be null, and none has to be there."""
    definition.pop("title", None)
    required = definition.pop("required", []) if not keep_required else definition.get("required", [])
    for name, value in definition.get("properties", {}).items():
        value.pop("title", None)
        value.pop("discriminator", None)
        if name not in required or not keep_required:
            definition["properties"][name] = _or_null(value)


def _or_null(value: Schema) -> Schema:
    about = {key: value[key] for key in ("description", "default") if key in value}
    rule = {key: item for key, item in value.items() if key not in about}
    refs = [option for option in (rule, *rule.get("anyOf", [])) if "$ref" in option]
    if refs:  # the definition takes null; an editor says more of one rule than of a choice
        rule = {"allOf": refs}
    elif "const" in rule:
        rule = {"enum": [rule["const"], None]}
    elif "enum" in rule:
        rule = {"enum": [*rule["enum"], None]}
    elif isinstance(rule.get("type"), str) and rule["type"] != "null":
        rule = {**rule, "type": [rule["type"], "null"]}
    elif {"type": "null"} not in rule.get("anyOf", []) and rule != {"type": "null"}:
        rule = _either(*rule.get("oneOf", [rule]), {"type": "null"})
    return {**rule, **{key: item for key, item in about.items() if item is not None}}


def _top(properties: Schema) -> None:
    properties["hyperparameters"] = {
        **properties["hyperparameters"],
        "additionalProperties": _ref("Hyperparameter"),
    }
    for key in ("min_validation_period", "min_checkpoint_period"):
        steps = _deprecated({**_INTEGER, "minimum": 0}, "steps of 100 batches")
        _replace(properties, key, _either(_ref("Length"), steps, {"type": "null"}))
    for key in ("data_layer", "tensorboard_storage", "security", "validation_freq"):
        properties[key] = _deprecated(_ANYTHING, "has no effect")
    properties["batches_per_step"] = _deprecated(
        {"type": ["integer", "null"], "minimum": 1}, "scheduling_unit"
    )


def _resources(properties: Schema) -> None:
    device = {
        "type": "string",
        "pattern": "^[^:]+:[^:]+(:[mrw]+)?$",
        "description": "host_path:container_path, or host_path:container_path:mode",
    }
    properties["devices"]["items"] = _either(device, _ref("Device"))
    size = {
        "type": "string",
        "pattern": r"^\s*\d+(\.\d+)? ?([kKmMgGtTpP][iI]?)?[bB]?\s*$",
        "description": "such as 4 GiB",
    }
    _replace(properties, "shm_size", _either({**_INTEGER, "minimum": 0}, size, {"type": "null"}))
    properties["agent_label"] = _deprecated(_ANYTHING, "has no effect; choose a resource_pool")


def _environment(definitions: Schema) -> None:
    properties = definitions["EnvironmentConfig"]["properties"]
    for name, key in (("Images", "image"), ("Variables", "environment_variables")):
        by_kind = definitions[name]["properties"]
        short = {k: v for k, v in by_kind["cuda"].items() if k != "default"}
        by_kind["gpu"] = _deprecated(short, "cuda")
        _replace(properties, key, _either(short, _ref(name)))
    identity: Schema = {"properties": {"name": {"type": "null"}, "namespace": {"type": "null"}}}
    properties["pod_spec"]["properties"] = {"metadata": identity}
    for key in ("runtime_packages", "runtime_commands"):
        properties[key] = _deprecated(_ANYTHING, "has no effect; put it into startup-hook.sh")


def _log_policy(definition: Schema) -> None:
    action = definition["properties"]["action"]
    names = next(option["enum"] for option in action["anyOf"] if "enum" in option)
    wrapped = {
        "type": "object",
        "properties": {"type": {"enum": names}},
        "required": ["type"],
        "additionalProperties": False,
    }
    definition["properties"]["action"] = {**action, **_either({"enum": [*names, None]}, wrapped)}
    text = {"type": "string"}
    definition["anyOf"] = [
        {"required": ["name"], "properties": {"name": text}},
        {
            "required": ["pattern", "action"],
            "properties": {"pattern": text, "action": {"not": {"type": "null"}}},
        },
    ]


def _searchers(properties: Schema, definitions: Schema) -> None:
    names = _variants(properties["searcher"])
    definitions["AdaptiveSimpleConfig"] = copy.deepcopy(definitions["AdaptiveAshaConfig"])
    for name in [*names, "AdaptiveSimpleConfig"]:
        keys = definitions[name]["properties"]
        units = {**_INTEGER, "minimum": 1}
        _replace(keys, "max_length", _either(_ref("PositiveLength"), units, {"type": "null"}))
        for key in ("max_steps", "target_trial_steps"):
            keys[key] = _deprecated({"type": ["integer", "null"]}, "max_length, in steps of 100 batches")
    simple = definitions["AdaptiveSimpleConfig"]["properties"]
    simple["name"] = _deprecated({"enum": ["adaptive_simple"]}, "adaptive_asha")
    simple["train_stragglers"] = _deprecated(_ANYTHING, "has no effect")
    definitions["AdaptiveSimpleConfig"]["required"] = ["name"]
    definitions["AsyncHalvingConfig"]["properties"]["name"] = {"enum": ["async_halving", "asha", None]}
    properties["searcher"]["anyOf"].insert(len(names), _ref("AdaptiveSimpleConfig"))


def _storages(properties: Schema, definitions: Schema) -> None:
    properties["checkpoint_storage"]["description"] = "where checkpoints go, and which are kept"
    for key in ("checkpoint_path", "tensorboard_path"):
        keys = definitions["SharedFsStorage"]["properties"]
        keys[key] = _deprecated(keys["storage_path"], "storage_path")
    keys["container_path"] = _deprecated(_ANYTHING, "has no effect")


def _variants(section: Schema) -> list[str]:
    """The names of the definitions that a section may choose from."""
    return [option["$ref"].removeprefix(_REF) for option in section["anyOf"] if "$ref" in option]


def _length(minimum: int) -> Schema:
    """Exactly one unit."""
    units = ("batches", "records", "epochs")
    number = {**_INTEGER, "minimum": minimum}
    return {
        "description": "An amount of training: exactly one unit.",
        "type": "object",
        "additionalProperties": False,
        "properties": {unit: {**number, "type": ["integer", "null"]} for unit in units},
        "oneOf": [{"required": [unit], "properties": {unit: number}} for unit in units],
    }


def _hyperparameters() -> Schema:
    number: Schema = {"type": "number"}
    count: Schema = {"type": ["integer", "null"], "minimum": 1, "description": "points of a grid"}
    base = {**number, "exclusiveMinimum": 0}
    types = {
        "const": _typed("const", {"val": _ANYTHING}),
        "int": _typed("int", {"minval": _INTEGER, "maxval": _INTEGER}, count=count),
        "double": _typed("double", {"minval": number, "maxval": number}, count=count),
        "log": _typed("log", {"minval": _EXPONENT, "maxval": _EXPONENT, "base": base}, count=count),
        "categorical": _typed(
            "categorical", {"vals": {"type": "array", "minItems": 1, "items": _ref("CategoricalValue")}}
        ),
    }
    named = {f"{kind.capitalize()}Hyperparameter": schema for kind, schema in types.items()}
    by_type = [
        {"if": {"properties": {"type": {"const": kind}}}, "then": _ref(name)}
        for kind, name in zip(types, named, strict=True)
    ]
    # In a value of a categorical, an object is a hyperparameter only where it has a key of its type.
    by_type_and_key = [
        {
            "if": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"const": kind}},
                "anyOf": [{"required": [key]} for key in types[kind]["properties"] if key != "type"],
            },
            "then": _ref(name),
        }
        for kind, name in zip(types, named, strict=True)
    ]
    return {
        **named,
        "Hyperparameter": {
            "description": "A constant, a range with a type, or an object of hyperparameters.",
            "if": {"type": "object", "required": ["type"]},
            "then": {"properties": {"type": {"enum": list(types)}}, "allOf": by_type},
            "else": {"additionalProperties": _ref("Hyperparameter")},
        },
        "CategoricalValue": {
            "description": "A value, or an object with hyperparameters that exist only where it is chosen.",
            "allOf": by_type_and_key,
            "if": {"not": {"anyOf": [rule["if"] for rule in by_type_and_key]}},
            "then": {"additionalProperties": _ref("CategoricalValue")},
        },
    }


def _typed(kind: str, required: Mapping[str, Schema], **optional: Schema) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["type", *required],
        "properties": {"type": {"const": kind}, **required, **optional},
    }
