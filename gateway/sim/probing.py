"""What probes of simulated engines answer: the predictor's own model on the truth's state, late and noisy if so asked. Pure.

The state of a probe is the engine's of the moment, or a published snapshot whose age lies between the two bounds of the
scenario. The prediction always uses the believed profile and the told lengths, never the truth's.
"""

from dataclasses import replace
from random import Random

from gateway.jobs import Job
from gateway.policies.table import PREDICTING
from gateway.sim.scenario import PolicySpec, Scenario
from gateway.sim.stalls import Clock
from gateway.sim.truth import Engine, metrics_of
from gateway.sim.workload import ERROR_MAX, ERROR_MIN
from predictor.forecast import Forecast
from predictor.foretold import Foretold
from predictor.request import Estimate, Request
from predictor.snapshot import ProbeReply, Snapshot

UNTOLD = 1 << 30  # what an engine reckons with that knows no length; cut to what fits its model


class Sidecars:
    """One beside each engine. `period_s` is how often snapshots are published; 0 = always fresh."""

    def __init__(self, scenario: Scenario, policy: PolicySpec, engines: list[Engine], clock: Clock, rng: Random) -> None:
        young_s, old_s = scenario.view.snapshot_age_s
        self.period_s = old_s - young_s if policy.sidecar else 0.0
        self._young_s = young_s
        self._predicts = policy.policy in PREDICTING
        self._engines = engines
        self._clock = clock
        self._rng = rng
        self._latency_noise = scenario.view.latency_noise
        self._length_noise = scenario.view.length_noise
        self._expected: dict[str, int] = {}
        self._conditional = policy.under_way == "conditional" and self._predicts
        self._foretold = Foretold()
        kinds = [kind for kind in scenario.replicas for _ in range(kind.count)]
        self._forecasts = [Forecast(kind.profile.scaled(kind.slower), kind.limits) for kind in kinds]
        self._published: list[list[Snapshot]] = [[] for _ in engines]
        self._loaded: list[Snapshot | None] = [None for _ in engines]

    def offset_s(self, index: int) -> float:
        """When engine number `index` publishes first: they do not all publish at one instant."""
        return self.period_s * index / len(self._engines)

    def expects(self, job: Job) -> None:
        """The length told for a request is known to whoever observes engines."""
        if self._conditional:
            self._foretold.told(job.id, job.lengths)
        self._expected[job.id] = UNTOLD if self._conditional else job.lengths.q50

    def forgets(self, request_id: str) -> None:
        """It has ended."""
        self._expected.pop(request_id, None)

    def publish(self, index: int) -> None:
        """Note an engine's state of the moment."""
        kept = self._published[index]
        kept.append(self._engines[index].snapshot(self._clock.now_s, self._expected))
        while len(kept) > 1 and kept[1].taken_s <= self._clock.now_s - self._young_s:
            del kept[0]

    def reply(self, index: int, job: Job) -> ProbeReply:
        """The answer of engine number `index` to a probe for this job."""
        if not self._predicts and not self._published[index]:
            return self._engines[index].reply(self._expected)
        snapshot = self._snapshot(index)
        if not self._predicts:
            return metrics_of(snapshot, self._clock.now_s - snapshot.taken_s)
        forecast = self._forecasts[index]
        if self._loaded[index] is not snapshot:
            forecast.load(self._foretold.corrected(snapshot) if self._conditional else snapshot)
            self._loaded[index] = snapshot
        tokens = max(1, int(job.lengths.q50 * self._factor(self._length_noise)))
        request = Request(job.id, job.prompt_tokens, tokens, job.arrival_s, job.prefix)
        reply = forecast.reply(request, now_s=self._clock.now_s, hit_tokens=self._engines[index].hit_tokens(request))
        return replace(reply, estimate=self._blurred(reply.estimate))

    def _snapshot(self, index: int) -> Snapshot:
        """The newest one that is old enough, else the moment's."""
        ripe = [s for s in self._published[index] if s.taken_s <= self._clock.now_s - self._young_s]
        return ripe[-1] if ripe else self._engines[index].snapshot(self._clock.now_s, self._expected)

    def _factor(self, noise: float) -> float:
        return min(max(1.0 + self._rng.gauss(0.0, noise), ERROR_MIN), ERROR_MAX) if noise else 1.0

    def _blurred(self, estimate: Estimate) -> Estimate:
        factor = self._factor(self._latency_noise)
        if factor == 1.0:
            return estimate
        return replace(
            estimate, ttft_s=estimate.ttft_s * factor, tpot_s=estimate.tpot_s * factor, e2e_s=estimate.e2e_s * factor
        )
