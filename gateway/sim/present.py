"""Results for people and for programs: a table in the terminal, JSON, and the series that plots are drawn from.

Only formats; everything is computed elsewhere.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table

from gateway.sim.capacity import Capacity
from gateway.sim.html import Line, Plot
from gateway.sim.report import Figures
from gateway.sim.runner import Result
from gateway.sim.scenario import Scenario
from gateway.sim.stats import Interval, interval


@dataclass(frozen=True, slots=True)
class Column:
    """A figure as it is shown: its heading, how to read it, how to write it."""

    title: str
    read: Callable[[Figures], float]
    form: str


COLUMNS = (
    Column("TTFT s", lambda f: f.ttft_mean_s, ".3f"),
    Column("TTFT P50", lambda f: f.ttft_p50_s, ".3f"),
    Column("TTFT P99", lambda f: f.ttft_p99_s, ".2f"),
    Column("TPOT ms", lambda f: f.tpot_mean_s * 1e3, ".1f"),
    Column("E2E s", lambda f: f.e2e_mean_s, ".2f"),
    Column("E2E P99", lambda f: f.e2e_p99_s, ".1f"),
    Column("good /s", lambda f: f.goodput_per_s, ".2f"),
    Column("late %", lambda f: f.violations * 100, ".1f"),
    Column("preemptions", lambda f: float(f.preemptions), ".0f"),
    Column("as probed", lambda f: f.preemptions_probed, ".0f"),
    Column("hits %", lambda f: f.hit_share * 100, ".0f"),
    Column("Jain", lambda f: f.jain_replicas, ".3f"),
)


WIDE = 200
MAIN = ("TTFT s", "TTFT P99", "TPOT ms", "E2E s", "good /s", "late %", "preemptions")


def grouped(results: Iterable[Result]) -> dict[tuple[str, float], list[Figures]]:
    """Figures of all seeds by policy and rate, in the order of appearance."""
    groups: dict[tuple[str, float], list[Figures]] = {}
    for result in results:
        groups.setdefault((result.key.label, result.key.rate_per_s), []).append(result.figures)
    return groups


def shown(found: Interval, form: str) -> str:
    """A mean with its two-sided 80 % half-width, where several seeds were run."""
    text = format(found.mean, form)
    return text if found.seeds < 2 else f"{text} ±{format(found.high - found.mean, form)}"


def rows(results: Iterable[Result], columns: Sequence[Column] = COLUMNS, *, spreads: bool = True) -> list[list[str]]:
    """The table's cells, a row for each policy and rate; with the spread over seeds if there is room for it."""
    table = []
    for (label, rate), group in grouped(results).items():
        found = [interval([column.read(one) for one in group]) for column in columns]
        pairs = zip(columns, found, strict=True)
        cells = [shown(one, column.form) if spreads else format(one.mean, column.form) for column, one in pairs]
        table.append([label, f"{rate:g}", *cells])
    return table


def headings(columns: Sequence[Column] = COLUMNS) -> list[str]:
    """The table's headings."""
    return ["policy", "rate/s", *(column.title for column in columns)]


def terminal_table(scenario: Scenario, results: Sequence[Result], capacities: Sequence[Capacity], width: int) -> Table:
    """Everything for a terminal of so many columns; a narrow one gets the main figures."""
    wide = width >= WIDE
    columns = COLUMNS if wide else tuple(column for column in COLUMNS if column.title in MAIN)
    seeds = len({result.key.seed for result in results})
    title = f"{scenario.name} ({scenario.workload.requests} requests, {seeds} seeds; simulation)"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title=title)
    found = capacity_of(capacities)
    for i, title in enumerate([*headings(columns), *(["capacity/s"] if found else [])]):
        table.add_column(title.replace(" ", "\n"), justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows(results, columns, spreads=wide):
        table.add_row(*row, *([shown(found[row[0]], ".1f")] if row[0] in found else [""] if found else []))
    return table


def capacity_of(capacities: Iterable[Capacity]) -> dict[str, Interval]:
    """Capacity of each policy over its seeds."""
    rates: dict[str, list[float]] = {}
    for one in capacities:
        rates.setdefault(one.label, []).append(one.rate_per_s)
    return {label: interval(values) for label, values in rates.items()}


def as_json(scenario: Scenario, results: Sequence[Result], capacities: Sequence[Capacity]) -> dict[str, object]:
    """Everything as plain data."""
    return {
        "scenario": scenario.name,
        "simulation": True,
        "runs": [
            {"policy": r.key.label, "rate_per_s": r.key.rate_per_s, "seed": r.key.seed, **r.figures.named()} for r in results
        ],
        "capacity": [{"policy": c.label, "seed": c.seed, "rate_per_s": c.rate_per_s, "tried": c.tried} for c in capacities],
    }


def plots(results: Sequence[Result]) -> list[Plot]:
    """TTFT, goodput and preemptions against the rate, or a bar for each policy where there is one rate."""
    picked = (COLUMNS[0], Column("TTFT P99 s", lambda f: f.ttft_p99_s, ".2f"), COLUMNS[6], COLUMNS[8])
    return [Plot(column.title, "requests per s", _lines(results, column)) for column in picked]


def _lines(results: Sequence[Result], column: Column) -> tuple[Line, ...]:
    points: dict[str, list[tuple[float, Interval]]] = {}
    for (label, rate), group in grouped(results).items():
        points.setdefault(label, []).append((rate, interval([column.read(one) for one in group])))
    return tuple(
        Line(label, tuple((rate, found.mean, found.low, found.high) for rate, found in sorted(at, key=lambda p: p[0])))
        for label, at in points.items()
    )
