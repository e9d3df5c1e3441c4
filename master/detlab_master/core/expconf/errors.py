"""Configuration errors, in words for the person who wrote the configuration."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from detlab_master.core.expconf.base import show

# Keys that people write where another is meant, too far apart for the nearest spelling.
_MEANT = {
    ("resources", "slots"): "slots_per_trial",
    ("hparams",): "hyperparameters",
    ("searcher", "max_concurrent"): "max_concurrent_trials",
}

# Keys that have short forms, which the models never see (`shorthand.py`).
_FORMS = {
    (
        "environment",
        "environment_variables",
    ): "a list of NAME=VALUE, or an object of such lists for cpu, cuda, rocm",
    ("environment", "image"): "the name of an image, or an object of such names for cpu, cuda, rocm",
    ("resources", "devices"): "host_path:container_path or host_path:container_path:mode, or an object",
    ("resources", "shm_size"): "a number of bytes, or a size such as 4 GiB",
}


@dataclass(frozen=True)
class ConfigError:
    path: str  # such as <config>.searcher.metric
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ConfigErrors(ValueError):
    """All that is wrong with a configuration."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = list(errors)
        super().__init__(
            "invalid experiment configuration:\n" + "\n".join(f"  {error}" for error in self.errors)
        )


def path_of(loc: Iterable[str | int], root: str = "<config>") -> str:
    path = root
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def from_pydantic(
    error: ValidationError, model: type[BaseModel], root: str = "<config>", *, missing: bool = True
) -> list[ConfigError]:
    """One message for each problem that validating `model` found; without `missing`, not for absent keys."""
    found = []
    for detail in error.errors(include_url=False):
        kind = detail["type"]
        if not missing and kind in ("missing", "union_tag_not_found"):
            continue
        loc, owner = _locate(detail["loc"], model)
        message = _message(kind, dict(detail), loc, owner)
        if kind in ("union_tag_not_found", "union_tag_invalid"):
            loc = [*loc, detail["ctx"]["discriminator"].strip("'")]
        found.append(ConfigError(path_of(loc, root), message))
    return _once(found)


def _once(errors: list[ConfigError]) -> list[ConfigError]:
    """A list of variables stands for three (`shorthand.py`); what is wrong with it is said once."""
    kinds = re.compile(r"(\.environment_variables)\.(?:cpu|cuda|rocm)(\[.*)")
    short = [ConfigError(kinds.sub(r"\1\2", error.path), error.message) for error in errors]
    return list(
        dict.fromkeys(
            brief if short.count(brief) == 3 else error for error, brief in zip(errors, short, strict=True)
        )
    )


def _message(kind: str, detail: dict[str, Any], loc: list[str | int], owner: type[BaseModel] | None) -> str:
    value = detail["input"]
    context = detail.get("ctx", {})
    names = tuple(part for part in loc if isinstance(part, str))
    match kind:
        case "missing":
            field = owner.model_fields.get(str(loc[-1])) if owner else None
            return _required(field)
        case "extra_forbidden":
            return unknown_key(loc, owner.model_fields if owner else ())
        case "union_tag_not_found":
            return "is required: it says which keys may stand here."
        case "union_tag_invalid":
            allowed = context["expected_tags"].replace("'", "").split(", ")
            near = get_close_matches(str(context["tag"]), allowed, 1)
            return (
                f"{show(context['tag'])} is not known here; use one of {', '.join(allowed)}."
                + _did_you_mean(near)
            )
        case "literal_error":
            allowed = [name.strip("'") for name in context["expected"].replace(" or ", ", ").split(", ")]
            near = get_close_matches(str(value), allowed, 1)
            return f"is {show(value)}, but must be {context['expected']}." + _did_you_mean(near)
        case "value_error":
            # Objects are not shown: they may hold passwords.
            return (
                f"{context['error']}."
                if isinstance(value, dict)
                else f"is {show(value)}: {context['error']}."
            )
        case "string_too_short":
            return f"is {show(value)}, but must be a string of at least {_count(context, 'character')}."
        case "too_short":
            return f"is {show(value)}, but must be a list of at least {_count(context, 'item')}."
        case "none_required":
            return f"is {show(value)}, but this key is no longer used; remove it."
        case "model_type" | "model_attributes_type" | "dict_type" if names not in _FORMS:
            return f"is {show(value)}, but must be an object (keys and values)."
    if names in _FORMS:
        return f"is {show(value)}, but must be {_FORMS[names]}."
    expectation = detail["msg"].replace("Input should be ", "must be ").replace("a valid ", "a ")
    expectation = expectation[0].lower() + expectation[1:]
    expectation = expectation.replace("a integer", "an integer").replace("valid boolean", "boolean")
    return (
        f"is {show(value)}, but {expectation}."
        if expectation.startswith("must")
        else f"is {show(value)}: {expectation}."
    )


def _count(context: dict[str, Any], thing: str) -> str:
    number = context["min_length"]
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _required(field: FieldInfo | None) -> str:
    return f"is required: {field.description}." if field and field.description else "is required."


def unknown_key(loc: list[str | int], known: Iterable[str]) -> str:
    """What to say of the key that `loc` ends in, where only the known ones may stand."""
    known = sorted(known)
    key = str(loc[-1])
    names = tuple(part for part in loc if isinstance(part, str))
    meant = [_MEANT[names]] if names in _MEANT else get_close_matches(key, known, 1)
    return f"unknown key; known here: {', '.join(known)}." + _did_you_mean(meant)


def _did_you_mean(near: list[str]) -> str:
    return f" Did you mean {near[0]!r}?" if near else ""


def _locate(
    loc: tuple[str | int, ...], model: type[BaseModel]
) -> tuple[list[str | int], type[BaseModel] | None]:
    """The path as the user knows it, without the tags of unions, and the model that owns its last key."""
    path: list[str | int] = []
    here: list[type[BaseModel]] = [model]
    owner: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, str) and part.startswith("<"):
            continue
        if len(here) > 1:  # a union: the part is the tag of one of its members
            here = [member for member in here if _tag_of(member) == part]
            continue
        owner = here[0] if here else owner
        if isinstance(part, str) and here:
            field = here[0].model_fields.get(part)
            here = _models_in(field.annotation) if field else []
        path.append(part)
    return path, owner


def _tag_of(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("name") or model.model_fields.get("type")
    return field.default if field else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
