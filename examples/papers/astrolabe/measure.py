"""Measurements that need more than a run's figures: what was known at a dispatch, and who was sent where."""

from collections.abc import Sequence
from math import isnan
from random import Random

from gateway.jobs import Dispatch
from gateway.sim.cluster import Cluster
from gateway.sim.report import longest_run
from gateway.sim.runner import requests_of
from gateway.sim.scenario import Scenario
from gateway.sim.stats import mean, quantile, spearman
from gateway.sim.truth import metrics_of
from predictor.forecast import Forecast
from predictor.request import Request
from predictor.snapshot import Snapshot

SAMPLED = 0.03
WINDOW_S = 0.25


class Watching(Cluster):
    """A cluster that, for some requests, notes what each replica says of itself and what would be true there."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, scenario.policies[0], requests_of(scenario, seed), seed)
        kind = scenario.replicas[0]
        self.seen: list[dict[str, list[float]]] = []
        self._profile = kind.profile
        self._forecast = Forecast(kind.profile, kind.limits)
        self._sample = Random(f"sample {seed}")
        self._lengths: dict[str, int] = {}

    def _dispatch(self, dispatch: Dispatch) -> None:
        job = dispatch.job
        self._lengths[job.id] = job.lengths.q50
        if self._sample.random() < SAMPLED:
            self.seen.append(self._look(dispatch))
        super()._dispatch(dispatch)

    def _look(self, dispatch: Dispatch) -> dict[str, list[float]]:
        job, now_s = dispatch.job, self.clock.now_s
        truth = self._tracks[job.id].request.output_tokens
        told = Request(job.id, job.prompt_tokens, job.lengths.q50, job.arrival_s)
        true = Request(job.id, job.prompt_tokens, truth, job.arrival_s)
        columns: dict[str, list[float]] = {name: [] for name in ("free", "running", "speed", "queued", "predicted", "true")}
        for engine in self.engines:
            exact, guess = engine.snapshot(now_s, {}), engine.snapshot(now_s, self._lengths)
            said = metrics_of(guess)
            kv_tokens = sum(resident.computed_tokens for resident in exact.running)
            columns["free"].append(said.free_blocks)
            columns["running"].append(said.running + said.waiting)
            columns["speed"].append(said.running / self._profile.step_s(0, said.running, kv_tokens))
            columns["queued"].append(said.queued_tokens)
            columns["predicted"].append(self._ask(guess, told))
            columns["true"].append(self._ask(exact, true))
        return columns

    def _ask(self, snapshot: Snapshot, request: Request) -> float:
        self._forecast.load(snapshot)
        return self._forecast.predict(request).e2e_s


def measure_ranks(item: tuple[Scenario, int]) -> dict[str, float]:
    """Mean rank correlation of each figure with the true E2E."""
    scenario, seed = item
    cluster = Watching(scenario, seed)
    cluster.run()
    names = ("free", "running", "speed", "queued", "predicted")
    return {name: _mean([spearman(one[name], one["true"]) for one in cluster.seen]) for name in names}


def _mean(values: Sequence[float]) -> float:
    return mean([value for value in values if not isnan(value)])


def measure_herding(item: tuple[Scenario, str, int]) -> dict[str, float]:
    """The longest run on one replica, and what it costs."""
    scenario, _, seed = item
    outcome = Cluster(scenario, scenario.policies[0], requests_of(scenario, seed), seed).run()
    ttft = sorted(line.ttft_s for line in outcome.timelines if line.ttft_s is not None)
    return {"run": float(longest_run(outcome.sent, WINDOW_S)), "ttft_p99_s": quantile(ttft, 0.99)}
