"""Typed reads from a request's JSON body: a wrong type is a 400 that names the field, unknown fields are ignored."""

from collections.abc import Mapping, Sequence

from backends.mock_http import ApiError, bad_field


class Body:
    """One JSON object of a body. A field that is absent or null reads as its default."""

    __slots__ = ("_path", "_values")

    def __init__(self, values: Mapping[str, object], path: str = "") -> None:
        self._values = values
        self._path = path

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def field(self, name: str) -> str:
        """The field's full name, for messages."""
        return f"{self._path}{name}"

    def raw(self, name: str) -> object:
        """Whatever stands there; None if nothing does."""
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self._values.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(name, "a string")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean."""
        value = self._values.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self._wrong(name, "a boolean")

    def integer(self, name: str, *, low: int | None = None) -> int | None:
        """An integer, at least `low`."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, "an integer")
        if low is not None and value < low:
            raise bad_field(f"{self.field(name)} must be at least {low}, got {value}", self.field(name))
        return value

    def number(self, name: str) -> float | None:
        """An integer or a float."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, "a number")
        return float(value)

    def array(self, name: str) -> Sequence[object] | None:
        """A list."""
        value = self._values.get(name)
        if value is None or isinstance(value, list):
            return value
        raise self._wrong(name, "a list")

    def child(self, name: str) -> "Body | None":
        """An object, for further typed reads."""
        value = self.mapping(name)
        return None if value is None else Body(value, f"{self.field(name)}.")

    def mapping(self, name: str) -> Mapping[str, object] | None:
        """An object, as it is."""
        value = self._values.get(name)
        if value is None or isinstance(value, dict):
            return value
        raise self._wrong(name, "an object")

    def children(self, name: str) -> "tuple[Body, ...]":
        """A list of objects; empty if absent."""
        bodies = []
        for index, value in enumerate(self.array(name) or ()):
            if not isinstance(value, dict):
                raise bad_field(f"{self.field(name)}[{index}] must be an object", self.field(name))
            bodies.append(Body(value, f"{self.field(name)}[{index}]."))
        return tuple(bodies)

    def required_text(self, name: str) -> str:
        """A string that must be there."""
        value = self.text(name)
        if value is None:
            raise self.missing(name)
        return value

    def missing(self, name: str) -> ApiError:
        """The error for a field that must be there."""
        return bad_field(f"{self.field(name)} is required", self.field(name))

    def _wrong(self, name: str, wanted: str) -> ApiError:
        return bad_field(f"{self.field(name)} must be {wanted}", self.field(name))
