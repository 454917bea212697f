"""One coarse timer for all requests and connections: no timer of its own for each. Shell.

Whoever has a deadline keeps it in `due_s`; a sweep every TICK_S calls `on_due` of those that are past it. `now_s` is
the loop's clock as of the last sweep: good enough for idle limits, free to read.
"""

import asyncio
from typing import Protocol

TICK_S = 0.05
STALL_S = 0.25


class Due(Protocol):
    """Something with a deadline (loop time; infinity for none)."""

    due_s: float

    def on_due(self, now_s: float) -> None: ...


class Deadlines:
    """The sweep. Runs while somebody is registered, and always after `start`, so that the loop's lag is known."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._members: set[Due] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._asked_s = 0.0
        self.now_s = loop.time()
        self._worst_lag_s = 0.0
        self._excused = False
        self._always = False

    def __len__(self) -> int:
        return len(self._members)

    def start(self) -> None:
        """Sweep from now on, whoever is registered."""
        self._always = True
        if self._timer is None:
            self._arm()

    def add(self, member: Due) -> None:
        """Watch `member` until `discard`."""
        self._members.add(member)
        if self._timer is None:
            self._arm()

    def discard(self, member: Due) -> None:
        """Watch it no longer."""
        self._members.discard(member)

    def _arm(self) -> None:
        self.now_s = self._loop.time()
        self._asked_s = self.now_s + TICK_S
        self._timer = self._loop.call_at(self._asked_s, self._tick)

    def _tick(self) -> None:
        now_s = self.now_s = self._loop.time()
        lag_s = now_s - self._asked_s
        self._worst_lag_s = max(self._worst_lag_s, lag_s)
        if lag_s > STALL_S and not self._excused:
            # we stood still ourselves (SIGSTOP, suspend, a hogged core): what peers sent meanwhile is read first
            self._excused = True
            self._arm()
            return
        self._excused = False
        for member in [m for m in self._members if m.due_s <= now_s]:
            if member in self._members and member.due_s <= now_s:
                member.on_due(now_s)
        if self._members or self._always:
            self._arm()
        else:
            self._timer = None

    def take_worst_lag_s(self) -> float:
        """The latest that a sweep came after its time, since the last call."""
        worst, self._worst_lag_s = self._worst_lag_s, 0.0
        return worst

    def close(self) -> None:
        """Stop sweeping."""
        self._always = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
