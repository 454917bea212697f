"""What a mirror keeps of each request, and what it asks of whoever can tell more: small records and protocols. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from predictor.request import LengthEstimate
from predictor.rest import REPAIR_TOKENS, Rest


class Progress(Protocol):
    """How far one request is, read when needed. `computed` counts tokens whose KV exists, hits included; below 0 when
    nobody can say."""

    @property
    def generated(self) -> int: ...
    @property
    def computed(self) -> int: ...


class Sight(Protocol):
    """An engine whose clock can be seen: when its step in progress ends, None when it is idle."""

    @property
    def step_ends_at_s(self) -> float | None: ...


class Demand(Protocol):
    """What a mirror needs to know of a request (a Job has it)."""

    @property
    def id(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def lengths(self) -> LengthEstimate: ...
    @property
    def prefix(self) -> tuple[int, ...]: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def streams(self) -> bool: ...


class Sent(Demand, Protocol):
    """... of one that is sent: when it arrived, its class, and what is promised: until when its first token, and each further
    one within how long."""

    @property
    def arrival_s(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def class_name(self) -> str: ...
    @property
    def tpot_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Mark:
    """An instant: a running request and its tokens so far, the seconds that prompts computed up to then should have
    taken, and a step's seconds."""

    id: str
    at_s: float
    generated: int
    filled_s: float
    step_s: float


class Seat:
    """One request at an engine. `private_tokens` of its prompt lie in no shareable block; `starts_s` is when the first
    step that can include it begins, `due_s` when its first token was predicted as it was sent, `first_s` when it came
    (below 0: not yet), `deadline_s` when it is promised; `tier` is where it stood in the line. Without a progress to read,
    its output is reckoned; so is its first token where it does not stream: of one that does it will be told, and until
    then it is late. `passed`: one behind it had its first token before."""

    __slots__ = (
        "arrival_s", "class_name", "computed", "deadline_s", "due_s", "first_s", "hit_tokens", "id", "passed", "prefix",
        "private_tokens", "progress", "prompt_tokens", "reckoned", "rest", "sent_s", "starts_s", "streams", "tier", "tpot_s",
    )  # fmt: skip

    def __init__(self, demand: Sent, hit_tokens: int, now_s: float, progress: Progress | None, tier: int = 1) -> None:
        self.id = demand.id
        self.arrival_s, self.deadline_s = demand.arrival_s, demand.deadline_s
        self.class_name, self.tpot_s, self.tier = demand.class_name, demand.tpot_s, tier
        self.prompt_tokens = demand.prompt_tokens
        self.computed = self.hit_tokens = min(hit_tokens, demand.prompt_tokens - 1)
        self.rest = Rest(demand.lengths)
        self.prefix = demand.prefix
        self.private_tokens = max(0, demand.prompt_tokens - len(demand.prefix) * demand.block_tokens)
        self.progress = progress
        self.reckoned = 0
        self.streams = demand.streams
        self.sent_s = self.starts_s = self.due_s = now_s
        self.first_s = -1.0
        self.passed = False

    def generated(self) -> int:
        """Output tokens so far."""
        progress = self.progress
        return self.reckoned if progress is None else progress.generated

    def left(self) -> int:
        """Output tokens for which room is kept."""
        return self.room_after(self.generated())

    def room_after(self, generated: int) -> int:
        """The same after so many: what is left of the median, at least a few. On condition that those were not all, more is
        to come (`rest`); but the peak of such medians is more than an engine ever holds, since many end before theirs, and
        what waits for room loses more than is saved in preemptions (docs/papers/astrolabe.md, "Lengths under way")."""
        return max(REPAIR_TOKENS, self.rest.median - generated)


def queued_tokens(seats: Collection[Seat]) -> int:
    """Tokens still to be computed or produced, as expected."""
    return sum([max(0, seat.prompt_tokens - seat.computed) + seat.left() for seat in seats])


def prompt_tokens(seats: Collection[Seat]) -> int:
    """Of all their prompts."""
    return sum([seat.prompt_tokens for seat in seats])


def unstarted_tokens(seats: Collection[Seat]) -> int:
    """Of the prompts without a first token, less their hits."""
    return sum([seat.prompt_tokens - seat.hit_tokens for seat in seats if seat.first_s < 0])


def context_tokens(seats: Collection[Seat]) -> int:
    """Prompts and outputs so far."""
    return sum([seat.prompt_tokens + seat.generated() for seat in seats])
