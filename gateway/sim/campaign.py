"""Many runs whose results are kept, so that a long campaign can be stopped and taken up again.

A result is stored under the hash of what was run and of the sources that decide, so that it is used again only as long
as both are the same. Reads and writes files; no clock.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gateway.sim.capacity import capacity
from gateway.sim.runner import Key, policy_of, run_one, spread
from gateway.sim.scenario import Scenario

Item = TypeVar("Item")
Kept = dict[str, Any]
DECIDING = ("desk", "foresight", "handicap", "jobs", "lanes", "line", "plan", "tenants", "turns", "views")
SOURCES = ("predictor", "gateway/policies", "gateway/sim", *(f"gateway/{name}.py" for name in DECIDING))
NOT_DECIDING = ("campaign", "command", "html", "paper", "present", "stats")


def sources_hash(root: Path) -> str:
    """Of all sources on which a simulated run depends."""
    digest = hashlib.sha256()
    for name in SOURCES:
        place = root / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if path.stem not in NOT_DECIDING:
                digest.update(path.read_bytes())
    return digest.hexdigest()


def hash_of(root: Path, patterns: Sequence[str]) -> str:
    """Of the files that match, for work that depends on other sources. Every pattern must match: a source that was moved
    would go unnoticed."""
    digest = hashlib.sha256()
    for pattern in patterns:
        found = sorted(root.glob(pattern))
        assert found, pattern
        for path in found:
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Campaign:
    """`folder` keeps the results; `jobs` processes; `tell` hears how far it is."""

    def __init__(self, folder: Path, sources: str, jobs: int, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._sources = sources
        self._jobs = jobs
        self._tell = tell
        folder.mkdir(parents=True, exist_ok=True)

    def collect(self, work: Callable[[Item], Kept], items: Sequence[Item]) -> list[Kept]:
        """`work` on each item, or what it gave before. `work` must be a function of a module, an item's repr its name."""
        paths = [self._path(work.__qualname__, item) for item in items]
        missing = [(path, item) for path, item in zip(paths, items, strict=True) if not path.exists()]
        results = spread(work, [item for _, item in missing], self._jobs)
        for number, ((path, _), result) in enumerate(zip(missing, results, strict=True), 1):
            path.write_text(json.dumps(result))
            self._tell(f"{work.__qualname__} {number} of {len(missing)}")
        return [json.loads(path.read_text()) for path in paths]

    def _path(self, name: str, item: object) -> Path:
        digest = hashlib.sha256(f"{self._sources} {name} {item!r}".encode()).hexdigest()
        return self._folder / f"{digest[:32]}.json"

    def warm(self, scenario: Scenario, labels: Sequence[str], rates_per_s: Sequence[float]) -> None:
        """All these runs at once, so that every process has work; `figures` then finds them."""
        keys = [(label, rate, seed) for label in labels for rate in rates_per_s for seed in scenario.seeds]
        self.collect(run_figures, [(bare(scenario, label), Key(label, rate, seed)) for label, rate, seed in keys])

    def warm_capacities(self, scenario: Scenario, labels: Sequence[str]) -> None:
        """The same for `capacities`."""
        searches = [(label, seed) for label in labels for seed in scenario.seeds]
        self.collect(run_capacity, [(bare(scenario, label), label, seed) for label, seed in searches])

    def figures(self, scenario: Scenario, label: str, rate_per_s: float, seeds: Sequence[int] = ()) -> dict[str, list[float]]:
        """Every figure of a policy as a list over seeds."""
        items = [(bare(scenario, label), Key(label, rate_per_s, seed)) for seed in seeds or scenario.seeds]
        found = self.collect(run_figures, items)
        return {name: [one[name] for one in found] for name in found[0]}

    def capacities(self, scenario: Scenario, label: str, seeds: Sequence[int] = ()) -> list[float]:
        """The capacity of a policy for each seed."""
        items = [(bare(scenario, label), label, seed) for seed in seeds or scenario.seeds]
        return [one["rate_per_s"] for one in self.collect(run_capacity, items)]


def bare(scenario: Scenario, label: str) -> Scenario:
    """What matters to one policy's runs: equal for runs that are equal, wherever they come from."""
    return replace(scenario, name="", note="", seeds=(0,), rates_per_s=(), policies=(policy_of(scenario, label),))


def run_figures(item: tuple[Scenario, Key]) -> Kept:
    """One run."""
    return dict(run_one(*item).figures.named())


def run_capacity(item: tuple[Scenario, str, int]) -> Kept:
    """One search."""
    return {"rate_per_s": capacity(*item).rate_per_s}
