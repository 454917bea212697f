"""The desk: who gets a request, when, and what is known of every replica. Pure; one desk for one model.

Events go in (a job arrived, a first token, an end), actions come out (Dispatch, Probe). The simulator and the live
gateway drive the same object. What holds: a job is dispatched at most once and none is lost; a dispatch counts at its
replica before anything else is decided; whoever waits leaves with the first event that lets it, so call `tick` at
`due_s`. The owner carries out actions at once and in their order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from gateway.config import ModelSpec
from gateway.jobs import Action, Dispatch, Job, Probe
from predictor.mirror import Progress, Sight
from predictor.profile import EngineLimits, StepProfile
from predictor.snapshot import ProbeReply

__all__ = ["Action", "Desk", "Dispatch", "EngineView", "Job", "Probe"]

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class EngineView:
    """What is believed of an engine. `sight`, where there is one, tells when its step in progress ends (an Instance
    does); without it the mirror reckons that from the profile and from what it hears. `sidecar`: policies that predict
    ask for it by a Probe; without one they predict here. `learns`: correct the profile's pace by what is observed."""

    profile: StepProfile
    limits: EngineLimits
    weight: float = 1.0
    max_in_flight: int = 1024
    sidecar: bool = False
    sight: Sight | None = None
    learns: bool = False


class Desk:
    """See the module's words. All instants are of one clock, and never run backwards."""

    def __init__(self, rule: ModelSpec, rng: Random, *, own_dispatches: bool = True) -> None:
        """`own_dispatches = False` lets policies see only what probes reported, as the published systems do."""

    @property
    def due_s(self) -> float:
        """When `tick` should be called if nothing happens before; infinity when nobody waits for time alone."""
        return NEVER

    @property
    def waiting(self) -> int:
        """Jobs that are not dispatched yet."""
        return 0

    def added(self, name: str, engine: EngineView) -> None:
        """A replica may be used from now on."""

    def removed(self, name: str) -> None:
        """It may not be used any more; jobs that are there end as they end."""

    def arrived(self, job: Job, now_s: float, avoid: frozenset[str] = frozenset()) -> list[Action]:
        """A new job; never to one of `avoid`."""
        return []

    def probed(self, job_id: str, replies: Mapping[str, ProbeReply | None], now_s: float) -> list[Action]:
        """What came back of a Probe: a name without an entry was late, None stands for a failed probe."""
        return []

    def started(self, job_id: str, progress: Progress) -> None:
        """The job is at its replica; its progress can be read there from now on."""

    def first_token(self, job_id: str, now_s: float) -> list[Action]:
        """The job's first output token came."""
        return []

    def finished(self, job_id: str, output_tokens: int, now_s: float) -> list[Action]:
        """The job's answer is complete."""
        return []

    def lost(self, job_id: str, now_s: float) -> list[Action]:
        """The job is gone: cancelled while it waited, or failed or cancelled where it was. It may arrive again."""
        return []

    def tick(self, now_s: float) -> list[Action]:
        """Time passed."""
        return []
