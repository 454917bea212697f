"""What a sidecar sees of its engine at one moment, and why it may see nothing. Records and one protocol. Pure.

A source (in `backends`, since each engine publishes in its own way) gives one Sighting after another; the sidecar and
its oracle know no engine.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from predictor.places import Queueing
from predictor.snapshot import Snapshot

Cause = Literal["none", "gone", "stale", "version", "torn"]


class NoSightError(Exception):
    """The engine's state is not to be had. `cause` is for counting, the text for people."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause: Cause = cause


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes, in the words of predictor.profile: P, D, K and A."""

    prefill_tokens: int = 0
    decode_seqs: int = 0
    kv_tokens: int = 0
    pairs: int = 0


@dataclass(frozen=True, slots=True)
class Sighting:
    """One published state. `number` grows with each; `snapshot` is as of the end of the step in progress, which
    computes `step`; `step_ends_s` is 0 where how long the step takes is for the profile to say. `past` took
    `past_s` seconds (0: not known). `lists_requests` is False where only counts are published, so that requests
    can't be told by their ids; `caches_prefixes` whether prompts that begin alike are computed once. `queueing` is how the
    queue is ordered where it is not by arrival."""

    number: int
    engine: str
    snapshot: Snapshot
    step: StepWork = StepWork()
    past: StepWork = StepWork()
    past_s: float = 0.0
    lists_requests: bool = True
    caches_prefixes: bool = True
    queueing: Queueing | None = None

    @property
    def busy(self) -> bool:
        """Whether the engine has anything to do: the state of one that has not can't grow old."""
        return bool(self.snapshot.running or self.snapshot.waiting or self.step.prefill_tokens or self.step.decode_seqs)

    def names(self) -> set[str]:
        """The ids of the requests that it lists."""
        if not self.lists_requests:
            return set()
        return {resident.id for residents in (self.snapshot.running, self.snapshot.waiting) for resident in residents}


class SnapshotSource(Protocol):
    """Where sightings come from."""

    def look(self, now_s: float) -> Sighting:
        """The newest state; the same object as before if it has not changed. Raises NoSightError."""
        ...

    def close(self) -> None: ...
