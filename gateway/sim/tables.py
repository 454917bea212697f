"""TOML tables into frozen records, strictly: an unknown key, a wrong type or a bad value names file, key and reason.

A record's fields say which keys there are, their types and defaults; its `__post_init__` may raise ValueError with
"key: reason". Types understood: bool, int, float, str, Literal, tuples of those, records, and `X | None`. Pure.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


class TableError(Exception):
    """What is wrong in a file: `where` is the dotted key."""

    def __init__(self, source: str, where: str, reason: str) -> None:
        super().__init__(f"{source}: {where}: {reason}" if where else f"{source}: {reason}")


def record(kind: type[Record], table: Mapping[str, Any], source: str, where: str = "") -> Record:
    """A record of this kind from a table. `source` names the file in errors."""
    if not isinstance(table, Mapping):
        raise TableError(source, where, "must be a table")
    known: dict[str, Field[Any]] = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in known:
            raise TableError(source, _join(where, key), f"unknown key; known: {', '.join(known)}")
        values[key] = _value(hints[key], value, source, _join(where, key))
    for key, field in known.items():
        if key not in values and field.default is MISSING and field.default_factory is MISSING:
            raise TableError(source, _join(where, key), "is missing")
    try:
        return kind(**values)
    except ValueError as error:
        key, colon, reason = str(error).partition(": ")
        raise TableError(source, _join(where, key) if colon else where, reason if colon else key) from error


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _value(kind: Any, value: Any, source: str, where: str) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _value(next(arg for arg in args if arg is not type(None)), value, source, where)
    if is_dataclass(kind) and isinstance(kind, type):
        return record(kind, value, source, where)
    if origin is Literal:
        if value not in args:
            raise TableError(source, where, f"{value!r} is none of {', '.join(map(str, args))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise TableError(source, where, "must be a list")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_value(args[0], item, source, f"{where}[{i}]") for i, item in enumerate(value))
        if len(value) != len(args):
            raise TableError(source, where, f"must have {len(args)} items")
        return tuple(_value(arg, item, source, f"{where}[{i}]") for i, (arg, item) in enumerate(zip(args, value, strict=True)))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise TableError(source, where, f"must be {_NAMES.get(kind, kind.__name__)}, not {value!r}")
    return value


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
