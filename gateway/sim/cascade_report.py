"""Figures of one CASCADE run: goodput, violations and fairness by class and by size; TTFT as `Timeline` defines it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gateway.sim.cascade import Cascade, CascadeOutcome, engine_of
from gateway.sim.cascade_jobs import Job
from gateway.sim.cascade_load import draw_mix
from gateway.sim.cascade_spec import CascadeSpec, VariantSpec
from gateway.sim.report import SIZE_CLASSES
from gateway.sim.stats import jain, mean, quantile

Kept = dict[str, float]


@dataclass(frozen=True, slots=True)
class Key:
    """Which run: the variant, the rate, the seed."""

    variant: VariantSpec
    rate_per_s: float
    seed: int


def run_cascade(spec: CascadeSpec, key: Key) -> Kept:
    """One run, start to end, as a table of names and numbers."""
    _, limits, _ = engine_of(spec)
    mix = draw_mix(spec, key.rate_per_s, key.seed, limits.max_model_len)
    return figures(spec, Cascade(spec, key.variant, mix, key.seed).run())


def in_time(job: Job) -> bool:
    """Whether its first token came within its class's TTFT."""
    ttft_s = job.timeline().ttft_s
    return ttft_s is not None and ttft_s <= job.target.ttft_s


def in_pace(job: Job) -> bool:
    """Whether its other tokens kept its class's TPOT."""
    tpot_s = job.timeline().tpot_s
    return tpot_s is None or tpot_s <= job.target.tpot_s


def figures(spec: CascadeSpec, outcome: CascadeOutcome) -> Kept:
    """Shares lie between 0 and 1; `worst_*` and `jain_*` are over shares in time: of classes, and of quarters by prompt size.
    The first `warmup_share` of the requests is not counted."""
    jobs = outcome.jobs[int(len(outcome.jobs) * spec.warmup_share) :]
    good = [in_time(job) for job in jobs]
    both = [ok and in_pace(job) for ok, job in zip(good, jobs, strict=True)]
    span_s = max(jobs[-1].request.arrival_s - jobs[0].request.arrival_s, 1e-9)
    by_size = _by_size(jobs, good)
    waits = sorted(_wait_s(job) for job in jobs if job.sent_tier == 2)
    found: Kept = {
        "goodput_per_s": sum(good) / span_s,
        "joint_per_s": sum(both) / span_s,
        "violations": 1.0 - mean(good),
        "tpot_violations": 1.0 - mean([in_pace(job) for job in jobs]),
        "jain_sizes": jain(by_size),
        "worst_size": min(by_size),
        "tier2_share": len(waits) / len(jobs),
        "tier2_wait_p99_s": quantile(waits, 0.99) if waits else 0.0,
        "hit_share": outcome.hit_tokens / max(outcome.hit_tokens + outcome.computed_tokens, 1),
        "restored_share": outcome.restored_tokens / max(outcome.hit_tokens + outcome.computed_tokens, 1),
    }
    shares = []
    for kind, one in enumerate(spec.classes):
        mine = [(ok, job) for ok, job in zip(good, jobs, strict=True) if job.kind == kind]
        ttft = sorted(job.timeline().ttft_s or 0.0 for _, job in mine)
        shares.append(mean([float(ok) for ok, _ in mine]))
        found |= {
            f"{one.name}_in_time": shares[-1],
            f"{one.name}_ttft_p50_s": quantile(ttft, 0.5),
            f"{one.name}_ttft_p99_s": quantile(ttft, 0.99),
            f"{one.name}_gamma": outcome.gammas[kind],
        }
    return found | {"worst_class": min(shares), "jain_classes": jain(shares)}


def _wait_s(job: Job) -> float:
    return (job.first_sent_s or 0.0) - job.request.arrival_s


def _by_size(jobs: Sequence[Job], good: Sequence[bool]) -> list[float]:
    order = sorted(range(len(jobs)), key=lambda i: jobs[i].request.prompt_tokens)
    edges = [len(order) * i // SIZE_CLASSES for i in range(SIZE_CLASSES + 1)]
    return [mean([float(good[i]) for i in order[a:b]]) for a, b in pairwise(edges) if b > a]
