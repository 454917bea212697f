"""One run of a mix of models: its requests, the world, a rule, and the figures of what came out. Pure.

Requests beyond the last tenth of the time are served, and not counted; nor are those of the first twentieth, while
everything is still on disk. What was not started when the time is over counts as not good.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from random import Random

from gateway.sim.stats import mean, quantile
from gateway.sim.swap_rules import Decide
from gateway.sim.swap_scenario import ModelSpec, SwapScenario
from gateway.sim.swap_world import Gpu, Job, World
from predictor.cost import GB, HostProfile

WARM, COOL = 0.05, 0.1
Rates = Mapping[str, Sequence[float]]
Rule = Callable[[World, SwapScenario, Random], Decide]


@dataclass(frozen=True, slots=True)
class SwapFigures:
    """One run. Shares are between 0 and 1; `worst_model` is the least share of good requests over models; `starved_s` is the
    longest time in which somebody waited for a model and nobody of it began (`starved_s` below)."""

    requests: int
    goodput_per_s: float
    good_share: float
    wait_mean_s: float
    wait_p99_s: float
    wait_max_s: float
    starved_s: float
    swaps_per_h: float
    busy_share: float
    worst_model: float

    def named(self) -> dict[str, float]:
        """As a table of names and numbers, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def requests(scenario: SwapScenario, rng: Random, rates: Rates | None = None) -> list[Job]:
    """Those of one seed. `rates` gives each model's rate per second in windows of `window_s`."""
    jobs: list[Job] = []
    shares = sum(spec.share for spec in scenario.models)
    for spec in scenario.models:
        now_s = 0.0
        while True:
            rate = scenario.rate_per_s * spec.share / shares
            if rates is not None:
                window = rates[spec.name]
                rate = window[int(now_s / scenario.window_s) % len(window)]
                if rate <= 0:
                    now_s = (int(now_s / scenario.window_s) + 1) * scenario.window_s
                    if now_s >= scenario.duration_s:
                        break
                    continue
            now_s += _gap_s(scenario, rng, rate)
            if now_s >= scenario.duration_s:
                break
            jobs.append(job_of(spec, now_s, rng))
    return sorted(jobs, key=lambda job: job.arrived_s)


def _gap_s(scenario: SwapScenario, rng: Random, rate: float) -> float:
    if scenario.cv <= 1.0:
        return rng.expovariate(rate)
    shape = 1 / scenario.cv**2
    return rng.gammavariate(shape, 1 / (rate * shape))


def job_of(spec: ModelSpec, at_s: float, rng: Random) -> Job:
    """A request with log-normal lengths."""
    target_s = spec.slow_ttft_s if rng.random() < spec.slow_share else spec.ttft_s
    prompt = max(int(rng.lognormvariate(math.log(spec.prompt_tokens) - 0.32, 0.8)), 1)
    output = max(int(rng.lognormvariate(math.log(spec.output_tokens) - 0.245, 0.7)), 1)
    return Job(spec.name, at_s, prompt, output, target_s, spec.tpot_ms * 1e-3)


def run(scenario: SwapScenario, rule: Rule, seed: int, jobs: Sequence[Job], hosts: Mapping[str, HostProfile]) -> World:
    """The world when all is over. Worlds of one seed have the same truth, whatever the rule."""
    gpus: list[Gpu] = []
    for spec in scenario.devices:
        for _ in range(spec.count):
            gpus.append(Gpu(f"gpu{len(gpus)}", hosts[spec.host], spec.ram_gb * GB))
    world = World(gpus, scenario.models, scenario.truth, Random(seed * 7919 + 1))
    decide = rule(world, scenario, Random(seed * 7919 + 2))
    fresh = [Job(j.model, j.arrived_s, j.prompt_tokens, j.output_tokens, j.ttft_target_s, j.tpot_target_s) for j in jobs]
    world.run(fresh, decide, scenario.duration_s * 1.5)
    return world


def figures(world: World, scenario: SwapScenario) -> SwapFigures:
    """What came out."""
    begin_s, end_s = scenario.duration_s * WARM, scenario.duration_s * (1 - COOL)
    held = [engine for gpu in world.gpus for engine in (*gpu.engines, *gpu.paused.values())]
    going = [job for engine in held for _, _, job in engine.ends]
    never = [job for queue in world.waiting.values() for job in queue]
    all_of_them = [*world.done, *going, *never]
    counted = [job for job in all_of_them if begin_s <= job.arrived_s < end_s]
    last_s = world.now_s
    waits = sorted(min(job.started_s, last_s) - job.arrived_s for job in counted)
    good = sum(job.good for job in counted)
    return SwapFigures(
        requests=len(counted),
        goodput_per_s=good / (end_s - begin_s),
        good_share=good / max(len(counted), 1),
        wait_mean_s=mean(waits),
        wait_p99_s=quantile(waits, 0.99),
        wait_max_s=waits[-1] if waits else 0.0,
        starved_s=max(starved_s(jobs, last_s) for jobs in _by_model(all_of_them)),
        swaps_per_h=world.swaps / last_s * 3600,
        busy_share=sum(gpu.work_s for gpu in world.gpus) / len(world.gpus) / last_s,
        worst_model=min(mean([float(job.good) for job in jobs]) for jobs in _by_model(counted)),
    )


def starved_s(jobs: Sequence[Job], last_s: float) -> float:
    """The longest time in which some of these requests of one model waited and none of them began. Unlike the longest wait it
    does not grow with how many of a model's own are in front of a request."""
    begun = sorted((min(job.started_s, last_s), job.arrived_s) for job in jobs)
    oldest = list(accumulate([arrived_s for _, arrived_s in reversed(begun)], min))
    longest, before_s = 0.0, -math.inf
    for (at_s, _), waiting_since_s in zip(begun, reversed(oldest), strict=True):
        longest = max(longest, at_s - max(before_s, waiting_since_s))
        before_s = at_s
    return longest


def _by_model(jobs: Sequence[Job]) -> list[list[Job]]:
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.model, []).append(job)
    return list(found.values())
