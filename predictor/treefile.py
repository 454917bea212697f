"""Reads trees of regression from an ONNX file, without any runtime: the few messages of it that such a file needs. Pure.

The graph is: a linear part of the features, plus trees (TreeEnsembleRegressor, sums, no transform) over the features and,
where the file has word weights, one more number: their sum over the prompt's words, divided by the root of how many.
`gateway tagger train-trees` writes such files, and onnxruntime runs them to the same figures.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

LEAF = "LEAF"
BRANCH = "BRANCH_LEQ"
FEATURES_KEY = "features"


class TreeFileError(ValueError):
    """The file is none that this module reads; the text says why."""


@dataclass(slots=True)
class Attributes:
    """Of one node, by name."""

    ints: dict[str, list[int]] = field(default_factory=dict)
    floats: dict[str, list[float]] = field(default_factory=dict)
    strings: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class TreeFile:
    """What stands in a file: the trees' attributes, tensors and metadata by name."""

    trees: Attributes
    tensors: dict[str, list[float]]
    metadata: dict[str, str]


def read(data: bytes) -> TreeFile:
    """Raises TreeFileError."""
    try:
        return _model(data)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise TreeFileError(f"no ONNX file of trees: {error}") from error


def _model(data: bytes) -> TreeFile:
    trees: Attributes | None = None
    tensors: dict[str, list[float]] = {}
    metadata: dict[str, str] = {}
    for number, value in _fields(data):
        if number == 7 and isinstance(value, bytes):
            for part, inner in _fields(value):
                if part == 1 and isinstance(inner, bytes):
                    trees = _trees(inner) or trees
                elif part == 5 and isinstance(inner, bytes):
                    name, floats = _tensor(inner)
                    tensors[name] = floats
        elif number == 14 and isinstance(value, bytes):
            entry = {part: inner.decode() for part, inner in _fields(value) if isinstance(inner, bytes)}
            metadata[entry.get(1, "")] = entry.get(2, "")
    if trees is None:
        raise TreeFileError("no trees in this ONNX file")
    return TreeFile(trees, tensors, metadata)


def _trees(node: bytes) -> Attributes | None:
    parts = list(_fields(node))
    if not any(number == 4 and value == b"TreeEnsembleRegressor" for number, value in parts):
        return None
    found = Attributes()
    for number, value in parts:
        if number == 5 and isinstance(value, bytes):
            _attribute(found, value)
    return found


def _attribute(found: Attributes, data: bytes) -> None:
    name = ""
    ints: list[int] = []
    floats: list[float] = []
    strings: list[str] = []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            name = value.decode()
        elif number in (3, 8):
            ints += [value] if isinstance(value, int) else _varints(value)
        elif number in (2, 7) and isinstance(value, bytes):
            floats += _floats(value)
        elif number in (4, 9) and isinstance(value, bytes):
            strings.append(value.decode())
    if ints:
        found.ints[name] = ints
    if floats:
        found.floats[name] = floats
    if strings:
        found.strings[name] = strings


def _tensor(data: bytes) -> tuple[str, list[float]]:
    name, kind = "", 0
    floats: list[float] = []
    for number, value in _fields(data):
        if number == 2 and isinstance(value, int):
            kind = value
        elif number == 8 and isinstance(value, bytes):
            name = value.decode()
        elif number in (4, 9) and isinstance(value, bytes):
            floats = _floats(value) if kind in (0, 1) else []
    return name, floats


def _floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def _varints(data: bytes) -> list[int]:
    at, found = 0, []
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise TreeFileError("a number in the file is too long")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of a protobuf message; fixed-size values as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise TreeFileError(f"a field of kind {kind} in the file")
        if at + size > len(data):
            raise TreeFileError("the file ends in the middle")
        yield key >> 3, data[at : at + size]
        at += size
