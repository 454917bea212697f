"""One replica as policies and the desk see it: how much is there, how much may be, and the mirror. Pure.

The live fleet's Replica extends View; the simulator uses View itself. Whoever decides counts a request with `sent`
before anything else is decided, and whoever learns of its end calls `left` once.
"""

from dataclasses import dataclass

from predictor.mirror import Mirror
from predictor.profile import EngineLimits, StepProfile
from predictor.seats import Sight


class View:
    """`in_flight` requests, at most `max_in_flight`; `weight` is the share of the load relative to others. `sidecar`
    says that its prediction comes from there; without one it is made here, from the mirror, if there is one."""

    def __init__(
        self,
        name: str,
        weight: float = 1.0,
        max_in_flight: int = 1024,
        mirror: Mirror | None = None,
        sidecar: bool = False,
    ) -> None:
        self._name = name
        self.weight = weight
        self.max_in_flight = max_in_flight
        self.mirror = mirror
        self.sidecar = sidecar
        self.in_flight = 0
        self.dispatched_total = 0
        self.minute = MinuteCount()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} in_flight={self.in_flight}>"

    @property
    def name(self) -> str:
        """Its name in the table."""
        return self._name

    def usable(self, now_s: float) -> bool:
        """Whether requests may be meant for it, even if they have to wait for room."""
        return True

    def open(self, now_s: float) -> bool:
        """Whether one more request may go there now."""
        return self.in_flight < self.max_in_flight

    def sent(self, now_s: float) -> None:
        """A request goes there."""
        self.in_flight += 1
        self.dispatched_total += 1
        self.minute.add(now_s)

    def left(self) -> None:
        """A request that was sent there is over."""
        self.in_flight -= 1
        assert self.in_flight >= 0, repr(self)


@dataclass(frozen=True, slots=True)
class EngineView:
    """What is believed of an engine. `sight`, where there is one, tells when its step in progress ends (an Instance
    does); without it the mirror reckons that from the profile and from what it hears. `sidecar`: policies that predict
    ask for it by a Probe; without one they predict here. `learns`: correct the profile's pace by what is observed."""

    profile: StepProfile
    limits: EngineLimits
    weight: float = 1.0
    max_in_flight: int = 1024
    sidecar: bool = False
    sight: Sight | None = None
    learns: bool = False

    def view(self, name: str) -> View:
        """A view with a mirror of its own."""
        mirror = Mirror(self.profile, self.limits, sight=self.sight, learns=self.learns)
        return View(name, self.weight, self.max_in_flight, mirror, self.sidecar)


class MinuteCount:
    """Events of the last 60 s, by the second."""

    __slots__ = ("_counts", "_second", "_total")

    def __init__(self) -> None:
        self._counts = [0] * 60
        self._second = 0
        self._total = 0

    def add(self, now_s: float) -> None:
        """One event at `now_s`."""
        second = int(now_s)
        if second != self._second:
            self._roll(second)
        self._counts[second % 60] += 1
        self._total += 1

    def count(self, now_s: float) -> int:
        """How many there were in the 60 s up to `now_s`."""
        second = int(now_s)
        if second != self._second:
            self._roll(second)
        return self._total

    def _roll(self, second: int) -> None:
        for passed in range(max(self._second + 1, second - 59), second + 1):
            self._total -= self._counts[passed % 60]
            self._counts[passed % 60] = 0
        self._second = max(self._second, second)
