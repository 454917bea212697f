"""What every part of the CASCADE report runs on: set-ups, kept results, searches for loads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.sim.cascade_report import Key, run_cascade
from gateway.sim.cascade_spec import CascadeSpec, VariantSpec, load_cascade
from gateway.sim.paper import Bench
from gateway.sim.stats import mean

HERE = Path(__file__).parent
Cell = dict[str, list[float]]
DECIDING = (
    *(
        f"predictor/{name}.py"
        for name in (
            "budget",
            "queues",
            "waiting",
            "moore_hodgson",
            "share",
            "restore",
            "prefill",
            "profile",
            "instance",
            "kv",
            "sequence",
        )
    ),
    *(f"gateway/sim/{name}.py" for name in ("stalls", "traces", "workload")),
    "gateway/sim/cascade*.py",
)


def run_kept(item: tuple[CascadeSpec, Key]) -> dict[str, float]:
    """One run, in a process of its own or here."""
    return run_cascade(*item)


@dataclass(frozen=True, slots=True)
class SetUps(Bench):
    """The set-ups of this folder, shortened as the command was told, and their kept runs."""

    def spec(self, name: str) -> CascadeSpec:
        """One of them."""
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


def percent(values: Sequence[float]) -> str:
    """A share."""
    return f"{100 * mean(values):.1f}"


def seeds_of(spec: CascadeSpec) -> str:
    """In words."""
    return f"{len(spec.seeds)} seeds, {spec.requests} requests each"
