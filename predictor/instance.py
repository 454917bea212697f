"""Continuous batching with chunked prefill on paged KV blocks: one engine, advanced step by step.

Order of a step, as in vLLM V1: every running sequence in the order of admission (one token each, or the next chunk
of a prompt), then the waiting queue first come first served, within `max_num_batched_tokens` and `max_num_seqs`.
A sequence that needs a block when none is free takes it from the newest running one, which loses everything, returns
to the front of the queue and computes prompt and output again; a step that preempted admits nobody.
The blocks of a whole prompt are taken at admission, so a prompt once begun never waits for blocks.

The caller owns time: it passes `now_s` and calls `finish_step` when `step_ends_at_s` has come.
"""

from collections import deque
from dataclasses import dataclass, field

from predictor.profile import EngineLimits, StepProfile
from predictor.request import Admitted, Decoded, Event, Finished, FirstToken, Preempted, Request


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request inside the engine. It decodes once `computed` has reached `target`."""

    request: Request
    target: int  # tokens to prefill: the prompt, after a preemption also the output so far
    computed: int = 0  # tokens whose KV is in the cache
    generated: int = 0
    blocks: int = 0
    scheduled: int = 0  # tokens in the step in progress


@dataclass(slots=True)
class _Batch:
    """The step being composed."""

    budget: int
    prefill_tokens: int = 0
    decode_seqs: int = 0
    kv_tokens: int = 0

    def add_prefill(self, tokens: int) -> None:
        self.budget -= tokens
        self.prefill_tokens += tokens

    def add_decode(self, context_tokens: int) -> None:
        self.budget -= 1
        self.decode_seqs += 1
        self.kv_tokens += context_tokens


@dataclass(slots=True)
class _Step:
    """The step in progress: when it ends, and what its composition already made happen."""

    ends_at_s: float
    events: list[Event] = field(default_factory=list)


class Instance:
    """One engine: waiting and running requests, KV blocks, a step in progress or none.

    A broken assertion here is a mistake of this module or of a caller that breaks the protocol, never of traffic.
    """

    def __init__(self, profile: StepProfile, limits: EngineLimits) -> None:
        self.profile = profile
        self.limits = limits
        self.preemptions = 0
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._by_id: dict[str, _Sequence] = {}
        self._free_blocks = limits.kv_blocks
        self._step: _Step | None = None
        self._started_at_s = float("-inf")

    def __repr__(self) -> str:
        step = "idle" if self._step is None else f"step ends at {self._step.ends_at_s:.6f} s"
        return (
            f"<Instance waiting={self.waiting} running={self.running} "
            f"free_blocks={self._free_blocks}/{self.limits.kv_blocks} {step}>"
        )

    @property
    def waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self._free_blocks

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return 1.0 - self._free_blocks / self.limits.kv_blocks

    @property
    def step_ends_at_s(self) -> float | None:
        """When the step in progress ends; None when there is none, that is when there is nothing to do."""
        return None if self._step is None else self._step.ends_at_s

    def submit(self, request: Request, now_s: float) -> None:
        """Queue a request; an idle engine starts a step with it at once.

        Raises ValueError when prompt and output together exceed `max_model_len`.
        """
        if request.prompt_tokens + request.output_tokens > self.limits.max_model_len:
            raise ValueError(
                f"request {request.id!r} needs {request.prompt_tokens} + {request.output_tokens} tokens, "
                f"the engine holds {self.limits.max_model_len}"
            )
        assert request.id not in self._by_id, f"request {request.id!r} submitted twice"
        sequence = _Sequence(request, target=request.prompt_tokens)
        self._by_id[request.id] = sequence
        self._waiting.append(sequence)
        if self._step is None:
            self._start_step(now_s)

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks; False if it is not here. The step in progress keeps its end."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.blocks:
            self._running.remove(sequence)
            self._free(sequence)
        else:
            self._waiting.remove(sequence)
        return True

    def finish_step(self, now_s: float) -> tuple[Event, ...]:
        """End the step in progress, start the next one at `now_s`, and return what happened in the ended one.

        Admissions and preemptions carry the instant at which that step began, tokens and ends carry `now_s`.
        """
        step = self._step
        assert step is not None, "finish_step on an idle instance"
        assert now_s >= step.ends_at_s, f"step ends at {step.ends_at_s}, not yet at {now_s}"
        events = step.events
        self._collect_tokens(events, now_s)
        self._start_step(now_s)
        return tuple(events)

    def _start_step(self, now_s: float) -> None:
        """Compose the next step; leaves none if there is nothing to run."""
        assert now_s >= self._started_at_s, f"time runs backwards: {now_s} after {self._started_at_s}"
        self._started_at_s = now_s
        batch = _Batch(budget=self.limits.max_num_batched_tokens)
        step = _Step(ends_at_s=now_s)
        preemptions_before = self.preemptions
        self._schedule_running(batch, step.events, now_s)
        if self.preemptions == preemptions_before:
            self._admit(batch, step.events, now_s)
        assert self._free_blocks >= 0, repr(self)
        assert batch.budget >= 0, repr(self)
        assert len(self._by_id) == len(self._running) + len(self._waiting), repr(self)
        if not self._running:
            assert not self._waiting, f"nobody can be admitted to an empty batch: {self!r}"
            self._step = None
            return
        step.ends_at_s += self.profile.step_s(batch.prefill_tokens, batch.decode_seqs, batch.kv_tokens)
        self._step = step

    def _schedule_running(self, batch: _Batch, events: list[Event], now_s: float) -> None:
        index = 0
        while index < len(self._running):
            sequence = self._running[index]
            if sequence.computed < sequence.target:
                sequence.scheduled = min(sequence.target - sequence.computed, batch.budget)
                batch.add_prefill(sequence.scheduled)
            elif self._make_room(sequence, events, now_s):
                sequence.scheduled = 1
                batch.add_decode(sequence.computed)
            index += 1

    def _make_room(self, sequence: _Sequence, events: list[Event], now_s: float) -> bool:
        """Give a decoding sequence the block its next token needs; False if it had to be preempted itself."""
        if sequence.computed < sequence.blocks * self.limits.block_size:
            return True
        while not self._free_blocks:
            victim = self._running[-1]
            self._preempt(victim, events, now_s)
            if victim is sequence:
                return False
        self._free_blocks -= 1
        sequence.blocks += 1
        return True

    def _preempt(self, victim: _Sequence, events: list[Event], now_s: float) -> None:
        assert not victim.scheduled, "the newest sequence is looked at last"
        self._running.pop()
        self._free(victim)
        victim.target = victim.request.prompt_tokens + victim.generated
        victim.computed = 0
        self._waiting.appendleft(victim)
        self.preemptions += 1
        events.append(Preempted(victim.request.id, now_s))

    def _admit(self, batch: _Batch, events: list[Event], now_s: float) -> None:
        while self._waiting and batch.budget and len(self._running) < self.limits.max_num_seqs:
            sequence = self._waiting[0]
            blocks = self.limits.blocks_for(sequence.target)
            if blocks > self._free_blocks:
                return
            self._waiting.popleft()
            self._running.append(sequence)
            self._free_blocks -= blocks
            sequence.blocks = blocks
            sequence.scheduled = min(sequence.target, batch.budget)
            batch.add_prefill(sequence.scheduled)
            events.append(Admitted(sequence.request.id, now_s))

    def _collect_tokens(self, events: list[Event], now_s: float) -> None:
        """Advance every scheduled sequence; one whose prompt is complete has sampled a token."""
        decoded: list[str] = []
        finished: list[_Sequence] = []
        held_blocks = 0
        for sequence in self._running:
            held_blocks += sequence.blocks
            if not sequence.scheduled:
                continue
            sequence.computed += sequence.scheduled
            sequence.scheduled = 0
            if sequence.computed < sequence.target:
                continue
            sequence.generated += 1
            if sequence.generated == 1:
                events.append(FirstToken(sequence.request.id, now_s))
            else:
                decoded.append(sequence.request.id)
            if sequence.generated == sequence.request.output_tokens:
                finished.append(sequence)
        assert held_blocks + self._free_blocks == self.limits.kv_blocks, f"{held_blocks} blocks held: {self!r}"
        if decoded:
            events.append(Decoded(tuple(decoded), now_s))
        if finished:
            self._retire(finished, events, now_s)

    def _retire(self, finished: list[_Sequence], events: list[Event], now_s: float) -> None:
        for sequence in finished:
            del self._by_id[sequence.request.id]
            self._free(sequence)
            events.append(Finished(sequence.request.id, now_s))
        self._running = [sequence for sequence in self._running if sequence.blocks]

    def _free(self, sequence: _Sequence) -> None:
        self._free_blocks += sequence.blocks
        sequence.blocks = 0
