"""What a simulated run leaves behind, and what the cluster notes of each request on its way. Records only."""

from dataclasses import dataclass

from gateway.jobs import Job
from gateway.sim.front import Front
from gateway.sim.workload import SimRequest
from predictor.request import Timeline
from predictor.seats import Progress


@dataclass(frozen=True, slots=True)
class Sent:
    """One dispatch: when it was decided, to which replica."""

    at_s: float
    request_id: str
    replica: int
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run left behind. `preemptions_probed` is the sum that the published figure counted: the counters of the
    replicas probed for one request, mean of the last 200 requests."""

    label: str
    seed: int
    rate_per_s: float
    timelines: tuple[Timeline, ...]
    sent: tuple[Sent, ...]
    preemptions: int
    preemptions_probed: float
    lost: int
    prompt_tokens: int
    hit_tokens: int


class Track:
    """One request on its way."""

    __slots__ = ("dispatched_s", "finished_s", "first_token_s", "front", "job", "preemptions", "progress", "request", "sent")

    def __init__(self, request: SimRequest, job: Job, front: Front) -> None:
        self.request = request
        self.job = job
        self.front = front
        self.sent: Sent | None = None
        self.progress: Progress | None = None  # to be read once its answer has begun
        self.dispatched_s: float | None = None
        self.first_token_s: float | None = None
        self.finished_s: float | None = None
        self.preemptions = 0

    def timeline(self) -> Timeline:
        """Its instants."""
        tokens = self.request.output_tokens if self.finished_s is not None else 0
        return Timeline(
            self.request.id,
            self.request.arrival_s,
            self.dispatched_s,
            self.first_token_s,
            self.finished_s,
            tokens,
            self.preemptions,
        )
