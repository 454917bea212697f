"""The requests of a CASCADE run on their way: what is believed of each, when it was sent, when its tokens came. Pure."""

import math

from gateway.sim.cascade_spec import CascadeSpec, VariantSpec
from gateway.sim.workload import SimRequest
from predictor.budget import Estimator, Gamma, Load, Need, Releases, SloTarget, deadline_s
from predictor.prefill import StepCosts
from predictor.profile import EngineLimits
from predictor.request import Request, Timeline
from predictor.waiting import Waiting

USUAL = Need(2048)  # the prompt by which an engine's present pace is told


class Job:
    """One request."""

    def __init__(self, request: SimRequest, kind: int, target: SloTarget) -> None:
        self.request = request
        self.kind = kind
        self.target = target
        self.prompt_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.waiting = Waiting(request.id, request.arrival_s, 0.0, request.prompt_tokens)
        self.node = -1  # the engine that it is bound to
        self.left = 0  # prompt tokens to be given to it, once it is in an engine
        self.tried = False  # whether its prefix has been judged
        self.restoring = 0
        self.sync_s = 0.0
        self.estimate_s = 0.0
        self.sent_tokens = 0
        self.served_s = 0.0  # computing its prompt took, see `serve`
        self.sent_tier = 1
        self.first_sent_s: float | None = None
        self.first_s: float | None = None
        self.finished_s: float | None = None

    def engine_request(self) -> Request:
        """As an engine sees it."""
        return Request(self.request.id, self.prompt_tokens, self.output_tokens, self.request.arrival_s, self.request.prefix)

    def send(self, now_s: float, estimate_s: float) -> None:
        """It goes to an engine."""
        self.estimate_s = estimate_s + self.sync_s
        self.served_s = 0.0
        self.sent_tokens = self.left
        self.sync_s = 0.0
        if self.first_sent_s is None:
            self.first_sent_s = now_s
            self.sent_tier = self.waiting.tier

    def serve(self, step_s: float, part: float) -> None:
        """A step computes some of its prompt, with that part of its tokens: its part of a step that others share, the
        whole of the one that completes it. So what it waits for others in between is not taken for its own service."""
        self.served_s += step_s * part if self.left else step_s

    def restart(self, generated: int) -> None:
        """Its engine was lost after so many tokens: prompt and output so far are to be computed again."""
        if generated < self.output_tokens:
            self.prompt_tokens += generated
            self.output_tokens -= generated

    def block_seconds(self, costs: StepCosts, block: int) -> list[float]:
        """What computing each block of its prefix costs."""
        return [costs.tokens_s(block, block * (i + 0.5) * block) for i in range(len(self.request.prefix))]

    def timeline(self) -> Timeline:
        """Its instants."""
        done = self.request.output_tokens if self.finished_s is not None else 0
        return Timeline(self.request.id, self.request.arrival_s, self.first_sent_s, self.first_s, self.finished_s, done)


class Jobs:
    """All of a run, and what is learned from them."""

    def __init__(
        self,
        spec: CascadeSpec,
        variant: VariantSpec,
        costs: StepCosts,
        limits: EngineLimits,
        mix: list[tuple[SimRequest, int]],
    ) -> None:
        targets = [SloTarget(one.ttft_s, one.tpot_s or math.inf) for one in spec.classes]
        self._names = [one.name for one in spec.classes]
        self._gamma = Gamma(fixed=variant.gamma)
        self._idle = Estimator(costs, limits, Load(0, 0.0), Releases((), 0, 0))
        self._usual_s = self._idle.work_s(USUAL)
        self.ordered = [Job(request, kind, targets[kind]) for request, kind in mix]
        self.by_id = {job.request.id: job for job in self.ordered}

    def _kind(self, job: Job, tokens: int) -> str:
        """What its guard goes by: its class, and the tokens to compute in steps of four."""
        return f"{self._names[job.kind]}/{tokens.bit_length() // 2}"

    def gamma(self, job: Job, tokens: int) -> float:
        """Its guard, with so many tokens to compute."""
        return self._gamma.of(self._kind(job, tokens))

    def gammas(self) -> tuple[float, ...]:
        """Of all classes, mean over their requests."""
        found = []
        for kind in range(len(self._names)):
            mine = [self.gamma(job, job.prompt_tokens) for job in self.ordered if job.kind == kind]
            found.append(sum(mine) / max(len(mine), 1))
        return tuple(found)

    def stretch(self, estimator: Estimator) -> float:
        """How much slower an engine is now than an idle one, for a usual prompt."""
        return estimator.work_s(USUAL) / self._usual_s

    def waiting(self, job: Job, cached: int, now_s: float) -> Waiting:
        """Its entry in the queue, as if so many tokens need not be computed. One that has answered already, and lost its
        engine, gets its class's TTFT anew."""
        cost_s, work_s, mean_s = self.seconds(job, cached)
        begins_s = now_s if job.first_s is not None else job.request.arrival_s
        job.waiting = Waiting(
            job.request.id,
            job.request.arrival_s,
            cost_s,
            job.prompt_tokens,
            deadline_s(job.target, begins_s),
            work_s=work_s,
            mean_s=mean_s,
        )
        return job.waiting

    def seconds(self, job: Job, cached: int) -> tuple[float, float, float]:
        """The guarded cost, the work and the cost without the guard of what remains when so many tokens need not be
        computed."""
        need = Need(job.prompt_tokens - cached, cached)
        mean_s = self._idle.prefill_s(need)
        return mean_s * self.gamma(job, need.tokens), self._idle.work_s(need), mean_s

    def left(self, name: str, generated: int) -> int:
        """Output tokens still expected: as told, or a tenth of what there is where that proved short."""
        return max(self.by_id[name].request.lengths.q50 - generated, generated // 10 + 1)

    def began(self, job: Job, now_s: float) -> None:
        """Its first token, or its first one after it lost its engine."""
        if job.first_s is None:
            job.first_s = now_s
            self._gamma.saw(self._kind(job, job.sent_tokens), job.estimate_s, job.served_s)
