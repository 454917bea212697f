"""JSON values that fit a simple JSON schema, for the simulated engine's tool calls and structured answers.

Covers what clients generate from typed models: objects, arrays, basic types, enum, const, anyOf, local $ref.
Keywords beyond that are ignored, so an exotic schema gets a plausible value rather than an error.
"""

import json
import math
from collections.abc import Mapping

from backends.mock_text import stable_hash, word

_NODES_MAX = 2000
_DEPTH_MAX = 12
_ITEMS_MAX = 64
_PIECE_CHARS = 4


def fit(schema: object, seed: int) -> object:
    """A value that fits the schema; an object with one answer in words where the schema says nothing."""
    if not isinstance(schema, Mapping) or not schema:
        return {"answer": _words(seed)}
    return _Fitter(schema).value(schema, seed, 0)


def pieces(value: object) -> tuple[str, ...]:
    """The JSON text of the value, cut into token-sized pieces."""
    text = json.dumps(value)
    return tuple(text[start : start + _PIECE_CHARS] for start in range(0, len(text), _PIECE_CHARS))


class _Fitter:
    """Walks one schema; gives null once the value would be too deep or too large (recursive schemas)."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._nodes_left = _NODES_MAX

    def value(self, schema: object, seed: int, depth: int) -> object:
        self._nodes_left -= 1
        if not isinstance(schema, Mapping) or depth > _DEPTH_MAX or self._nodes_left < 0:
            return None
        if "const" in schema:
            return schema["const"]
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            return choices[seed % len(choices)]
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self.value(self._resolve(reference), seed, depth + 1)
        for keyword in ("anyOf", "oneOf", "allOf"):
            options = schema.get(keyword)
            if isinstance(options, list) and options:
                return self.value(options[0], seed, depth + 1)
        return self._typed(schema, seed, depth)

    def _typed(self, schema: Mapping[str, object], seed: int, depth: int) -> object:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = kind[0] if kind else None
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, seed, depth)
        if kind == "array":
            least = schema.get("minItems")
            count = min(max(1, least), _ITEMS_MAX) if isinstance(least, int) else 1
            return [self.value(schema.get("items", {}), seed + item, depth + 1) for item in range(count)]
        if kind in ("integer", "number"):
            return _number(schema, seed, whole=kind == "integer")
        if kind == "boolean":
            return bool(seed & 1)
        return None if kind == "null" else _words(seed)

    def _object(self, schema: Mapping[str, object], seed: int, depth: int) -> object:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return {}
        return {name: self.value(part, stable_hash(seed, name), depth + 1) for name, part in properties.items()}

    def _resolve(self, reference: str) -> object:
        node: object = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                node = node.get(part) if isinstance(node, Mapping) else None
        return node


def _number(schema: Mapping[str, object], seed: int, *, whole: bool) -> int | float:
    low, high = (_bound(schema, keyword) for keyword in ("minimum", "maximum"))
    above, below = (_bound(schema, keyword) for keyword in ("exclusiveMinimum", "exclusiveMaximum"))
    if low is None:
        low = 0 if above is None else above + 1
    if high is None:
        high = low + 99 if below is None else below - 1
    value = low + seed % (int(high - low) + 1) if high >= low else (low + high) / 2
    return int(value) if whole else float(value)


def _bound(schema: Mapping[str, object], keyword: str) -> int | float | None:
    value = schema.get(keyword)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def _words(seed: int) -> str:
    return (word(seed, 0) + word(seed, 1)).strip()
