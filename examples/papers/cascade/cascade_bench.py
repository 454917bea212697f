"""What every part of the CASCADE report runs on: kept results, searches for loads, tables."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.sim.campaign import Campaign
from gateway.sim.cascade_report import Key, run_cascade
from gateway.sim.cascade_spec import CascadeSpec, VariantSpec, load_cascade
from gateway.sim.present import shown
from gateway.sim.stats import interval, mean

HERE = Path(__file__).parent
Cell = dict[str, list[float]]
DECIDING = (
    *(
        f"predictor/{name}.py"
        for name in ("budget", "queues", "share", "restore", "prefill", "profile", "instance", "kv", "sequence")
    ),
    *(f"gateway/sim/{name}.py" for name in ("stalls", "traces", "workload")),
)


def deciding_hash(root: Path) -> str:
    """Of all sources on which a run depends."""
    digest = hashlib.sha256()
    for path in [*(root / name for name in DECIDING), *sorted((root / "gateway" / "sim").glob("cascade*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def run_kept(item: tuple[CascadeSpec, Key]) -> dict[str, float]:
    """One run, in a process of its own or here."""
    return run_cascade(*item)


@dataclass(frozen=True, slots=True)
class Bench:
    """`seeds` and `requests` shorten the set-ups when they are set."""

    campaign: Campaign
    data: Path | None
    seeds: int = 0
    requests: int = 0

    def spec(self, name: str) -> CascadeSpec:
        """The set-up of a file of this folder."""
        found = load_cascade(HERE / f"{name}.toml", self.data)
        seeds = found.seeds[: self.seeds] if self.seeds else found.seeds
        return replace(found, seeds=seeds, requests=min(found.requests, self.requests or found.requests))

    def warm(self, spec: CascadeSpec, variants: Sequence[VariantSpec], rates: Sequence[float]) -> None:
        """All these runs at once; `cell` then finds them."""
        keys = [Key(one, rate, seed) for rate in rates for one in variants for seed in spec.seeds]
        self.campaign.collect(run_kept, [(bare(spec), key) for key in keys])

    def cell(self, spec: CascadeSpec, variant: VariantSpec, rate_per_s: float) -> Cell:
        """Every figure of one variant at one rate, as a list over seeds."""
        keys = [Key(variant, rate_per_s, seed) for seed in spec.seeds]
        found = self.campaign.collect(run_kept, [(bare(spec), key) for key in keys])
        return {name: [one[name] for one in found] for name in found[0]}

    def load_at(self, spec: CascadeSpec, variant: VariantSpec, violations: float, step_per_s: float) -> float:
        """The highest rate, on a grid, at which the share of violations, mean over the seeds, is at most this."""
        low, high = 0, round((spec.high_per_s - spec.low_per_s) / step_per_s)
        while high - low > 1:
            middle = (low + high) // 2
            if mean(self.cell(spec, variant, round(spec.low_per_s + middle * step_per_s, 3))["violations"]) <= violations:
                low = middle
            else:
                high = middle
        return round(spec.low_per_s + low * step_per_s, 3)


def bare(spec: CascadeSpec) -> CascadeSpec:
    """Without what does not change a run, so that a result is found again when only that changes."""
    return replace(spec, name="", note="", loads=(), variants=spec.variants[:1], seeds=(0,), low_per_s=1.0, high_per_s=40.0)


@dataclass(slots=True)
class Section:
    """A part of the report. `figures` go into the command's line of JSON."""

    title: str
    lines: list[str]
    figures: dict[str, float] = field(default_factory=dict)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Markdown."""
    return ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def spread(values: Sequence[float], form: str) -> str:
    """Mean and half-width."""
    return shown(interval(values), form)


def percent(values: Sequence[float]) -> str:
    """A share."""
    return f"{100 * mean(values):.1f}"


def seeds_of(spec: CascadeSpec) -> str:
    """In words."""
    return f"{len(spec.seeds)} seeds, {spec.requests} requests each"
