"""A plain record of one engine's state, from which an instance or a what-if is built, and what may be read of it.

A snapshot describes the engine as it stands when the step in progress has ended: tokens of that step are counted,
requests that it completes have left. So whoever goes on from a snapshot starts at `taken_s + step_ends_s`.
Records only: nothing here decides anything.
"""

from dataclasses import dataclass

from predictor.profile import EngineLimits
from predictor.request import Estimate


@dataclass(frozen=True, slots=True)
class Resident:
    """A request inside an engine.

    `output_tokens` is the total expected: the truth where it is known, else the median estimate.
    `computed_tokens` have their KV in the cache; of a waiting request, those that a cached prefix will save it.
    After a preemption both prompt and output so far are computed again. `shared_blocks` are KV blocks of it that
    belong to a request before it: it neither takes them when it enters nor gives them back when it leaves.
    """

    id: str
    prompt_tokens: int
    computed_tokens: int
    generated_tokens: int
    output_tokens: int
    shared_blocks: int = 0

    @property
    def decoding(self) -> bool:
        """Whether one token is left to compute and that token is an output: the newest one, which has no KV yet."""
        return 0 < self.generated_tokens <= self.computed_tokens + 1 - self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One engine at one moment.

    `running` is in the order of admission, `waiting` in that of the queue. `free_blocks` counts all blocks that
    nobody holds; `cached_free_blocks` of them still keep a reusable prefix. `step_ends_s` is how many seconds after
    `taken_s` the step in progress ends (0: none, or not known), `preemptions` the engine's count so far.
    """

    taken_s: float
    limits: EngineLimits
    running: tuple[Resident, ...]
    waiting: tuple[Resident, ...]
    free_blocks: int
    cached_free_blocks: int = 0
    step_ends_s: float = 0.0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """What a policy may read of one instance: a prediction for the request asked about, and the state it rests on.

    `waiting_blocks` are the KV blocks that the prompts in the queue need, `queued_tokens` all tokens that running and
    waiting requests are still expected to compute or produce, `snapshot_age_s` how old the state is.
    """

    estimate: Estimate
    running: int
    waiting: int
    free_blocks: int
    waiting_blocks: int
    queued_tokens: int
    snapshot_age_s: float
