"""The highest rate at which a policy still meets the SLO, by bisection, one search for each seed.

The same seed draws the same requests at every rate, only closer together, so a search is not disturbed by sampling.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.sim.runner import Key, run_one
from gateway.sim.scenario import CapacitySpec, Scenario


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one search found: the highest rate seen to meet the SLO, and every rate tried with its TTFT."""

    label: str
    seed: int
    rate_per_s: float
    tried: tuple[tuple[float, float], ...]


def capacity(scenario: Scenario, label: str, seed: int) -> Capacity:
    """Bisection as the scenario's `capacity` says. 0 if even its lowest rate misses, its highest if all are met."""
    spec = scenario.capacity
    assert spec is not None, "the scenario has no capacity table"
    tried: list[tuple[float, float]] = []

    def meets(rate_per_s: float) -> bool:
        found = run_one(scenario, Key(label, rate_per_s, seed)).figures.slo_ttft_s
        tried.append((rate_per_s, found))
        return found <= scenario.slo.ttft_s

    return Capacity(label, seed, _search(spec, meets), tuple(tried))


def _search(spec: CapacitySpec, meets: Callable[[float], bool]) -> float:
    steps = max(1, round((spec.high_per_s - spec.low_per_s) / spec.step_per_s))
    low, high = -1, steps + 1  # of the grid low_per_s + i * step_per_s: `low` meets, `high` does not
    while high - low > 1:
        middle = (low + high) // 2
        if meets(spec.low_per_s + middle * spec.step_per_s):
            low = middle
        else:
            high = middle
    return spec.low_per_s + low * spec.step_per_s if low >= 0 else 0.0
