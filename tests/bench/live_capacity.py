"""The rate that counts as 100 %: the largest at which a router still meets the SLO for a share of its requests.

Open loop, found by stepping out from a guess and then halving the bracket; kept in a file, by everything that it depends
on, since it takes minutes. Pure but for that file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

STEP = 1.15
PRECISION = 1.02
RUNS_MAX = 14


class CapacityError(Exception):
    """No rate was found at which the SLO is met, or none at which it is not."""


def bisect(attained: Callable[[float], float], guess_per_s: float, share: float, precision: float = PRECISION) -> float:
    """The largest rate, to `precision`, at which `attained(rate)` is at least `share`. Raises CapacityError."""
    good, bad = 0.0, float("inf")
    rate = guess_per_s
    for _ in range(RUNS_MAX):
        if attained(rate) >= share:
            good = max(good, rate)
        else:
            bad = min(bad, rate)
        if good and bad / good <= precision:
            return good
        if bad == float("inf"):
            rate = good * STEP
        elif not good:
            rate = bad / STEP
        else:
            rate = (good * bad) ** 0.5
    raise CapacityError(f"between {good} and {bad} requests/s after {RUNS_MAX} runs")


def kept(path: Path, settings: Mapping[str, object]) -> float | None:
    """The rate found before with the same settings; None if there is none."""
    return _read(path).get(_key(settings))


def keep(path: Path, settings: Mapping[str, object], rate_per_s: float) -> None:
    """Remember a rate."""
    path.write_text(json.dumps(_read(path) | {_key(settings): rate_per_s}, indent=1) + "\n")


def _key(settings: Mapping[str, object]) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def _read(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    return {str(key): float(value) for key, value in found.items()}
