"""Sightings of a simulated engine: its Instance, read on the loop that runs it. Pure but for whose it is.

A real engine publishes what it was told of answer lengths, not the truth; so does this one.
"""

from dataclasses import replace

from backends.mock_core import EngineCore
from predictor.sighting import NoSightError, Sighting
from predictor.snapshot import Snapshot


class InstanceSource:
    """States of the core's instance; a new one when something has happened in it."""

    def __init__(self, core: EngineCore, engine: str, caches_prefixes: bool) -> None:
        self._core = core
        self._engine = engine
        self._caches_prefixes = caches_prefixes
        self._last: Sighting | None = None

    def look(self, now_s: float) -> Sighting:
        """The state as it is. Raises NoSightError when the engine has stopped."""
        core = self._core
        if core.stopped:
            raise NoSightError("gone", "the engine has ended")
        if self._last is None or self._last.number != core.changes:
            snapshot = as_sent(core.instance.snapshot(now_s, core.expected_tokens()))
            self._last = Sighting(core.changes, self._engine, snapshot, caches_prefixes=self._caches_prefixes)
        return self._last

    def close(self) -> None:
        """Nothing to let go of."""


def as_sent(snapshot: Snapshot) -> Snapshot:
    """The same with the requests' own ids: inside the engine a running number follows each."""
    running, waiting = (
        tuple([replace(one, id=one.id.rpartition("-")[0]) for one in some]) for some in (snapshot.running, snapshot.waiting)
    )
    return replace(snapshot, running=running, waiting=waiting)
