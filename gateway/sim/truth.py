"""The simulated engines as the cluster drives them, and how they differ from what the predictor believes. Pure.

Without prefix reuse the truth is advanced by stretches of steps (`engine`), with it step by step
(`predictor.instance`); both know stalls. Nothing here decides anything about requests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Protocol

from gateway.sim.engine import JumpEngine
from gateway.sim.migration import MovableEngine
from gateway.sim.scenario import ReplicaSpec, TruthSpec
from gateway.sim.stalls import NEVER, Clock, Stalls
from predictor.instance import Instance
from predictor.profile import EngineLimits
from predictor.request import Estimate, Event, Finished, Request
from predictor.rest import REPAIR_TOKENS
from predictor.seats import Progress
from predictor.sequence import Sequence
from predictor.snapshot import ProbeReply, Snapshot


class Engine(Protocol):
    """One simulated engine. `expected` maps ids to the total output tokens that an observer assumes."""

    limits: EngineLimits

    @property
    def preemptions(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def step_ends_at_s(self) -> float | None: ...
    def current_step_ends_at_s(self) -> float | None: ...
    def submit(self, request: Request, now_s: float) -> None: ...
    def finish_step(self, now_s: float) -> Iterable[Event]: ...
    def progress(self, request_id: str) -> Progress: ...
    def snapshot(self, now_s: float, expected: Mapping[str, int]) -> Snapshot: ...
    def reply(self, expected: Mapping[str, int]) -> ProbeReply: ...
    def hit_tokens(self, request: Request) -> int: ...


class StepSight:
    """Lets a mirror see when the step in progress ends."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def step_ends_at_s(self) -> float | None:
        """When it ends; None when there is none."""
        return self._engine.current_step_ends_at_s()


class Relayed:
    """What a gateway sees of a request that it relays: the tokens that came, not how far the prompt is."""

    __slots__ = ("_progress",)
    computed = -1

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return self._progress.generated


class SteppedEngine:
    """An Instance with stalls: every step is an event, prefixes are reused."""

    def __init__(self, instance: Instance, stalls: Stalls | None) -> None:
        self.limits = instance.limits
        self._instance = instance
        self._stalls = stalls
        self._stall_in = stalls.gap() if stalls is not None else NEVER
        self._live: dict[str, Sequence] = {}

    @property
    def preemptions(self) -> int:
        """So far."""
        return self._instance.preemptions

    @property
    def step_tokens(self) -> int:
        """Computed by the step in progress."""
        return self._instance.step_tokens

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return self._instance.running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._instance.waiting

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self._instance.free_blocks

    @property
    def step_ends_at_s(self) -> float | None:
        """When the step in progress ends, stall included."""
        ends_at_s = self._instance.step_ends_at_s
        if ends_at_s is None or self._stall_in > 1 or self._stalls is None:
            return ends_at_s
        return ends_at_s + self._stalls.stall_s

    def current_step_ends_at_s(self) -> float | None:
        """The same."""
        return self.step_ends_at_s

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request."""
        self._instance.submit(request, now_s)
        self._live[request.id] = self._instance.progress(request.id)

    def finish_step(self, now_s: float) -> Iterable[Event]:
        """End the step in progress and begin the next."""
        self._stall_in -= 1
        if self._stalls is not None and not self._stall_in:
            self._stall_in = self._stalls.gap()
        events = self._instance.finish_step(now_s)
        for event in events:
            if isinstance(event, Finished):
                del self._live[event.request_id]
        return events

    def progress(self, request_id: str) -> Progress:
        """A live view of a request."""
        return self._instance.progress(request_id)

    def snapshot(self, now_s: float, expected: Mapping[str, int]) -> Snapshot:
        """The state when the step in progress ends."""
        seen = self._instance.snapshot(now_s, expected)
        ends_at_s = self.step_ends_at_s
        return replace(seen, step_ends_s=0.0 if ends_at_s is None else max(0.0, ends_at_s - now_s))

    def reply(self, expected: Mapping[str, int]) -> ProbeReply:
        """What run-time metrics say now, without a prediction."""
        waiting_blocks = queued = 0
        for name, seq in self._live.items():
            left = expected.get(name, seq.output) - seq.generated
            queued += (0 if seq.decoding else seq.target - seq.computed) + (left if left > 0 else REPAIR_TOKENS)
            waiting_blocks += 0 if seq.blocks else self.limits.blocks_for(seq.target)
        return ProbeReply(Estimate.unknown, self.running, self.waiting, self.free_blocks, waiting_blocks, queued, 0.0)

    def hit_tokens(self, request: Request) -> int:
        """Prompt tokens that its cache would save."""
        return self._instance.hit_tokens(request) if request.prefix else 0


def metrics_of(snapshot: Snapshot, age_s: float = 0.0) -> ProbeReply:
    """The reply of an engine that only reports, from a snapshot of that age."""
    queued = waiting_blocks = 0
    for resident in (*snapshot.running, *snapshot.waiting):
        left = resident.output_tokens - resident.generated_tokens
        again = resident.prompt_tokens + max(resident.generated_tokens, 1) - 1 - resident.computed_tokens
        queued += max(again, 0) + (left if left > 0 else REPAIR_TOKENS)
    for resident in snapshot.waiting:
        waiting_blocks += snapshot.limits.blocks_for(resident.prompt_tokens + resident.generated_tokens)
    return ProbeReply(
        Estimate.unknown, len(snapshot.running), len(snapshot.waiting), snapshot.free_blocks, waiting_blocks, queued, age_s
    )


def make_engine(
    spec: ReplicaSpec, truth: TruthSpec, clock: Clock, rng: Random, *, prefixes: bool, movable: bool = False
) -> Engine:
    """One engine of this kind as it really is; `rng` is its own. Raises ValueError where what is asked for does not go
    together: requests with prefixes cannot be moved."""
    factor = spec.slower * rng.uniform(1.0 - truth.step_spread, 1.0 + truth.step_spread)
    profile = spec.profile.scaled(factor)
    stalls = Stalls(truth.stall_share, truth.stall_s, rng) if truth.stall_share > 0 else None
    stepped = prefixes or spec.limits.order != "vllm"
    if movable and stepped:
        raise ValueError("migration is modelled for vLLM's order without prefixes only")
    if stepped:
        return SteppedEngine(Instance(profile, spec.limits), stalls)
    return (MovableEngine if movable else JumpEngine)(profile, spec.limits, clock, stalls)
