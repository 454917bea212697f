"""E8 and E9 of the report: all variants over loads, the other models, four engines of which one is lost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cascade_bench import Cell, SetUps, percent, seeds_of

from gateway.sim.cascade_spec import CascadeSpec
from gateway.sim.paper import Section, spread, table
from gateway.sim.scenario import TruthSpec
from gateway.sim.stats import Interval, mean, ratio_of_means

MAIN = ("FCFS", "SJF", "LRB", "MH")
Cells = dict[tuple[str, float], Cell]
BEYOND = 0.9
FRESH = tuple(range(4, 16))


def rate_of(load: float, capacity: float) -> float:
    """Requests per second at a multiple of the capacity."""
    return round(load * capacity, 3)


def anchors(bench: SetUps, spec: CascadeSpec, step_per_s: float = 0.1) -> tuple[float, float]:
    """The capacity, and the rate at which feasible FCFS meets half."""
    fcfs = spec.variant("FCFS")
    return bench.load_at(spec, fcfs, 0.05, step_per_s), bench.load_at(spec, fcfs, 0.5, step_per_s)


def cells_of(bench: SetUps, spec: CascadeSpec, labels: Sequence[str], rates: Sequence[float]) -> Cells:
    """Runs what is missing."""
    bench.warm(spec, [spec.variant(label) for label in labels], rates)
    return {(label, rate): bench.cell(spec, spec.variant(label), rate) for label in labels for rate in rates}


def grid(labels: Sequence[str], rates: Sequence[float], capacity: float, cells: Cells) -> list[str]:
    """Goodput, violations, Jain, worst class for each variant and load."""
    head = ["variant", *(f"{rate / capacity:.2g} ({rate:.2f}/s)" for rate in rates)]
    rows = []
    for label in labels:
        row = [label]
        for rate in rates:
            one = cells[label, rate]
            fair = f"{mean(one['jain_sizes']):.3f} / {mean(one['worst_class']):.2f}"
            row.append(f"{mean(one['goodput_per_s']):.2f} / {percent(one['violations'])} / {fair}")
        rows.append(row)
    return ["Cells: goodput per s / violations % / Jain over sizes / worst class's share in time.", *table(head, rows)]


def e8(bench: SetUps) -> Section:
    """All variants, one engine."""
    spec = bench.spec("qwen72b")
    capacity, half = anchors(bench, spec)
    labels = [one.label for one in spec.variants]
    rates = sorted({*(rate_of(load, capacity) for load in spec.loads), half})
    cells = cells_of(bench, spec, labels, rates)
    figures = bars(cells, rates, capacity, half)
    fcfs, ours = cells["FCFS", half], cells["MH", half]
    gain = ratio_of_means(ours["goodput_per_s"], fcfs["goodput_per_s"])
    sync = ratio_of_means(ours["goodput_per_s"], cells["FCFS sync", half]["goodput_per_s"])
    figures["goodput_vs_fcfs_sync"] = sync.mean
    worst = f"{figures['worst_vs_sjf']:+.3f}, of the worst quarter by size {figures['worst_size_vs_sjf']:+.3f}"
    lines = [
        f"Qwen2.5-72B on 4 GPUs of a GB200; {seeds_of(spec)}. Capacity, the highest load at which FCFS with feasible restore",
        f"misses at most 5 %: **{capacity:.1f} per s**; it meets half at **{half:.1f} per s** ({half / capacity:.2g} x that).",
        "",
        *grid(labels, rates, capacity, cells),
        f"- At {half:.1f} per s MH has {gain.mean:.2f} times FCFS's goodput (one-sided 90 % bounds {gain.low:.2f} to",
        f"  {gain.high:.2f}; {sync.mean:.1f} times that of FCFS sync) and {figures['violations_vs_fcfs']:.3f} times its",
        "  violations. The paper: up to 2.4 and 0.6 times.",
        f"- It has 2.4 times or more from {figures['goodput_24_from']:.2g} x capacity on, as far as was run",
        f"  ({rates[-1] / capacity:.2g} x).",
        f"- Beyond {BEYOND} x capacity MH has at least {figures['mh_vs_lrb_goodput']:.4f} times the goodput of the better LRB",
        f"  (there one-sided 90 % bounds {figures['mh_vs_lrb_low']:.4f} to {figures['mh_vs_lrb_high']:.4f}) and",
        f"  {figures['mh_vs_sjf_goodput']:.4f} times that of SJF. At all loads, least difference to SJF: of the worst",
        f"  class {worst}, of Jain {figures['jain_vs_sjf']:+.4f}; Jain up to capacity is at least",
        f"  {figures['jain_to_capacity']:.4f}.",
        "",
        *classes_table(spec, cells, half, capacity),
    ]
    return Section("E8, E9: one engine over loads", lines, figures)


def bars(cells: Cells, rates: Sequence[float], capacity: float, half: float) -> dict[str, float]:
    """The figures by which it is judged, of means over paired seeds."""

    def of(label: str, rate: float, key: str) -> float:
        return mean(cells[label, rate][key])

    late = [rate for rate in rates if rate > BEYOND * capacity]
    fine = [rate for rate in rates if rate <= capacity * 1.0001]
    many = [rate for rate in rates if of("MH", rate, "goodput_per_s") >= 2.4 * of("FCFS", rate, "goodput_per_s")]
    steady = [rate for rate in many if all(other in many for other in rates if other >= rate)]
    good = "goodput_per_s"
    beside = [
        min([ratio_of_means(cells["MH", r][good], cells[other, r][good]) for other in ("LRB", "LRB, own")], key=_mean)
        for r in late
    ]
    closest = min(beside, key=_mean)
    return {
        "capacity_per_s": capacity,
        "half_per_s": half,
        "goodput_vs_fcfs": of("MH", half, good) / of("FCFS", half, good),
        "violations_vs_fcfs": of("MH", half, "violations") / of("FCFS", half, "violations"),
        "goodput_24_from": min(steady) / capacity if steady else float("nan"),
        "mh_vs_lrb_goodput": closest.mean,
        "mh_vs_lrb_low": closest.low,
        "mh_vs_lrb_high": closest.high,
        "mh_vs_sjf_goodput": min(of("MH", r, good) / of("SJF", r, good) for r in late),
        "worst_vs_sjf": min(of("MH", r, "worst_class") - of("SJF", r, "worst_class") for r in rates),
        "worst_size_vs_sjf": min(of("MH", r, "worst_size") - of("SJF", r, "worst_size") for r in rates),
        "jain_vs_sjf": min(of("MH", r, "jain_sizes") - of("SJF", r, "jain_sizes") for r in rates),
        "jain_to_capacity": min(of("MH", r, "jain_sizes") for r in fine),
    }


def _mean(one: Interval) -> float:
    return one.mean


def classes_table(spec: CascadeSpec, cells: Cells, rate: float, capacity: float) -> list[str]:
    """TTFT of each class, and what tier 2 waits."""
    head = ["variant", *(f"{one.name} ({one.ttft_s:g} s)" for one in spec.classes), "in tier 2 %", "its P99 wait s"]
    rows = []
    for label in sorted({label for label, _ in cells}, key=[one.label for one in spec.variants].index):
        one = cells[label, rate]
        ttft = [f"{mean(one[f'{c.name}_ttft_p50_s']):.2f} / {mean(one[f'{c.name}_ttft_p99_s']):.1f}" for c in spec.classes]
        rows.append([label, *ttft, percent(one["tier2_share"]), spread(one["tier2_wait_p99_s"], ".0f")])
    return [f"TTFT P50 / P99 in s by class, at {rate / capacity:.2g} x capacity:", *table(head, rows)]


def model(name: str, title: str) -> Callable[[SetUps], Section]:
    """The same on another model, fewer loads."""

    def part(bench: SetUps) -> Section:
        spec = bench.spec(name)
        capacity, half = anchors(bench, spec, 0.1 if spec.low_per_s >= 1 else 0.05)
        rates = sorted({*(rate_of(load, capacity) for load in spec.loads), half})
        cells = cells_of(bench, spec, MAIN, rates)
        gain = ratio_of_means(cells["MH", half]["goodput_per_s"], cells["FCFS", half]["goodput_per_s"])
        text = f"Capacity {capacity:.2f} per s, FCFS meets half at {half:.2f}; {seeds_of(spec)}."
        more = f"There MH has {gain.mean:.2f} times FCFS's goodput."
        return Section(title, [text, more, "", *grid(MAIN, rates, capacity, cells)], {f"goodput_vs_fcfs_{name}": gain.mean})

    return part


def four(bench: SetUps) -> Section:
    """Four engines, one lost."""
    spec = bench.spec("four")
    capacity, half = anchors(bench, replace(spec, lost_at=0.0), 0.5)
    rates = sorted({*(rate_of(load, capacity) for load in spec.loads), half})
    cells = cells_of(bench, spec, MAIN, rates)
    gain = ratio_of_means(cells["MH", half]["goodput_per_s"], cells["FCFS", half]["goodput_per_s"])
    text = [
        f"One queue before four engines, one of which is lost at half time for good; {seeds_of(spec)}. Loads are multiples of",
        f"the capacity of all four, {capacity:.1f} per s; with all four FCFS meets half at {half:.1f} per s. There, with the",
        f"loss, MH has {gain.mean:.2f} times FCFS's goodput.",
        "",
    ]
    figures = {"goodput_vs_fcfs_one_lost": gain.mean}
    return Section("Four engines, one lost at half time", [*text, *grid(MAIN, rates, capacity, cells)], figures)


def exact(bench: SetUps) -> Section:
    """When the predictor is right."""
    spec = replace(bench.spec("qwen72b"), truth=TruthSpec(), length_error=0.0)
    spec = replace(spec, seeds=spec.seeds[:3])
    capacity, half = anchors(bench, bench.spec("qwen72b"))
    rates = [rate_of(3.0, capacity), half]
    cells = cells_of(bench, spec, MAIN, rates)
    text = f"Step times and lengths exactly as believed, no stalls; {seeds_of(spec)}; loads as multiples of the capacity above."
    return Section("With a truth that the predictor knows", [text, "", *grid(MAIN, rates, capacity, cells)])


def fresh(bench: SetUps) -> Section:
    """Seeds that nothing was worked out on."""
    spec = bench.spec("qwen72b")
    capacity, half = anchors(bench, spec)
    spec = replace(spec, seeds=FRESH[: bench.seeds or len(FRESH)])
    rates = [rate_of(load, capacity) for load in (1.0, 1.2)] + [half]
    cells = cells_of(bench, spec, MAIN[1:], rates)
    head = ["variant", *(f"{rate / capacity:.2g} ({rate:.2f}/s)" for rate in rates)]
    rows = [[label, *(_missed(spec, cells[label, rate]) for rate in rates)] for label in MAIN[1:]]
    gains = {
        (other, rate): ratio_of_means(cells["MH", rate]["goodput_per_s"], cells[other, rate]["goodput_per_s"])
        for other in ("LRB", "SJF")
        for rate in rates
    }
    told = [
        f"- MH beside {other} at {rate / capacity:.2g} x: {one.mean:.4f} times the goodput (one-sided 90 % bounds {one.low:.4f}"
        f" to {one.high:.4f})."
        for (other, rate), one in gains.items()
    ]
    text = [
        f"The orders were worked out on the seeds of the tables; these are others: {seeds_of(spec)}. Cells: requests that",
        "missed their SLO, of all that are counted / worst class's share in time.",
    ]
    figures = {f"mh_vs_{other.lower()}_fresh": min(gains[other, rate].mean for rate in rates) for other in ("LRB", "SJF")}
    return Section("Seeds that nothing was worked out on", [*text, *table(head, rows), *told], figures)


def _missed(spec: CascadeSpec, cell: Cell) -> str:
    counted = spec.requests - int(spec.requests * spec.warmup_share)
    missed = round(sum(cell["violations"]) * counted)
    return f"{missed} of {counted * len(cell['violations']):,} / {mean(cell['worst_class']):.4f}"


def scarce(bench: SetUps) -> Section:
    """Hardly any KV memory."""
    spec = bench.spec("scarce")
    capacity, _ = anchors(bench, bench.spec("qwen72b"))
    rates = [rate_of(load, capacity) for load in (1.5, 3.0)]
    cells = cells_of(bench, spec, MAIN[1:], rates)
    good = "goodput_per_s"
    ratios = [mean(cells["MH", rate][good]) / mean(cells["SJF", rate][good]) for rate in rates]
    text = [
        f"`scarce.toml`: {spec.hbm_tokens:,} tokens in HBM, prompts up to half of them; {seeds_of(spec)}; loads as multiples",
        f"of the capacity of the first table. MH has at least {min(ratios):.3f} times the goodput of SJF.",
        "",
    ]
    return Section("Very little memory", [*text, *grid(MAIN[1:], rates, capacity, cells)], {"mh_vs_sjf_scarce": min(ratios)})


LOADS_PARTS: Mapping[str, Callable[[SetUps], Section]] = {
    "e8": e8,
    "llama70b": model("llama70b", "Llama-3.1-70B"),
    "llama405b": model("llama405b", "Llama-3.1-405B"),
    "four": four,
    "exact": exact,
    "fresh": fresh,
    "scarce": scarce,
}
