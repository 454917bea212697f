"""From a scheduler's queues to the record that it publishes each step. Runs inside the engine: it must be quick.

What does not change while nobody joins or leaves (ids, prompts, expected lengths) is encoded once and reused; a step
costs one look at the running requests and one call of the encoder. Engine-neutral: whoever knows an
engine's objects (vllm_scheduler) hands in requests with these attributes and the step's numbers. No clock, no I/O.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Protocol

from backends.snapshot_record import IDLE, NOBODY, Begun, Bids, Columns, Figures, Limits, Rule, Work, encode, raw

_COMPUTED = attrgetter("num_computed_tokens")
ID_CHARACTERS_MAX = 128
WAITING_LISTED_MAX = 128
_REQUEST_BYTES = ID_CHARACTERS_MAX + 84


class Seen(Protocol):
    """One request as the record needs it; names are vLLM's. `leeway_expected` is set by us."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int
    max_tokens: int
    leeway_expected: int

    @property
    def num_output_tokens(self) -> int: ...


class Ordering(Protocol):
    """How the engine's queue is ordered, where that is not by arrival."""

    rule: Rule

    def bids(self, listed: Sequence[Any]) -> Bids:
        """Of those who wait, in their order. Asked for when the list has changed."""
        ...

    def begun(self, running: Sequence[Any]) -> Begun:
        """Of those who run, prompts that stand in the same order. Asked for when the list has changed."""
        ...

    def figures(self) -> Figures:
        """Asked for each step."""
        ...

    def gammas(self) -> dict[str, float]:
        """Asked for when the list has changed."""
        ...


def payload_max(max_num_seqs: int) -> int:
    """Bytes that a record of an engine with so many seats can need."""
    return 4096 + _REQUEST_BYTES * (max_num_seqs + WAITING_LISTED_MAX)


def expected_tokens(hints: object, max_tokens: int) -> int:
    """The output length that the request's `leeway_out_tokens` foretells, within its limit; else the limit itself."""
    hint = hints.get("leeway_out_tokens") if isinstance(hints, dict) else None
    if isinstance(hint, (int, float)) and 1 <= hint < max_tokens:
        return int(hint)
    return max_tokens


class StepRecorder:
    """Makes one payload after another. `write` is given each one and answers whether there was room for it."""

    def __init__(self, engine: str, limits: Limits, write: Callable[[bytes], bool]) -> None:
        self._write = write
        self._engine = raw(engine)
        self._limits = raw(limits)
        self._running: list[Seen] = []
        self._running_raw = self._waiting_raw = raw(NOBODY)
        self._waiting: list[Seen] = []
        self._more = (0, 0)
        self._ordering: Ordering | None = None
        self._rule = self._bids = self._gammas = self._begun = raw(None)
        self._step, self._began_s = IDLE, 0.0
        self.dropped = 0

    def ordered(self, ordering: Ordering) -> None:
        """From now on records tell how the queue is ordered, too."""
        self._ordering = ordering
        self._rule, self._bids, self._gammas = raw(ordering.rule), raw(Bids()), raw(ordering.gammas())
        self._begun = raw(ordering.begun(self._running))
        self._list_waiting(self._waiting)

    def record(
        self,
        now_s: float,
        running: list[Seen],
        waiting: list[Seen],
        scheduled: dict[str, int],
        scheduled_tokens: int,
        free_blocks: int,
        preemptions: int,
    ) -> None:
        """Publish the state after a step was composed: `scheduled` has the tokens that each request computes in it, their
        sum `scheduled_tokens`. Most steps find nobody new, and one token for each: little is looked at then."""
        if running != self._running:
            self._running = running.copy()
            self._running_raw = raw(_columns(running))
            if self._ordering is not None:
                self._begun = raw(self._ordering.begun(running))
        if waiting != self._waiting:
            self._list_waiting(waiting.copy())
        computed = list(map(_COMPUTED, running))
        past, past_s = self._step, now_s - self._began_s if self._step is not IDLE else 0.0
        if scheduled_tokens == len(running) == len(scheduled) and running:
            self._step = step = Work(0, scheduled_tokens, sum(computed) - scheduled_tokens, 0)
        else:
            self._step = step = _work(running, scheduled, scheduled_tokens)
        self._began_s = now_s
        fields = (self._engine, self._limits, now_s, free_blocks, preemptions, step, past, past_s)
        queues: tuple[object, ...] = (self._running_raw, computed, self._waiting_raw, *self._more)
        if self._ordering is not None:
            queues = (*queues, self._rule, self._bids, self._ordering.figures(), self._gammas, self._begun)
        if not self._write(encode((*fields, *queues))):
            self.dropped += 1

    def _list_waiting(self, queue: list[Seen]) -> None:
        listed = queue[:WAITING_LISTED_MAX]
        self._waiting = queue
        self._waiting_raw = raw(_columns(listed))
        more = islice(queue, WAITING_LISTED_MAX, None)
        self._more = (len(queue) - len(listed), sum(request.num_prompt_tokens for request in more))
        if self._ordering is not None:
            self._bids, self._gammas = raw(self._ordering.bids(listed)), raw(self._ordering.gammas())


def _columns(requests: list[Seen]) -> Columns:
    return Columns(
        [request.request_id[:ID_CHARACTERS_MAX] for request in requests],
        [request.num_prompt_tokens for request in requests],
        [request.leeway_expected for request in requests],
        [request.max_tokens for request in requests],
        [request.num_output_tokens for request in requests],
    )


def _work(running: list[Seen], scheduled: dict[str, int], total: int) -> Work:
    """What the step computes, request by request."""
    if not total:
        return IDLE
    decoding = context = pairs = 0
    for request in running:
        tokens = scheduled.get(request.request_id, 0)
        before = request.num_computed_tokens - tokens
        if tokens == 1 and before >= request.num_prompt_tokens:
            decoding += 1
            context += before
        elif tokens:
            pairs += tokens * (2 * before + tokens) // 2
    return Work(total - decoding, decoding, context, pairs)
