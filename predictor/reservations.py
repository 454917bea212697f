"""Requests that gateways have sent towards an engine and that its snapshots do not show yet. Pure.

A snapshot is as old as the step in progress, and a request needs some time to reach the scheduler. What a gateway
reserves counts at the end of the queue until it is seen there, so that all gateways know of each other's dispatches.
A reservation ends when its id is seen, when a state that was taken `settle_s` later does not show it (it has come and
gone), or after `LIFE_S`.
"""

from collections.abc import Callable
from dataclasses import replace

from predictor.request import LengthEstimate
from predictor.wire import Ask

LIFE_S = 5.0
SETTLE_S = 1.0
RESERVATIONS_MAX = 4096


class Reservations:
    """See the module's words. Instants are of one clock, the one that states are stamped with."""

    def __init__(self, settle_s: float = SETTLE_S) -> None:
        self._settle_s = settle_s
        self._made: dict[str, tuple[Ask, float]] = {}  # in the order of their making, so the oldest is first
        self.version = 0  # changes whenever the list does

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def make(self, ask: Ask, now_s: float) -> float:
        """Reserve, and return the instant at which it ends by itself. Again with the same id changes nothing."""
        self.expire(now_s)
        known = self._made.get(ask.id)
        if known is not None:
            return known[1] + LIFE_S
        if len(self._made) >= RESERVATIONS_MAX:
            del self._made[next(iter(self._made))]
        self._made[ask.id] = (ask, now_s)
        self.version += 1
        return now_s + LIFE_S

    def correct(self, name: str, lengths: LengthEstimate) -> bool:
        """What was reserved turned out to have other lengths; its life stays. False when it is not there."""
        known = self._made.get(name)
        if known is not None:
            self._made[name] = (replace(known[0], lengths=lengths), known[1])
            self.version += 1
        return known is not None

    def expire(self, now_s: float) -> None:
        """Drop what has lived its time."""
        self._drop([name for name, (_, made_s) in self._made.items() if now_s >= made_s + LIFE_S])

    def seen(self, is_there: Callable[[str], bool], taken_s: float) -> None:
        """A new state, taken at `taken_s`: drop what it shows, and what it ought to show and does not."""
        settled_s = taken_s - self._settle_s
        self._drop([name for name, (_, made_s) in self._made.items() if made_s <= settled_s or is_there(name)])

    def pending(self) -> tuple[Ask, ...]:
        """What still counts, oldest first."""
        return tuple(ask for ask, _ in self._made.values())

    def _drop(self, names: list[str]) -> None:
        for name in names:
            del self._made[name]
        self.version += bool(names)
