"""From a scheduler's queues to the record that it publishes each step. Runs inside the engine: it must be quick.

What does not change while nobody joins or leaves (ids, prompts, expected lengths) is encoded once and reused; a step
costs two list comprehensions over the running requests and one call of the encoder. Engine-neutral: whoever knows an
engine's objects (vllm_scheduler) hands in requests with these attributes and the step's numbers. No clock, no I/O.
"""

from collections.abc import Callable
from itertools import islice
from typing import Protocol

from backends.snapshot_record import IDLE, NOBODY, Columns, Limits, Work, encode, raw

ID_CHARACTERS_MAX = 128
WAITING_LISTED_MAX = 128
_REQUEST_BYTES = ID_CHARACTERS_MAX + 48


class Seen(Protocol):
    """One request as the record needs it; names are vLLM's. `leeway_expected` is set by us."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int
    max_tokens: int
    leeway_expected: int

    @property
    def num_output_tokens(self) -> int: ...


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
        self._running_raw = raw(NOBODY)
        self._waiting: list[Seen] = []
        self._waiting_raw = raw(NOBODY)
        self._waiting_generated = raw([])
        self._more = (0, 0)
        self._step, self._began_s = IDLE, 0.0
        self.dropped = 0

    def record(
        self,
        now_s: float,
        running: list[Seen],
        waiting: list[Seen],
        scheduled: dict[str, int],
        free_blocks: int,
        preemptions: int,
    ) -> None:
        """Publish the state after a step was composed: `scheduled` has the tokens that each request computes in it."""
        if running != self._running:
            self._running = running.copy()
            self._running_raw = raw(_columns(running))
        if waiting != self._waiting:
            self._list_waiting(waiting.copy())
        computed = [request.num_computed_tokens for request in running]
        past, past_s = self._step, now_s - self._began_s
        self._step, self._began_s = _work(running, scheduled, sum(computed)), now_s
        payload = encode(
            (
                self._engine,
                self._limits,
                now_s,
                free_blocks,
                preemptions,
                self._step,
                past,
                past_s if past is not IDLE else 0.0,
                self._running_raw,
                computed,
                [request.num_output_tokens for request in running],
                self._waiting_raw,
                self._waiting_generated,
                *self._more,
            )
        )
        if not self._write(payload):
            self.dropped += 1

    def _list_waiting(self, queue: list[Seen]) -> None:
        listed = queue[:WAITING_LISTED_MAX]
        self._waiting = queue
        self._waiting_raw = raw(_columns(listed))
        self._waiting_generated = raw([request.num_output_tokens for request in listed])
        more = islice(queue, WAITING_LISTED_MAX, None)
        self._more = (len(queue) - len(listed), sum(request.num_prompt_tokens for request in more))


def _columns(requests: list[Seen]) -> Columns:
    return Columns(
        [request.request_id[:ID_CHARACTERS_MAX] for request in requests],
        [request.num_prompt_tokens for request in requests],
        [request.leeway_expected for request in requests],
        [request.max_tokens for request in requests],
    )


def _work(running: list[Seen], scheduled: dict[str, int], computed: int) -> Work:
    """What the step computes. In most steps every request decodes one token, and nothing needs to be looked at."""
    total, seqs = sum(scheduled.values()), len(scheduled)
    if not total:
        return IDLE
    if total == seqs == len(running):
        return Work(0, seqs, computed - seqs, 0)
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
