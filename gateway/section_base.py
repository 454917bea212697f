"""What all settings models of gateway.toml are made of. It loads the settings library: not for a serving process' start."""

import dataclasses
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic_core import ErrorDetails

DAY_S = 86400.0
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


_TOLD = {
    "extra_forbidden": "no such option",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
}


def told(problem: ErrorDetails) -> str:
    """What is wrong, without the words that only the settings library's users know."""
    return _TOLD.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")


class Section(BaseModel):
    """One table of the file: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid")


def section(record: type, ranges: dict[str, tuple[float, float]], types: dict[str, Any] | None = None) -> Any:
    """A settings model with a record's fields and defaults, and the ranges given."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        kind = (types or {}).get(field.name, field.type)
        if field.name in ranges:
            low, high = ranges[field.name]
            fields[field.name] = (kind, Field(field.default, ge=low, le=high))
        else:
            fields[field.name] = (kind, field.default)
    return create_model(record.__name__ + "Section", __base__=Section, **fields)
