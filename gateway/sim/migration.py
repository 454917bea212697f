"""Live migration of a request's KV between two simulated engines, as full Llumnix does it. A modelled action. Pure.

While the KV is copied the request goes on decoding, and both engines' steps take longer; then it leaves its engine when
the step in progress ends and joins the other as a decoding sequence, or in front of its queue, to be computed again,
where there is no room left.
"""

from collections.abc import Sequence as Row
from dataclasses import dataclass

from gateway.sim.decoders import Sequence
from gateway.sim.engine import JumpEngine
from gateway.sim.scenario import MigrationSpec
from gateway.sim.stalls import Clock, Stalls
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Request


class MovableEngine(JumpEngine):
    """An engine that can give a decoding request away and take one over, and be slowed by the copying."""

    def __init__(self, profile: StepProfile, limits: EngineLimits, clock: Clock, stalls: Stalls | None = None) -> None:
        super().__init__(profile, limits, clock, stalls)
        self._own = profile
        self._incoming: list[Sequence] = []

    @property
    def freeness(self) -> float:
        """Free blocks, less those the queue needs, per running request: Llumnix' measure."""
        needed = sum(self.limits.blocks_for(seq.target) for seq in self._waiting)
        return (self.free_blocks - needed) / max(self.running, 1)

    def newest(self) -> str | None:
        """The id of the newest decoding request."""
        return next((seq.request_id for seq in reversed(self._run) if seq.decoding), None)

    def slow(self, factor: float, now_s: float) -> None:
        """From the next step on, steps take so many times as long as they would alone."""
        self.profile = self._own.scaled(factor) if factor != 1.0 else self._own
        if self._k:
            self._cut(now_s)

    def give(self, request_id: str, now_s: float) -> tuple[Sequence, float] | None:
        """The request leaves when the step in progress ends: its state then, and that instant. None if it has nothing
        to take along: it does not decode, or has ended by then."""
        seq = self._by_id.get(request_id)
        if seq is None or not seq.decoding:
            return None
        self._cut(now_s)
        done = self._decoders.steps + self._k
        if seq.fin <= done:
            return None
        moved = Sequence(Request(request_id, seq.prompt, seq.output, now_s))
        moved.spent = seq.output - (seq.fin - done)
        moved.computed = seq.base + done
        moved.target = moved.prompt + moved.spent
        self._leaving.append(request_id)
        return moved, self._at(self._k)

    def take(self, seq: Sequence, now_s: float) -> None:
        """Take over a request that was given away."""
        self._by_id[seq.request_id] = seq
        self._incoming.append(seq)
        if self._k:
            self._cut(now_s)
        else:
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        for seq in self._incoming:
            blocks = self.limits.blocks_for(seq.computed)
            if blocks <= self._free and len(self._run) < self.limits.max_num_seqs:
                self._run[seq] = None
                self._free -= blocks
                self._decoders.add(seq, seq.computed)
            else:
                seq.computed = 0
                self._waiting.appendleft(seq)
        self._incoming = []
        super()._begin(now_s)


@dataclass(frozen=True, slots=True)
class Move:
    """One migration under way."""

    request_id: str
    source: int
    target: int
    copied_s: float


def plan_move(engines: Row[MovableEngine], spec: MigrationSpec) -> Move | None:
    """From the engine with the least freeness to the one with the most, if they differ by enough."""
    order = sorted(range(len(engines)), key=lambda i: engines[i].freeness)
    source, target = order[0], order[-1]
    if engines[target].freeness - engines[source].freeness <= spec.gap_blocks:
        return None
    request_id = engines[source].newest()
    if request_id is None:
        return None
    tokens = engines[source].progress(request_id).computed
    return Move(request_id, source, target, tokens * spec.kv_token_bytes / spec.link_bytes_per_s)
