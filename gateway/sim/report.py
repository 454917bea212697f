"""Figures of one run, from Timelines: the definitions of TTFT, TPOT and E2E are theirs, and nobody else's. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from gateway.sim.outcome import Outcome, Sent
from gateway.sim.scenario import SloSpec
from gateway.sim.stats import jain, mean, quantile
from predictor.request import Timeline

SIZE_CLASSES = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. Shares lie between 0 and 1. `slo_ttft_s` is TTFT at the SLO's quantile. `jain_replicas` is over requests
    sent to each replica, `jain_sizes` over the share within the SLO in four classes of size; `preemptions` counts all
    replicas, `preemptions_probed` as the published figure did (see Outcome)."""

    requests: int
    lost: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    slo_ttft_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    e2e_mean_s: float
    e2e_p50_s: float
    e2e_p99_s: float
    goodput_per_s: float
    violations: float
    preemptions: int
    preemptions_probed: float
    jain_replicas: float
    jain_sizes: float
    hit_share: float

    def named(self) -> dict[str, float]:
        """As a table of names and numbers, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def figures(
    outcome: Outcome, slo: SloSpec, sizes: Sequence[int], replicas: int, warmup: float = 0.0, cooldown: float = 0.0
) -> Figures:
    """The figures of a run. `sizes` are the requests' tokens in the order of arrival; the first `warmup` and the last
    `cooldown` share of the requests are not counted."""
    count = len(outcome.timelines)
    low, high = int(count * warmup), count - int(count * cooldown)
    counted = outcome.timelines[low:high]
    good = [within(line, slo) for line in counted]
    ttft = sorted(line.ttft_s for line in counted if line.ttft_s is not None)
    tpot = sorted(line.tpot_s for line in counted if line.tpot_s is not None)
    e2e = sorted(line.e2e_s for line in counted if line.e2e_s is not None)
    span_s = max(counted[-1].arrived_s - counted[0].arrived_s, 1e-9)
    return Figures(
        requests=len(counted),
        lost=outcome.lost,
        ttft_mean_s=mean(ttft),
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p90_s=quantile(ttft, 0.9),
        ttft_p99_s=quantile(ttft, 0.99),
        slo_ttft_s=quantile(ttft, slo.quantile),
        tpot_mean_s=mean(tpot),
        tpot_p99_s=quantile(tpot, 0.99),
        e2e_mean_s=mean(e2e),
        e2e_p50_s=quantile(e2e, 0.5),
        e2e_p99_s=quantile(e2e, 0.99),
        goodput_per_s=sum(good) / span_s,
        violations=1.0 - sum(good) / len(good),
        preemptions=outcome.preemptions,
        preemptions_probed=outcome.preemptions_probed,
        jain_replicas=jain(_per_replica(outcome.sent, replicas)),
        jain_sizes=jain(_per_size(good, sizes[low:high])),
        hit_share=outcome.hit_tokens / max(outcome.prompt_tokens, 1),
    )


def within(line: Timeline, slo: SloSpec) -> bool:
    """Whether a request ended within all limits that are set (above 0)."""
    if line.ttft_s is None or line.e2e_s is None:
        return False
    if slo.ttft_s > 0 and line.ttft_s > slo.ttft_s:
        return False
    if slo.tpot_s > 0 and line.tpot_s is not None and line.tpot_s > slo.tpot_s:
        return False
    return not (slo.e2e_s > 0 and line.e2e_s > slo.e2e_s)


def _per_replica(sent: Sequence[Sent], replicas: int) -> list[float]:
    counts = [0.0] * replicas
    for one in sent:
        counts[one.replica] += 1
    return counts


def _per_size(good: Sequence[bool], sizes: Sequence[int]) -> list[float]:
    """The share within the SLO in each quarter of the requests by size."""
    order = sorted(range(len(good)), key=sizes.__getitem__)
    edges = [len(order) * i // SIZE_CLASSES for i in range(SIZE_CLASSES + 1)]
    return [mean([float(good[i]) for i in order[a:b]]) for a, b in pairwise(edges) if b > a]


def longest_run(sent: Sequence[Sent], window_s: float) -> int:
    """Herding: the longest row of consecutive dispatches to one replica within `window_s`."""
    longest, start = 0, 0
    for i, one in enumerate(sent):
        if i and one.replica != sent[i - 1].replica:
            start = i
        while one.at_s - sent[start].at_s > window_s:
            start += 1
        longest = max(longest, i - start + 1)
    return longest
