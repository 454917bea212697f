"""The experiments of the Astrolabe paper and ours beside them: each runs what it needs and gives a section of the report.

Numbers are those of papers' own set-up (a model of 12 x A30); constants of our policy stand in the scenario files and
were fixed before the first run. A figure that does not reproduce stands beside the published one, with the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from measure import measure_herding, measure_ranks

from gateway.sim.campaign import bare
from gateway.sim.paper import Bench, Section, spread, table
from gateway.sim.scenario import PolicySpec, Scenario, load
from gateway.sim.stats import Interval, mean, ratio_of_means

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Scenarios(Bench):
    """The scenarios of this folder, shortened as the command was told."""

    def scenario(self, name: str, seeds: int = 0) -> Scenario:
        """One of them with at most so many seeds."""
        found = load(HERE / f"{name}.toml", self.data)
        limit = min(n for n in (seeds or len(found.seeds), self.seeds or len(found.seeds), len(found.seeds)))
        work = replace(found.workload, requests=self.requests or found.workload.requests)
        return replace(found, seeds=found.seeds[:limit], workload=work)


def seeds_of(scenario: Scenario) -> str:
    """Which seeds, in words."""
    return f"seeds {scenario.seeds[0]} to {scenario.seeds[-1]}" if len(scenario.seeds) > 1 else f"seed {scenario.seeds[0]}"


BARRED = ("Po2", "Po2, true lengths", "Llumnix-", "ours")


def e1(bench: Scenarios) -> Section:
    """Capacity at the SLO. The policies that no bar names get two seeds, and none in a short run."""
    scenario = bench.scenario("e1")
    few = replace(scenario, seeds=scenario.seeds[:2])
    others = [policy.label for policy in scenario.policies if policy.label not in BARRED and len(scenario.seeds) >= 5]
    bench.campaign.warm_capacities(scenario, BARRED)
    bench.campaign.warm_capacities(few, others)
    found = {label: bench.campaign.capacities(scenario, label) for label in BARRED}
    found |= {label: bench.campaign.capacities(few, label) for label in others}
    rows = []
    for policy in scenario.policies:
        if policy.label not in found:
            continue
        ours = mean(found[policy.label])
        paper = f"{policy.paper:.1f}" if policy.paper else ""
        off = f"{(ours / policy.paper - 1) * 100:+.1f} %" if policy.paper else ""
        rows.append([policy.label, paper, spread(found[policy.label], ".1f"), off, str(len(found[policy.label]))])
    best = max(mean(found[label]) for label in ("Po2", "Llumnix-"))
    figures = {
        "capacity_po2": mean(found["Po2"]),
        "capacity_oracle": mean(found["Po2, true lengths"]),
        "capacity_llumnix": mean(found["Llumnix-"]),
        "ours_capacity_ratio": mean(found["ours"]) / best,
    }
    text = f"Requests per second at which TTFT P99 is still 10 s; bisection to 0.1, {seeds_of(scenario)}."
    return Section("E1: capacity", [text, *table(["policy", "paper", "simulated", "difference", "seeds"], rows)], figures)


ROWS: tuple[tuple[str, str, str], ...] = (
    ("TTFT mean s", "ttft_mean_s", ".2f"),
    ("P99 s", "ttft_p99_s", ".1f"),
    ("E2E mean s", "e2e_mean_s", ".2f"),
    ("preemptions, all replicas", "preemptions", ".0f"),
    ("as the paper counts", "preemptions_probed", ".0f"),
)
Found = dict[str, dict[str, list[float]]]


def compared(bench: Scenarios, scenario: Scenario, rate: float, labels: Sequence[str]) -> tuple[Found, list[str]]:
    """Policies at one rate: their figures over seeds, and the table."""
    bench.campaign.warm(scenario, labels, [rate])
    found = {label: bench.campaign.figures(scenario, label, rate) for label in labels}
    rows = [[label, *(spread(found[label][key], form) for _, key, form in ROWS)] for label in labels]
    return found, table(["policy", *(title for title, _, _ in ROWS)], rows)


def against_best(found: Found, key: str) -> Interval:
    """Ours against that one of the two published policies which has the lower mean in this figure."""
    best = min(("Po2", "Llumnix-"), key=lambda label: mean(found[label][key]))
    return ratio_of_means(found["ours"][key], found[best][key])


CONDITIONAL = "Po2, conditional lengths"


def ratios(found: Found, prefix: str) -> tuple[list[str], dict[str, float]]:
    """The three ratios, in words and as figures (upper 90 % bounds)."""
    lines, figures = [], {}
    for name, key in (("ttft_mean", "ttft_mean_s"), ("ttft_p99", "ttft_p99_s"), ("preemptions", "preemptions")):
        one = against_best(found, key)
        figures[f"{prefix}_{name}_ratio"] = one.high
        lines.append(f"- {key}: {one.mean:.2f} of the better published policy, upper 90 % bound {one.high:.2f}")
    return lines, figures


def e14(bench: Scenarios) -> Section:
    """Our default against the best published policies near saturation."""
    scenario = bench.scenario("e14")
    labels = [policy.label for policy in scenario.policies if policy.label != "fan-out"]
    found, lines = compared(bench, scenario, 32.0, labels)
    words, figures = ratios(found, "ours")
    text = (
        f"32 requests per s, {seeds_of(scenario)}, paired. *ours* is the default: late plan, aged SJF with turns, margin 0.06."
    )
    return Section("E14: the late plan near saturation", [text, *lines, *words, ""], figures)


def e3(bench: Scenarios) -> Section:
    """How preemptions were counted."""
    scenario = bench.scenario("e14")
    rows = []
    for label in ("Po2", "Llumnix-"):
        found = bench.campaign.figures(scenario, label, 32.0)
        rows.append([label, spread(found["preemptions"], ".0f"), spread(found["preemptions_probed"], ".0f")])
    text = (
        "The published claim is about 6 times fewer preemptions (300 against 1,800). The artifact sums the counters of the "
        "*probed* instances, 2 of 12 for Po2 and 12 of 12 for Llumnix-, and plots the sum unscaled; 12 / 2 = 6. Counted "
        "over all instances nothing of it is left:"
    )
    return Section("E3: preemptions", [text, *table(["policy", "all replicas", "probed replicas"], rows)])


OUR_ORDERS = ("ours", "by size and age alone", "late FCFS", "bounded overtaking")
WHY_LATER = (
    "Whoever lets short requests pass adds what they take to the waits of all others while the line grows, unless somebody "
    "stands back: here the heaviest 0.8 % do (gateway/turns.py), and nobody else waits longer than others in the line of now."
)


def robust(bench: Scenarios) -> Section:
    """The same with another truth."""
    scenario = bench.scenario("robust")
    limit = mean(bench.campaign.capacities(scenario, "Llumnix-", scenario.seeds[:3]))
    rate = round(0.95 * limit, 1)
    found, lines = compared(bench, scenario, rate, ["Po2", CONDITIONAL, "Llumnix-", *OUR_ORDERS])
    words, figures = ratios(found, "robust")
    past = round(1.05 * limit, 1)
    few = replace(scenario, seeds=scenario.seeds[:5])
    bench.campaign.warm(few, OUR_ORDERS, [past])
    beyond = {label: bench.campaign.figures(few, label, past) for label in OUR_ORDERS}
    tail = ratio_of_means(beyond["ours"]["ttft_p99_s"], beyond["late FCFS"]["ttft_p99_s"])
    figures["past_capacity_p99_against_fcfs"] = tail.mean
    text = (
        f"Steps of each replica are slower or faster by up to 15 %, 1 % of the steps stall by 200 ms, probes read "
        f"snapshots 50 to 250 ms old, lengths are 25 % off. Llumnix- then holds {limit:.1f} per s; this is 95 % of it, "
        f"{rate} per s, {seeds_of(scenario)}."
    )
    later = ratio_of_means(beyond["bounded overtaking"]["ttft_p99_s"], beyond["late FCFS"]["ttft_p99_s"])
    figures["past_capacity_p99_bounded"] = later.mean
    told = [f"{label} {mean(one['ttft_mean_s']):.2f} / {mean(one['ttft_p99_s']):.1f}" for label, one in beyond.items()]
    last = f"Past capacity ({past} per s, {len(few.seeds)} seeds), TTFT mean / P99 in s: {', '.join(told)}. {WHY_LATER}"
    return Section("Another truth", [text, *lines, *words, "", last, ""], figures)


NOISE = (0.0, 0.25, 0.5, 1.0)
SHAPES = (0.25, 0.5, 1.0, 2.0)


def e5(bench: Scenarios) -> Section:
    """Noise and bursts."""
    scenario = bench.scenario("e14", 2)
    rows = []
    for length in NOISE:
        row = [f"{length:.0%}"]
        for latency in NOISE:
            view = replace(scenario.view, latency_noise=latency, length_noise=length)
            found = bench.campaign.figures(replace(scenario, view=view), "Po2", 32.0)
            row.append(f"{mean(found['e2e_mean_s']):.2f} / {mean(found['ttft_p99_s']):.1f}")
        rows.append(row)
    heat = table(["length noise", *(f"latency {latency:.0%}" for latency in NOISE)], rows)
    bursts = []
    for shape in SHAPES:
        row = [f"{shape:g}"]
        bursty = replace(scenario, workload=replace(scenario.workload, arrivals="gamma", shape=shape))
        bench.campaign.warm(bursty, ["Po2", "Llumnix-", "ours"], [30.0])
        for label in ("Po2", "Llumnix-", "ours"):
            found = bench.campaign.figures(bursty, label, 30.0)
            row.append(f"{mean(found['ttft_mean_s']):.2f} / {mean(found['ttft_p99_s']):.1f}")
        bursts.append(row)
    text = f"Po2 at 32 per s, mean E2E / TTFT P99 in s, {seeds_of(scenario)}. Published: below 3 % more E2E at 100 / 100 %."
    more = "Bursts at 30 per s (gamma shape; mean TTFT / P99 in s):"
    return Section("E5: noise and bursts", [text, *heat, more, *table(["shape", "Po2", "Llumnix-", "ours"], bursts)])


def e0(bench: Scenarios) -> Section:
    """Why run-time metrics mislead."""
    scenario = bench.scenario("e14", 2)
    blind = replace(scenario, policies=(PolicySpec("random", "random"),))
    rows = []
    for rate in (26.0, 30.0):
        items = [(bare(blind.at_rate(rate), "random"), seed) for seed in blind.seeds]
        found = bench.campaign.collect(measure_ranks, items)
        rows.append([f"{rate:g}", *(f"{mean([one[key] for one in found]):.2f}" for key in found[0])])
    heads = ["rate/s", "free blocks", "running", "tokens per s", "queued tokens", "predicted E2E"]
    text = (
        "Rank correlation, over the 12 replicas, of what is known when a request arrives with the E2E that it would have "
        "there (the truth stepped on without later arrivals); mean over sampled requests, placement at random, signs as "
        f"they come ({seeds_of(scenario)})."
    )
    return Section("E0: run-time metrics and the true E2E", [text, *table(heads, rows)])


def herding(bench: Scenarios) -> Section:
    """The longest row of dispatches to one replica."""
    scenario = bench.scenario("herding", 2)
    rows = []
    for policy in scenario.policies:
        row = [policy.label]
        for gateways in (1, 2, 4):
            view = replace(scenario.view, gateways=gateways)
            items = [(bare(replace(scenario, view=view), policy.label), policy.label, seed) for seed in scenario.seeds]
            found = bench.campaign.collect(measure_herding, items)
            row.append(f"{mean([one['run'] for one in found]):.1f} / {mean([one['ttft_p99_s'] for one in found]):.1f}")
        rows.append(row)
    text = (
        f"Longest row of dispatches to one replica within 250 ms / TTFT P99 in s, at 30 per s with snapshots up to 250 ms "
        f"old and engine reports each 250 ms, {seeds_of(scenario)}."
    )
    return Section("Herding", [text, *table(["policy", "1 gateway", "2", "4"], rows)])


def e2(bench: Scenarios) -> Section:
    """All policies over the load."""
    scenario = bench.scenario("e2", 1)
    bench.campaign.warm(scenario, [policy.label for policy in scenario.policies], scenario.rates_per_s)
    rows = []
    for policy in scenario.policies:
        row = [policy.label]
        for rate in scenario.rates_per_s:
            found = bench.campaign.figures(scenario, policy.label, rate)
            row.append(f"{mean(found['ttft_mean_s']):.2f} / {mean(found['ttft_p99_s']):.1f}")
        rows.append(row)
    text = f"Mean TTFT / P99 in s over requests per s, {seeds_of(scenario)}."
    return Section("E2: latencies over the load", [text, *table(["policy", *(f"{r:g}" for r in scenario.rates_per_s)], rows)])


def e6(bench: Scenarios) -> Section:
    """Other settings of the engine, another model."""
    scenario = bench.scenario("e14", 1)
    rows = []
    kind = scenario.replicas[0]
    chunk, few = replace(kind.limits, max_num_batched_tokens=2048), replace(kind.limits, max_num_seqs=24)
    for name, limits in (("chunk 2,048", chunk), ("24 sequences", few)):
        other = replace(scenario, replicas=(replace(kind, limits=limits),))
        for rate in (26.0, 30.0):
            row = [f"{name}, {rate:g}/s"]
            for label in ("Po2", "Llumnix-", "ours"):
                found = bench.campaign.figures(other, label, rate)
                row.append(f"{mean(found['ttft_mean_s']):.2f} / {mean(found['ttft_p99_s']):.1f}")
            rows.append(row)
    lines = [f"Mean TTFT / P99 in s, {seeds_of(scenario)}."]
    lines += table(["setting", "Po2", "Llumnix-", "ours"], rows)
    qwen = bench.scenario("e6_qwen", 1)
    labels = [policy.label for policy in qwen.policies]
    bench.campaign.warm_capacities(qwen, labels)
    held = [
        [
            policy.label,
            f"{policy.paper:g}" if policy.paper else "",
            spread(bench.campaign.capacities(qwen, policy.label), ".1f"),
        ]
        for policy in qwen.policies
    ]
    lines += ["Qwen2-7B, capacity in requests per s (KV and lengths are assumed, see the scenario: not comparable in level):"]
    return Section("E6: generality", lines + table(["policy", "paper", "simulated"], held))


def e7(bench: Scenarios) -> Section:
    """Live migration."""
    moving = bench.scenario("e7", 2)
    still = replace(moving, migration=None)
    rows = []
    for name, scenario in (("without migration", still), ("with migration", moving)):
        bench.campaign.warm(scenario, ["Llumnix-"], scenario.rates_per_s)
        row = [name]
        for rate in scenario.rates_per_s:
            found = bench.campaign.figures(scenario, "Llumnix-", rate)
            row.append(f"{mean(found['ttft_mean_s']):.2f} / {mean(found['e2e_mean_s']):.1f} / {mean(found['preemptions']):.0f}")
        rows.append(row)
    text = (
        f"Mean TTFT / E2E in s / preemptions, {seeds_of(moving)}. The paper says migration costs a factor of 2.57 in "
        "throughput at the highest load; its own table gives 18,843 against 12,936 tokens per s, 1.46. In our model "
        "a migration costs what it copies and no more: what software around it may cost at high load is not modelled."
    )
    return Section("E7: live migration", [text, *table(["Llumnix-", *(f"{rate:g}/s" for rate in moving.rates_per_s)], rows)])


EXPERIMENTS: dict[str, Callable[[Scenarios], Section]] = {
    "e1": e1,
    "e14": e14,
    "robust": robust,
    "e3": e3,
    "e5": e5,
    "e0": e0,
    "herding": herding,
    "e6": e6,
    "e7": e7,
    "e2": e2,
}
