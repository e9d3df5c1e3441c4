"""What the configuration's models share."""

import json
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """An object of the configuration: unknown keys are errors, and nothing is converted from another type.

    Shorthand (a string for a map, a number for a length) has been written out before a model sees it:
    `shorthand.py`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


NonNegative: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]


def show(value: Any, limit: int = 80) -> str:
    """A value as a person would write it in a configuration, cut short."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
