"""One live backend as the dispatcher sees it: its state, which moves are legal, and whether a request may go there. Pure.

States and moves are data; the fleet makes the moves and takes the events, and nobody else changes a replica.
"""

from typing import Literal

from backends.base import Identity, Kind
from gateway.config import BackendSpec
from gateway.views import View

State = Literal["starting", "ready", "draining", "asleep", "swapping", "down"]

NEVER = float("inf")
REPEATS = 2  # of a request that failed: from then on it is in doubt

MOVES: dict[State, frozenset[State]] = {
    "starting": frozenset(("ready", "down", "draining", "asleep", "swapping")),
    "ready": frozenset(("down", "draining", "asleep", "swapping")),
    "down": frozenset(("ready", "draining", "starting", "asleep", "swapping")),
    "asleep": frozenset(("swapping", "starting", "draining")),
    "swapping": frozenset(("ready", "starting", "asleep", "draining")),
    "draining": frozenset(("starting",)),
}


class Replica(View):
    """One live backend as the dispatcher sees it. Only Fleet changes it."""

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec.name, spec.weight, spec.max_in_flight)
        self.spec = spec
        self.away = self.moves  # its model is off its device, or about to leave it, also while it drains
        self.state: State = "asleep" if self.moves else "starting"
        self.reason = "not looked at yet" if self.moves else "not probed yet"
        self.identity = Identity(engine=spec.engine, models=spec.models)
        self.streams = self.stalled = 0
        self.failed_total = self.failures = 0
        self.failed_before = 0  # of `failed_total`: until it was found wedged
        self.missed_probes = 0  # of `failures`: probes since the last one that was answered
        self.suspects: set[int] = set()  # bodies that it failed at since it last answered well, ...
        self.repeats = 0  # ... and how often such a one failed again
        self.trial = self.wedged = False
        self.trying = 0  # requests of the trial that are there: those from before it may run for long
        self.last_byte_s = 0.0
        self.answered_s = -NEVER  # when it last began an answer that was no failure
        self.last_probe_s = -1.0
        self.ready_since_s = 0.0  # the last recovery
        self.overloaded_until_s = 0.0
        self.drain_until_s: float | None = None
        self.paused = False  # its requests stay in an engine that is off its device

    def __repr__(self) -> str:
        return f"<Replica {self.name} {self.state} in_flight={self.in_flight} failures={self.failures}>"

    @property
    def moves(self) -> bool:
        """Whether its model shares a device, and is there or not."""
        return self.spec.swap.way != "none"

    @property
    def models(self) -> tuple[str, ...]:
        return self.identity.models or self.spec.models

    @property
    def scheduling(self) -> str:
        """How its engine orders its queue, as configured or as it says; "" when nobody says."""
        return self.spec.scheduling if self.spec.scheduling != "auto" else self.identity.scheduling

    def serves(self, kind: Kind) -> bool:
        """Whether a route of that kind can be answered there, as far as is known."""
        return kind == "unknown" or self.identity.kind in ("unknown", kind)

    def respecified(self, spec: BackendSpec) -> None:
        """Other settings at the same address."""
        self.spec = spec
        self.weight, self.max_in_flight = spec.weight, spec.max_in_flight

    def usable(self, now_s: float) -> bool:
        """Whether it may be meant for requests that wait: not while it is on trial or said that it has too many."""
        return now_s >= self.overloaded_until_s and not (self.trial and self.trying)

    def open(self, now_s: float) -> bool:
        """Whether one more request may go there now."""
        if self.in_flight >= self.max_in_flight or (self.trial and self.trying):
            return False
        return now_s >= self.overloaded_until_s

    def sent(self, now_s: float) -> None:
        """A request goes there."""
        if self.in_flight == 0:
            self.last_byte_s = now_s
        self.trying += self.trial
        super().sent(now_s)
