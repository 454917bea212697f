"""What was learnt, as plain records for a file, and read back without believing them. Pure.

Whoever learns gives `State`s (text, numbers, lists of them) and takes them back; `Kept` reads one field by field and checks
type, size and range, so that a file of another time or hand can do no more than be refused.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

State = Mapping[str, object]
NAME_MAX = 256
WHOLE_MAX = 1 << 53


class KeptError(ValueError):
    """A record can't be used; the text names the field and shows nothing of its content."""


class Keeper(Protocol):
    """Somebody who learns. `states` gives what is worth keeping in pieces that take well under a millisecond each; what it
    goes over may change between two of them. `restore` takes one piece into a fresh object; it raises KeptError, and has
    changed nothing then."""

    def states(self) -> Iterator[State]: ...
    def restore(self, kept: "Kept") -> None: ...


class Kept:
    """One record. Every reader raises KeptError."""

    __slots__ = ("_state",)

    def __init__(self, state: object) -> None:
        if not isinstance(state, dict):
            raise KeptError("no record")
        self._state: dict[str, object] = state

    @property
    def state(self) -> State:
        """As it was read, unchecked."""
        return self._state

    def text(self, name: str) -> str:
        """A name or the like."""
        value = self._state.get(name)
        if not isinstance(value, str) or len(value) > NAME_MAX:
            raise KeptError(f"{name} is no name")
        return value

    def number(self, name: str, least: float, most: float) -> float:
        """A finite number within bounds."""
        return self.numbers(name, 1, 1, least, most, bare=True)[0]

    def whole(self, name: str, least: int = 0, most: int = WHOLE_MAX) -> int:
        """An integer within bounds."""
        value = self._state.get(name)
        if type(value) is not int or not least <= value <= most:
            raise KeptError(f"{name} is no integer within its bounds")
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._state.get(name)
        if not isinstance(value, bool):
            raise KeptError(f"{name} is neither true nor false")
        return value

    def numbers(self, name: str, fewest: int, longest: int, least: float, most: float, *, bare: bool = False) -> list[float]:
        """A list of finite numbers within bounds; a single one where it stands `bare`."""
        value = self._state.get(name)
        found = [value] if bare else value
        if not isinstance(found, list) or not fewest <= len(found) <= longest:
            raise KeptError(f"{name} has another length")
        if not set(map(type, found)) <= {int, float}:
            raise KeptError(f"{name} holds something else than numbers")
        if found and not (least <= min(found) <= max(found) <= most and math.isfinite(sum(found))):
            raise KeptError(f"{name} is out of range")
        return [float(one) for one in found]

    def items(self, name: str, most: int) -> list["Kept"]:
        """Records in a record."""
        value = self._state.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise KeptError(f"{name} is no list, or too long a one")
        return [Kept(one) for one in value]

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._state.get(name) is not None
