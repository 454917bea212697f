"""What the desk is told and what it answers: records only.

A Job is a request as dispatch sees it; an Action is all that the desk can ask of its owner, who carries it out at once
and in order: the job of a Dispatch already counts as being there.
"""

from dataclasses import dataclass, replace

from predictor.request import LengthEstimate

PREFIX_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Job:
    """One request to place. `prefix` hashes its full prompt blocks of `block_tokens` in order, each hash standing for
    all text up to its block's end; empty where prefixes are not followed. `arrival_s` is of the desk's clock.
    `deadline_s` is the instant by which its first token is promised; of what waits, tenants share by `tenant_weight`.
    `plain` is the length it would have had without a prediction, where the two are to be compared. `streams`: its first
    token will be seen. `id` is the desk's own; `request_id` the one under which the engine gets it, for sidecars ("":
    the same)."""

    id: str
    model: str
    prompt_tokens: int
    lengths: LengthEstimate
    arrival_s: float
    prefix: tuple[int, ...] = ()
    session: str = ""
    block_tokens: int = PREFIX_BLOCK_TOKENS
    request_id: str = ""
    deadline_s: float = float("inf")
    class_name: str = ""
    tenant: str = ""
    tenant_weight: float = 1.0
    plain: LengthEstimate | None = None
    streams: bool = True


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the job there now. `hit_tokens` of its prompt are expected in that engine's cache; `reason` is for people:
    the policy's name, or the cause of a fallback. `tier` is where it stood, `second_s` how long it was in tier 2."""

    job: Job
    name: str
    hit_tokens: int
    reason: str
    estimate_s: float = float("nan")  # the predicted time to first token, where one was made
    tier: int = 1
    second_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask these replicas for a reply, then call `Desk.probed` with what came in time."""

    job: Job
    names: tuple[str, ...]


Action = Dispatch | Probe


def told(action: Action, tier: int, second_s: float) -> Action:
    """The same, with where in the line it comes from."""
    return replace(action, tier=tier, second_s=second_s) if isinstance(action, Dispatch) else action
