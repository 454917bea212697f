"""The nouns of the model: a request, what happens to it, and what is predicted about it.

Instants and durations are seconds and end in `_s`; instants may come from any clock as long as one request sees
only one. TTFT, TPOT and E2E are defined once, on `Timeline`. Records only: nothing here decides anything.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Final


@dataclass(frozen=True, slots=True)
class Request:
    """One generation as an engine sees it.

    `output_tokens` is how many tokens it will produce: the truth where the request is replayed, an estimate where
    it is predicted. `prefix` names its full prompt blocks in order: the hash of a block stands for all text up to its
    end, so two prompts share a beginning exactly as far as their hashes agree; empty where prefixes are not followed.
    Raises ValueError when a count is below 1.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    arrival_s: float
    prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"request {self.id!r}: prompt_tokens and output_tokens must be at least 1")


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request entered the running batch, with so many tokens taken from the prefix cache; again after preemption."""

    request_id: str
    at_s: float
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Preempted:
    """The request lost its KV blocks and went back to the front of the queue to be computed again."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The request produced its first output token."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Decoded:
    """Each of these requests produced one further output token in the same step (one record a step, not a token)."""

    request_ids: tuple[str, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The request produced its last token, reported just before, and has left."""

    request_id: str
    at_s: float


Event = Admitted | Preempted | FirstToken | Decoded | Finished


@dataclass(frozen=True, slots=True)
class Timeline:
    """The instants of one request; None where a thing has not happened."""

    request_id: str
    arrived_s: float
    dispatched_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    output_tokens: int = 0
    preemptions: int = 0

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first output token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two tokens."""
        if self.first_token_s is None or self.finished_s is None or self.output_tokens < 2:
            return None
        return (self.finished_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Arrival to last output token."""
        return None if self.finished_s is None else self.finished_s - self.arrived_s


@dataclass(slots=True, unsafe_hash=True)  # as Estimate
class LengthEstimate:
    """How many tokens an answer may have: three quantiles, and who says so.

    Raises ValueError unless 0 < q10 <= q50 <= q90.
    """

    q10: Final[int]
    q50: Final[int]
    q90: Final[int]
    source: Final[str]

    def __post_init__(self) -> None:
        if not 0 < self.q10 <= self.q50 <= self.q90:
            raise ValueError(f"length quantiles must rise from above 0: {self.q10}, {self.q50}, {self.q90}")


@dataclass(slots=True, unsafe_hash=True)  # `Final` keeps it as it is; `frozen` makes its making five times as dear
class Estimate:
    """What is predicted of one request on one replica, counted from the instant of the prediction.

    `wait_s` ends with the admission to the batch, `preempt_p` is the chance to be preempted at least once,
    `kv_peak_blocks` the most blocks in use at once until the request ends, `harm_s` the seconds by which it delays the
    ends of the others, summed. `least` and `most` bound eight in ten of what was observed lately, as factors of what was
    predicted (of steps and seconds per token by sidecars, of first tokens by mirrors): times them, a latency has its
    interval. `spread` >= 1 is by which factor predictions were off, for whoever distrusts them. What was not asked for or
    cannot be said is NaN (blocks: 0).
    `Estimate.unknown` stands for "nobody could say". Its figures are NaN, so every comparison with them is false:
    ask `is_known` before ranking, and fall back for all candidates alike.
    """

    unknown: ClassVar["Estimate"]

    ttft_s: Final[float]
    tpot_s: Final[float]
    e2e_s: Final[float]
    wait_s: Final[float] = math.nan
    preempt_p: Final[float] = math.nan
    kv_peak_blocks: Final[int] = 0
    harm_s: Final[float] = math.nan
    spread: Final[float] = 1.0
    least: Final[float] = 1.0
    most: Final[float] = 1.0

    @property
    def is_known(self) -> bool:
        """Whether the figures may be compared."""
        return not math.isnan(self.e2e_s)


Estimate.unknown = Estimate(math.nan, math.nan, math.nan)
