"""What the desk is told and what it answers: records only.

A Job is a request as dispatch sees it; an Action is all that the desk can ask of its owner, who carries it out at once
and in order: the job of a Dispatch already counts as being there.

Several are made for each request, hence their form: `Final` fields and an `__init__` of their own, which the compiler
makes a fiftieth as dear as what `dataclass(frozen=True)` writes. Nobody changes one; compiled, nobody can.
"""

from dataclasses import dataclass, replace
from typing import Final

from predictor.request import LengthEstimate

PREFIX_BLOCK_TOKENS = 512


@dataclass(slots=True, init=False, unsafe_hash=True)
class Job:
    """One request to place. `prefix` hashes its full prompt blocks of `block_tokens` in order, each hash standing for
    all text up to its block's end; empty where prefixes are not followed. `arrival_s` is of the desk's clock.
    `deadline_s` is the instant by which its first token is promised, `tpot_s` the seconds for each further one, on the mean
    over its answer; of what waits, tenants share by `tenant_weight`.
    `plain` is the length it would have had without a prediction, where the two are to be compared. `streams`: its first
    token will be seen. `id` is the desk's own; `request_id` the one under which the engine gets it, for sidecars ("":
    the same)."""

    id: Final[str]
    model: Final[str]
    prompt_tokens: Final[int]
    lengths: Final[LengthEstimate]
    arrival_s: Final[float]
    prefix: Final[tuple[int, ...]]
    session: Final[str]
    block_tokens: Final[int]
    request_id: Final[str]
    deadline_s: Final[float]
    tpot_s: Final[float]
    class_name: Final[str]
    tenant: Final[str]
    tenant_weight: Final[float]
    plain: Final[LengthEstimate | None]
    streams: Final[bool]

    def __init__(
        self,
        id: str,  # noqa: A002
        model: str,
        prompt_tokens: int,
        lengths: LengthEstimate,
        arrival_s: float,
        prefix: tuple[int, ...] = (),
        session: str = "",
        block_tokens: int = PREFIX_BLOCK_TOKENS,
        request_id: str = "",
        deadline_s: float = float("inf"),
        class_name: str = "",
        tenant: str = "",
        tenant_weight: float = 1.0,
        plain: LengthEstimate | None = None,
        streams: bool = True,
        tpot_s: float = float("inf"),
    ) -> None:
        self.id = id
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.lengths = lengths
        self.arrival_s = arrival_s
        self.prefix = prefix
        self.session = session
        self.block_tokens = block_tokens
        self.request_id = request_id
        self.deadline_s = deadline_s
        self.tpot_s = tpot_s
        self.class_name = class_name
        self.tenant = tenant
        self.tenant_weight = tenant_weight
        self.plain = plain
        self.streams = streams


@dataclass(slots=True, init=False, unsafe_hash=True)
class Dispatch:
    """Send the job there now. `hit_tokens` of its prompt are expected in that engine's cache; `reason` is for people:
    the policy's name, or the cause of a fallback. `estimate_s` is the predicted time to first token, NaN where none was
    made. `tier` is where it stood, `second_s` how long it was in tier 2."""

    job: Final[Job]
    name: Final[str]
    hit_tokens: Final[int]
    reason: Final[str]
    estimate_s: Final[float]
    tier: Final[int]
    second_s: Final[float]

    def __init__(
        self,
        job: Job,
        name: str,
        hit_tokens: int,
        reason: str,
        estimate_s: float = float("nan"),
        tier: int = 1,
        second_s: float = 0.0,
    ) -> None:
        self.job = job
        self.name = name
        self.hit_tokens = hit_tokens
        self.reason = reason
        self.estimate_s = estimate_s
        self.tier = tier
        self.second_s = second_s


@dataclass(slots=True, init=False, unsafe_hash=True)
class Probe:
    """Ask these replicas for a reply, then call `Desk.probed` with what came in time. `tier` and `second_s` as of a
    Dispatch."""

    job: Final[Job]
    names: Final[tuple[str, ...]]
    tier: Final[int]
    second_s: Final[float]

    def __init__(self, job: Job, names: tuple[str, ...], tier: int = 1, second_s: float = 0.0) -> None:
        self.job = job
        self.names = names
        self.tier = tier
        self.second_s = second_s


Action = Dispatch | Probe


def told(action: Action, tier: int, second_s: float) -> Action:
    """The same, with where in the line it comes from."""
    return replace(action, tier=tier, second_s=second_s)
