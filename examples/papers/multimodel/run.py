"""`make paper-multimodel`: runs the experiments, writes docs/papers/multimodel.md with its plots, prints one line of JSON.

Results are kept under `--kept` and used again as long as the sources that decide are the same, so it can be stopped and
taken up again. The recorded mix needs LEEWAY_DATA and is left out without it; the report says what was run.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from curves import offload, penalties
from mixes import EXTRA, LABELS, MIXES, Run, measure, scenario, world_of

from gateway.sim.campaign import hash_of
from gateway.sim.paper import Bench, Paper, Picture, Section, run, spread, table
from gateway.sim.stats import Interval, mean, ratio_of_means
from gateway.sim.swap_timeline import timeline_svg

ROOT = Path(__file__).parents[3]
DEPENDS = (
    "predictor/belief.py",
    "predictor/cost.py",
    "predictor/offload.py",
    "predictor/hosts.py",
    "predictor/profiles/swap.toml",
    "gateway/habits.py",
    "gateway/lateness.py",
    "gateway/reckoning.py",
    "gateway/residency.py",
    "gateway/schedule.py",
    "gateway/swap_search.py",
    "gateway/swaps.py",
    "gateway/sim/swap_*.py",
    "examples/papers/multimodel/*.toml",
    "examples/papers/multimodel/data/*",
    "examples/papers/multimodel/mixes.py",
)
HEAD = """# Many models on few GPUs: what the simulator gives

Everything about schedulers here is **simulation**: engines that batch, swaps that take the cost model's time, Poisson or
recorded requests; differences are predictions, levels are not. The study itself proposes no scheduler. The truth differs
from what a scheduler is told: swaps of each model and steps of each engine are up to 15 % off, single swaps vary by 5 %,
1 % of them stall for 5 s, and answers' lengths are known to nobody. Runs are paired by seed; ± is half of the two-sided
80 % interval. Constants stand in `examples/papers/multimodel/*.toml` and in the planner's defaults. They were found on seeds
0, 11, 12 and 101 to 124, the latter with 0.92, 1.04, 1.08 and 1.2 times the rates here. What *ours* knows of a model's requests
is the gateway's own record of them (gateway/habits.py: how often, how long, how patient); that it leaves out what neighbours
on the device cost was found on seeds 1 to 3. The seeds below chose nothing, but were looked at before. Stretches of the
recorded mix begin at random places of one recording, so that those of different seeds may share requests. After first runs
the rates of two mixes were lowered and the bound of one was raised, since every rule was past its capacity there. As in the
gateway, where a plan is made each second, the planner's search is one state wide here; a wider one gave the same goodput
within 0.5 % and up to 1.6 times the swaps (two-5, servegen-5 and one-3 on seeds 1 to 3, before that record was shared).

Twelve seeds are few. On seeds 1 to 4, with the same sources, ours against the best other is 1.025 in one-3, 1.005 in two-5,
1.012 in servegen-5 and 1.139 in the recorded mix, with lower bounds of 1.017, 1.000, 0.987 and 1.028, and 1.31 times
collation's swaps in the recorded mix, where collation swaps little because it leaves requests waiting (0.77 of them good;
ours 0.91). On seeds 41 to 48 one-3 has 1.010, two-5 1.014 and servegen-5 1.005, with lower bounds of 1.005, 0.999 and
0.995. So in two-5 and servegen-5, where the planner by itself has about collation's goodput with two thirds of its swaps,
that ours is better is not sure.

Repeat with `make paper-multimodel` (arguments in `PAPER_ARGS`)."""
WORDS = """A good request has its first token within its class's target and its tokens at the promised rate; goodput counts
those per second. *Waits* run from arrival to the start at an engine. Rules: FIFO swaps on demand in order of arrival;
llama-swap collation serves whoever asks for what is there until nobody does; a static partition gives each model one
device; LRU evicts what was not used longest after a least stay; QLM-like serves groups by earliest deadline; *ours* is
the swap planner, which keeps every wait below the mix's bound as far as drains allow, with the gateway's order among those
who wait for one model: the most urgent who can still be in time first, late ones after them, and nobody overtakes who has
waited for 70 % of the bound. The others start requests in order of arrival, as found. Two more rows tell the planner's part
from the order's: ours without that order, and collation with it, which no peer does; the bars are against the other five."""


@dataclass(frozen=True, slots=True)
class Mixes(Bench):
    """The mixes of this folder with their kept runs."""

    def can_run(self, mix: str) -> bool:
        """The recorded mix needs the data."""
        return self.data is not None or scenario(mix).arrivals != "trace"

    def run(self, mix: str, rule: str, seed: int) -> Run:
        """What names one run; the data's folder only where it matters, so that results are found again elsewhere."""
        spec = scenario(mix)
        return Run(mix, rule, seed, spec.duration_s, str(self.data) if spec.arrivals == "trace" else "")

    def seeds_of(self, mix: str) -> tuple[int, ...]:
        """As many as the command was told."""
        seeds = scenario(mix).seeds
        return seeds[: self.seeds or len(seeds)]

    def results(self, mix: str) -> dict[str, list[dict[str, float]]]:
        """The figures of each rule, seed by seed."""
        seeds = self.seeds_of(mix)
        return {
            rule: self.campaign.collect(measure, [self.run(mix, rule, seed) for seed in seeds]) for rule in (*LABELS, *EXTRA)
        }


def schedulers(mix: str, bench: Mixes) -> Section | None:
    """One table of schedulers."""
    if not bench.can_run(mix):
        return None
    spec, seeds, got = scenario(mix), bench.seeds_of(mix), bench.results(mix)
    rows = [[{**LABELS, **EXTRA}[rule], *_cells(results)] for rule, results in got.items()]
    head = [
        "scheduler",
        "goodput per s",
        "good share",
        "wait mean s",
        "P99 s",
        "longest s",
        "swaps per h",
        "GPU busy",
        "worst model",
    ]
    ratio, best = _against_best({rule: got[rule] for rule in LABELS})
    bare = ratio_of_means(_of(got["ours-fcfs"], "goodput_per_s"), _of(got["collate"], "goodput_per_s"))
    equal = ratio_of_means(_of(got["ours"], "goodput_per_s"), _of(got["collate-turn"], "goodput_per_s"))
    swaps = mean(_of(got["ours"], "swaps_per_h")) / mean(_of(got["collate"], "swaps_per_h"))
    longest = max(_of(got["ours"], "wait_max_s"))
    note = (
        f"Ours against the best of the others ({LABELS[best]}): goodput {ratio.mean:.3f} times, lower 90 % bound "
        f"{ratio.low:.3f}; swaps {swaps:.2f} times collation's; longest wait {longest:.0f} s of {spec.starve_s:.0f} s allowed. "
        f"Planner alone against collation, both in order of arrival: {bare.mean:.3f} ({bare.low:.3f} to {bare.high:.3f}); "
        f"both with our order: {equal.mean:.3f} ({equal.low:.3f} to {equal.high:.3f})."
    )
    lines = [f"{spec.note} {spec.rate_per_s:g} requests per s, {spec.duration_s:g} s, seeds {seeds[0]} to {seeds[-1]}."]
    lines += [*table(head, rows), note]
    figures = {
        f"{mix}_vs_best_goodput": ratio.mean,
        f"{mix}_vs_best_goodput_low": ratio.low,
        f"{mix}_vs_collation_swaps": swaps,
        f"{mix}_same_order_goodput": equal.mean,
        f"{mix}_arrival_order_goodput": bare.mean,
        f"{mix}_starvation_ok": float(longest <= spec.starve_s),
    }
    return Section(spec.name[0].upper() + spec.name[1:], lines, figures)


def _of(results: Sequence[dict[str, float]], name: str) -> list[float]:
    return [one[name] for one in results]


def _cells(results: Sequence[dict[str, float]]) -> list[str]:
    forms = (("goodput_per_s", ".3f"), ("good_share", ".3f"), ("wait_mean_s", ".1f"), ("wait_p99_s", ".0f"))
    cells = [spread(_of(results, name), form) for name, form in forms]
    cells.append(f"{max(_of(results, 'wait_max_s')):.0f}")
    rest = (("swaps_per_h", ".0f"), ("busy_share", ".2f"), ("worst_model", ".2f"))
    return cells + [spread(_of(results, name), form) for name, form in rest]


def _against_best(got: dict[str, list[dict[str, float]]]) -> tuple[Interval, str]:
    theirs = {rule: _of(results, "goodput_per_s") for rule, results in got.items() if rule != "ours"}
    best = max(theirs, key=lambda rule: mean(theirs[rule]))
    return ratio_of_means(_of(got["ours"], "goodput_per_s"), theirs[best]), best


def bars(bench: Mixes) -> Section:
    """What was to hold in all mixes, and whether it does."""
    mixes, figures = [mix for mix in MIXES if bench.can_run(mix)], dict(offload().figures)
    for section in (schedulers(mix, bench) for mix in mixes):
        figures.update(section.figures if section else {})
    low = min(figures[f"{mix}_vs_best_goodput_low"] for mix in mixes)
    swaps = max(figures[f"{mix}_vs_collation_swaps"] for mix in mixes)
    fed = min(figures[f"{mix}_starvation_ok"] for mix in mixes)
    rows = [
        ["goodput against the best other rule, lower 90 % bound, worst mix", ">= 1.0", f"{low:.3f}", _yes(low >= 1.0)],
        ["swaps against collation, worst mix", "<= 1.2", f"{swaps:.2f}", _yes(swaps <= 1.2)],
        ["longest wait within the bound, every mix", "1", f"{fed:.0f}", _yes(fed >= 1)],
        ["harmonic law's mean error", "<= 0.1", f"{figures['harmonic_err']:.3f}", _yes(figures["harmonic_err"] <= 0.1)],
    ]
    reading = (
        "Collation is a strong rule: it never interrupts, so it loses no time to drains, and it starves. Where one model more "
        "than fits is asked for all the time, the planner by itself has about its goodput with fewer swaps and a bound on each "
        "wait; there most of the gain in goodput is the order's."
    )
    found = {"ours_vs_best_goodput": low, "ours_vs_best_swaps": swaps, "starvation_ok": fed}
    return Section("What was to hold", [*table(["bar", "wanted", "found", "holds"], rows), reading], found)


def _yes(holds: bool) -> str:
    return "yes" if holds else "**no**"


def timelines(bench: Mixes) -> Section:
    """Swaps in the first ten minutes of one run, ours and collation's, and as JSON for a page."""
    mix, spans, pictures = MIXES[0], {}, {}
    spec = scenario(mix)
    for rule in ("collate", "ours"):
        world = world_of(bench.run(mix, rule, spec.seeds[0]))
        spans[rule] = [list(span) for span in world.timeline]
        drawn = timeline_svg(world.timeline, 600.0, f"{spec.name}, {LABELS[rule]}: swaps (grey) and models")
        pictures[f"timeline_{rule}"] = Picture(LABELS[rule], drawn)
    return Section("Who lay where", [], pictures=pictures, files={"timelines.json": json.dumps(spans) + "\n"})


PARTS: dict[str, Callable[[Mixes], Section | None]] = {
    "swap": lambda _: penalties(),
    "offload": lambda _: offload(),
    "rules": lambda _: Section("Schedulers", [WORDS]),
    **{mix: partial(schedulers, mix) for mix in MIXES},
    "bars": bars,
    "timelines": timelines,
}
PAPER = Paper("multimodel", HEAD, PARTS, Mixes, hash_of(ROOT, DEPENDS))

if __name__ == "__main__":
    run(PAPER, ROOT, __doc__)
