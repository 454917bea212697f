"""What the runs of the live bench amount to: figures of a run, ratios against the best rival, table, JSON line. Pure.

Goodput is requests per second whose first token came within the SLO and whose answer was complete. An answer that
failed or never began counts as an infinite TTFT, so that nobody gains by dropping requests. Comparisons pool the
requests of all paired seeds; a figure is Leeway's default over the best of the rivals, found for each load anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tests.bench.live_load import Seen

OURS = "leeway"
OURS_TOO = "leeway-po2"
BUSY_MAX = 0.6


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of the three parties in a run of so many seconds on so many cores."""

    seconds: float
    cores: int
    router_s: float
    mocks_s: float
    load_s: float

    @property
    def busy(self) -> float:
        """Share of all cores that the three used."""
        return (self.router_s + self.mocks_s + self.load_s) / (self.seconds * self.cores)


@dataclass(frozen=True, slots=True)
class Run:
    """One router under one load of one seed: the requests due within the measured window, and what it cost. `spread` is
    how many requests each replica got in all."""

    router: str
    load: int
    seed: int
    rate_per_s: float
    window_s: float
    seen: tuple[Seen, ...]
    requests: int
    cost: Cost
    hit_share: float
    preemptions: int
    late_p99_ms: float
    spread: tuple[int, ...]

    def ttft_s(self) -> list[float]:
        """All times to the first token; infinite where it did not come."""
        return [math.inf if one.problem or one.ttft_s is None else one.ttft_s for one in self.seen]

    @property
    def router_us(self) -> float:
        """Router CPU per request, in microseconds."""
        return self.cost.router_s / max(self.requests, 1) * 1e6

    @property
    def errors(self) -> int:
        return sum(bool(one.problem) for one in self.seen)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share does not exceed; NaN of nothing."""
    if not values:
        return math.nan
    return sorted(values)[min(math.ceil(share * len(values)), len(values)) - 1]


def in_window(seen: Sequence[Seen], warm_s: float, end_s: float) -> tuple[Seen, ...]:
    """Those due after the warm-up and before the end of steady load."""
    return tuple(one for one in seen if warm_s <= one.at_s < end_s)


def attained(ttft_s: Sequence[float], slo_s: float) -> float:
    """Share within the SLO."""
    return sum(value <= slo_s for value in ttft_s) / len(ttft_s) if ttft_s else math.nan


@dataclass(frozen=True, slots=True)
class Row:
    """A router under a load, all seeds together."""

    router: str
    load: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    e2e_mean_s: float
    e2e_p99_s: float
    tpot_mean_s: float
    goodput_per_s: float
    attained: float
    hit_share: float
    router_us: float
    busy: float
    errors: int
    seeds: int


def row(runs: Sequence[Run], slo_s: float) -> Row:
    """The figures of one router under one load. `runs` must not be empty."""
    ttft_s = [value for run in runs for value in run.ttft_s()]
    ends_s = [math.inf if one.problem or one.e2e_s is None else one.e2e_s for run in runs for one in run.seen]
    pace_s = [one.tpot_s for run in runs for one in run.seen if one.tpot_s is not None]
    return Row(
        runs[0].router,
        runs[0].load,
        fmean(ttft_s),
        quantile(ttft_s, 0.5),
        quantile(ttft_s, 0.99),
        fmean(ends_s),
        quantile(ends_s, 0.99),
        fmean(pace_s) if pace_s else math.nan,
        sum(value <= slo_s for value in ttft_s) / sum(run.window_s for run in runs),
        attained(ttft_s, slo_s),
        fmean(run.hit_share for run in runs),
        fmean(run.router_us for run in runs),
        max(run.cost.busy for run in runs),
        sum(run.errors for run in runs),
        len(runs),
    )


def rows(runs: Sequence[Run], slo_s: float) -> list[Row]:
    """One row for each load and router, in the order of their first runs."""
    groups: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.load, run.router), []).append(run)
    return [row(group, slo_s) for _, group in sorted(groups.items(), key=lambda item: item[0][0])]


def against_best(table: Sequence[Row], load: int, ours: str = OURS) -> dict[str, float | str | None]:
    """Goodput (above 1 is better) and TTFT P99 (below 1 is better) of ours over the best rival's, and who that is."""
    mine = next((one for one in table if one.load == load and one.router == ours), None)
    rivals = [one for one in table if one.load == load and not one.router.startswith(OURS)]
    if mine is None or not rivals:
        return {"goodput": None, "p99": None, "goodput_rival": None, "p99_rival": None}
    good = max(rivals, key=lambda one: one.goodput_per_s)
    tail = min(rivals, key=lambda one: one.ttft_p99_s)
    return {
        "goodput": ratio(mine.goodput_per_s, good.goodput_per_s),
        "p99": ratio(mine.ttft_p99_s, tail.ttft_p99_s),
        "goodput_rival": good.router,
        "p99_rival": tail.router,
    }


def ratio(ours: float, theirs: float) -> float | None:
    """ours / theirs; None where that says nothing."""
    if not (math.isfinite(ours) and math.isfinite(theirs)) or theirs <= 0:
        return None
    return round(ours / theirs, 4)


def summary(runs: Sequence[Run], slo_s: float, failed: Mapping[str, str], settings: Mapping[str, object]) -> dict[str, object]:
    """The JSON line."""
    table = rows(runs, slo_s)
    line: dict[str, object] = {"bench": "live", "slo_ttft_s": slo_s}
    for load in sorted({one.load for one in table}):
        best, po2 = against_best(table, load), against_best(table, load, OURS_TOO)
        line |= {f"goodput_vs_best_{load}": best["goodput"], f"p99_vs_best_{load}": best["p99"]}
        line |= {f"best_{load}": [best["goodput_rival"], best["p99_rival"]]}
        line |= {f"po2_goodput_vs_best_{load}": po2["goodput"], f"po2_p99_vs_best_{load}": po2["p99"]}
    line["router_us"] = {name: round(fmean(each), 1) for name, each in _by_router(runs).items()}
    line["busy_max"] = round(max((run.cost.busy for run in runs), default=0.0), 3)
    line["busy_too_much"] = [f"{run.router} {run.load} seed {run.seed}" for run in runs if run.cost.busy > BUSY_MAX]
    line["late_p99_ms"] = max((run.late_p99_ms for run in runs), default=0.0)
    line["errors"] = {one.router: one.errors for one in table if one.errors}
    return line | {"failed": dict(failed), **settings}


def _by_router(runs: Sequence[Run]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run.router, []).append(run.router_us)
    return found


HEADINGS = (
    "router", "TTFT mean s", "P50", "P99", "E2E mean s", "P99", "TPOT ms", "goodput/s", "in SLO %", "hits %",
    "router µs/request", "cores busy %", "errors", "seeds",
)  # fmt: skip


def markdown(table: Sequence[Row], rates: Mapping[int, float]) -> str:
    """One table a load."""
    lines: list[str] = []
    for load in sorted({one.load for one in table}):
        lines += [f"\n### {load} % of capacity, {rates.get(load, math.nan):.1f} requests/s\n"]
        lines += ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
        lines += [cells(one) for one in table if one.load == load]
    return "\n".join(lines)


def cells(one: Row) -> str:
    """A row of the table."""
    return (
        f"| {one.router} | {one.ttft_mean_s:.3f} | {one.ttft_p50_s:.3f} | {one.ttft_p99_s:.3f} | {one.e2e_mean_s:.2f} "
        f"| {one.e2e_p99_s:.2f} | {one.tpot_mean_s * 1e3:.1f} | {one.goodput_per_s:.2f} | {one.attained * 100:.1f} "
        f"| {one.hit_share * 100:.1f} | {one.router_us:.0f} | {one.busy * 100:.0f} | {one.errors} | {one.seeds} |"
    )
