"""What the runs of the SLO bench amount to: goodput by class, ratios, table, JSON line. Pure.

Goodput is requests per second whose first token came within what their class promises and whose answer was complete.
Comparisons pool the requests of all paired seeds. Against a rival with several settings its best one counts, load by load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tests.bench.live_figures import Run, quantile, ratio
from tests.bench.live_load import Seen
from tests.bench.slo_traffic import BY_NAME, KINDS

OURS, FCFS = "leeway-mh", "leeway-fcfs"
RIVALS = {"vllm_router": "vllm-router", "smg": "smg"}


def in_time(one: Seen) -> bool:
    """Whether its promise was kept."""
    return not one.problem and one.ttft_s is not None and one.ttft_s <= BY_NAME[one.label].ttft_s


def attained(seen: Sequence[Seen]) -> float:
    """Share whose promise was kept; 0 of none."""
    return sum(map(in_time, seen)) / len(seen) if seen else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A router under a load, all seeds together."""

    router: str
    load: int
    goodput_per_s: float
    by_class: tuple[float, ...]  # shares kept, in the order of KINDS
    ttft_p50_s: float
    ttft_p99_s: float
    jain: float
    errors: int
    router_us: float
    busy: float


def row(runs: Sequence[Run]) -> Row:
    """The figures of one router under one load."""
    seen = [one for run in runs for one in run.seen]
    shares = tuple(attained([one for one in seen if one.label == kind.name]) for kind in KINDS)
    squares = sum(share * share for share in shares)
    ttft_s = [value for run in runs for value in run.ttft_s()]
    return Row(
        runs[0].router,
        runs[0].load,
        sum(map(in_time, seen)) / sum(run.window_s for run in runs),
        shares,
        quantile(ttft_s, 0.5),
        quantile(ttft_s, 0.99),
        sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0,
        sum(run.errors for run in runs),
        fmean(run.router_us for run in runs),
        max(run.cost.busy for run in runs),
    )


def rows(runs: Sequence[Run]) -> list[Row]:
    """One row for each load and router."""
    groups: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.load, run.router), []).append(run)
    return [row(group) for _, group in sorted(groups.items(), key=lambda item: item[0][0])]


def against(table: Sequence[Row], load: int, rival: str) -> float | None:
    """Our goodput over the best of the rival's settings; None where one of both did not run."""
    mine = [one.goodput_per_s for one in table if one.load == load and one.router == OURS]
    theirs = [one.goodput_per_s for one in table if one.load == load and one.router.startswith(rival)]
    return ratio(mine[0], max(theirs)) if mine and theirs else None


def summary(runs: Sequence[Run], failed: Mapping[str, str], settings: Mapping[str, object]) -> dict[str, object]:
    """The JSON line."""
    table = rows(runs)
    line: dict[str, object] = {"bench": "slo"}
    for load in sorted({one.load for one in table}):
        line[f"goodput_vs_fcfs_{load}"] = against(table, load, FCFS)
        for key, rival in RIVALS.items():
            line[f"goodput_vs_{key}_{load}"] = against(table, load, rival)
    line["busy_max"] = round(max((run.cost.busy for run in runs), default=0.0), 3)
    line["late_p99_ms"] = max((run.late_p99_ms for run in runs), default=0.0)
    line["router_us"] = {one.router: round(one.router_us, 1) for one in table}
    line["errors"] = {f"{one.router} {one.load}": one.errors for one in table if one.errors}
    return line | {"failed": dict(failed), **settings}


def markdown(table: Sequence[Row], rates: Mapping[int, float]) -> str:
    """One table a load."""
    names = [f"{kind.name} ≤ {kind.ttft_s:g} s, %" for kind in KINDS]
    headings = ["router", "goodput/s", *names, "Jain", "TTFT P50 s", "P99", "errors", "router µs/request"]
    lines: list[str] = []
    for load in sorted({one.load for one in table}):
        lines += [f"\n### {load} % of capacity, {rates.get(load, 0.0):.1f} requests/s\n"]
        lines += ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
        for one in table:
            if one.load == load:
                shares = " | ".join(f"{share * 100:.1f}" for share in one.by_class)
                lines.append(
                    f"| {one.router} | {one.goodput_per_s:.2f} | {shares} | {one.jain:.3f} | {one.ttft_p50_s:.3f} "
                    f"| {one.ttft_p99_s:.2f} | {one.errors} | {one.router_us:.0f} |"
                )
    return "\n".join(lines)
