"""A plain record of one engine's state, from which an instance or a what-if is built, and what may be read of it.

A snapshot describes the engine as it stands when the step in progress has ended: tokens of that step are counted,
requests that it completes have left. So whoever goes on from a snapshot starts at `taken_s + step_ends_s`.
Records only: nothing here decides anything.
"""

from dataclasses import dataclass, replace
from typing import Final

from predictor.profile import EngineLimits
from predictor.request import Estimate
from predictor.rest import REPAIR_TOKENS


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


@dataclass(slots=True, unsafe_hash=True)  # as Estimate
class ProbeReply:
    """What a policy may read of one instance: a prediction for the request asked about, and the state it rests on.

    `waiting_blocks` are the KV blocks that the prompts in the queue need, `queued_tokens` all tokens that running and
    waiting requests are still expected to compute or produce, `snapshot_age_s` how old the state is.
    """

    estimate: Final[Estimate]
    running: Final[int]
    waiting: Final[int]
    free_blocks: Final[int]
    waiting_blocks: Final[int]
    queued_tokens: Final[int]
    snapshot_age_s: Final[float]


GARBLED = ProbeReply(Estimate.unknown, 0, 0, 0, 0, 0, 0.0)  # stands for an answer that is none


def settle(snapshot: Snapshot) -> Snapshot:
    """The same state with its loose ends tied, as both ways of simulating need it; the same object if there are none.

    An answer as long as expected or longer is expected to go on for `REPAIR_TOKENS` (the repair of the Astrolabe
    paper), none beyond the model's length. Blocks that nobody accounts for (look-ahead) count as free. If more are free
    than the residents leave, some are shared: the newest ones hold the beginnings of their prompts with others.
    Raises ValueError for a state that no engine can be in.
    """
    limits = snapshot.limits
    running = tuple(_expected(who, limits) for who in snapshot.running)
    waiting = tuple(_expected(who, limits) for who in snapshot.waiting)
    loose = limits.kv_blocks - snapshot.free_blocks - sum(held_blocks(who, limits) - who.shared_blocks for who in running)
    if loose < 0:
        running = _shared(running, -loose, limits)
    free_blocks = snapshot.free_blocks + max(0, loose)
    if (running, waiting, free_blocks) == (snapshot.running, snapshot.waiting, snapshot.free_blocks):
        return snapshot
    return replace(snapshot, running=running, waiting=waiting, free_blocks=free_blocks)


def _expected(who: Resident, limits: EngineLimits) -> Resident:
    room = limits.max_model_len - who.prompt_tokens
    if who.prompt_tokens < 1 or who.generated_tokens < 0 or who.generated_tokens >= room:
        raise ValueError(f"request {who.id!r}: more tokens than the model holds, or fewer than none")
    if not 0 <= who.computed_tokens < who.prompt_tokens + who.generated_tokens or not (
        0 <= who.shared_blocks <= who.prompt_tokens // limits.block_size
    ):
        raise ValueError(f"request {who.id!r}: computed tokens or shared blocks out of range")
    output_tokens = who.output_tokens if who.output_tokens > who.generated_tokens else who.generated_tokens + REPAIR_TOKENS
    output_tokens = min(output_tokens, room)
    return who if output_tokens == who.output_tokens else replace(who, output_tokens=output_tokens)


def held_blocks(who: Resident, limits: EngineLimits) -> int:
    """KV blocks in which a running request has its tokens: those computed, and the whole of a prompt once begun."""
    return limits.blocks_for(who.computed_tokens if who.decoding else who.prompt_tokens + who.generated_tokens)


def _shared(running: tuple[Resident, ...], blocks: int, limits: EngineLimits) -> tuple[Resident, ...]:
    """So many more blocks shared, from the newest request on, no more than the full blocks of its prompt."""
    out = []
    for who in reversed(running):
        more = min(blocks, max(0, who.prompt_tokens // limits.block_size - who.shared_blocks))
        blocks -= more
        out.append(replace(who, shared_blocks=who.shared_blocks + more) if more else who)
    if blocks:
        raise ValueError(f"{blocks} blocks more than the engine has")
    return tuple(reversed(out))
