"""All runs of a scenario: policies x rates x seeds, and the search for capacity, one process or several.

Every run is a function of its key, so the order of execution does not matter. Reads the trace files; no clock.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from gateway.sim.cluster import Cluster
from gateway.sim.foretold import foretold
from gateway.sim.report import Figures, figures
from gateway.sim.scenario import PolicySpec, Scenario
from gateway.sim.traces import TraceRow, read_trace
from gateway.sim.workload import SimRequest, draw

Job = TypeVar("Job")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Key:
    """Which run: the policy's label, the rate, the seed."""

    label: str
    rate_per_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """A run and its figures."""

    key: Key
    figures: Figures


@lru_cache(maxsize=8)
def _rows(path: str, form: str) -> tuple[TraceRow, ...]:
    return tuple(read_trace(Path(path), form))


def requests_of(scenario: Scenario, seed: int) -> list[SimRequest]:
    """The requests of a scenario's run with this seed. Raises TraceError."""
    work = scenario.workload
    rows = _rows(work.trace, work.format) if work.trace else _rows(work.lengths, "lengths")
    limits = [replica.limits for replica in scenario.replicas]
    return draw(work, rows, limits[0].block_size, min(limit.max_model_len for limit in limits), seed)


def policy_of(scenario: Scenario, label: str) -> PolicySpec:
    """The policy with that label."""
    return next(policy for policy in scenario.policies if policy.label == label)


def run_one(scenario: Scenario, key: Key, progress: Callable[[float], None] | None = None) -> Result:
    """One run, start to end."""
    at_rate = scenario.at_rate(key.rate_per_s)
    requests = requests_of(at_rate, key.seed)
    policy = policy_of(scenario, key.label)
    if policy.skill >= 0:
        requests = foretold(requests, policy.skill, key.seed)
    outcome = Cluster(at_rate, policy, requests, key.seed, progress).run()
    sizes = [request.prompt_tokens + request.output_tokens for request in requests]
    replicas = sum(replica.count for replica in scenario.replicas)
    return Result(key, figures(outcome, scenario.slo, sizes, replicas, scenario.warmup_share, scenario.cooldown_share))


def keys(scenario: Scenario) -> list[Key]:
    """All runs of a scenario, seeds innermost."""
    rates = scenario.rates_per_s or (scenario.workload.rate_per_s,)
    return [Key(policy.label, rate, seed) for policy in scenario.policies for rate in rates for seed in scenario.seeds]


def _run(job: tuple[Scenario, Key]) -> Result:
    return run_one(*job)


def run_all(scenario: Scenario, wanted: Sequence[Key], jobs: int = 1) -> Iterator[Result]:
    """Results in the order of `wanted`, as they come; `jobs` processes."""
    yield from spread(_run, [(scenario, key) for key in wanted], jobs)


def spread(work: Callable[[Job], Done], items: Iterable[Job], jobs: int) -> Iterator[Done]:
    """`work` on each item, in order; in this process for one job, else in so many others."""
    if jobs <= 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, items)
