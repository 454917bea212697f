"""Our plan against the published rules of other routers, on recorded traces; needs LEEWAY_DATA."""

from experiments import Scenarios, seeds_of

from gateway.sim.paper import Section, spread, table
from gateway.sim.scenario import Scenario
from gateway.sim.stats import mean, ratio_of_means

OWN = ("ours", "bounded overtaking", "by size and age alone", "early, same price")
DEAR = {"llm-d headroom": 2}  # asks every engine for a what-if: so many windows, ten times the time of the other rules each
# File, name, whether it counts for the gain that the Mooncake traces must show.
TRACES = (
    ("peers_conversation", "Mooncake conversation", True),
    ("peers_synthetic", "Mooncake synthetic", True),
    ("peers_conversation_unseen", "Mooncake conversation, one in five unrecognised", False),
    ("peers_synthetic_unseen", "Mooncake synthetic, one in five unrecognised", False),
    ("peers_azure_conv", "Azure 2023 conversation", False),
    ("peers_azure_code", "Azure 2023 code", False),
)
LOADS = ("70 %", "90 %", "105 %")
Cell = dict[str, list[float]]
Lost = tuple[str, str, str]  # trace, rule, and at which load by which figure


def peers(bench: Scenarios) -> Section:
    """Every trace, rule and load. A cell (trace, rule) is lost where the rule is better than ours beyond the interval, in mean
    TTFT or P99, at one of the loads."""
    if bench.data is None:
        return Section("Against other routers' rules", ["Not run: LEEWAY_DATA does not name the folder of the traces."])
    lines = ["Cells: mean TTFT s / P99 s / % within 5 s. Rules as published, with their default constants."]
    lost: list[Lost] = []
    gains: list[float] = []
    for name, title, counts in TRACES:
        scenario = bench.scenario(name)
        cells = run_cells(bench, scenario)
        lines += ["", f"**{title}** ({seeds_of(scenario)}, windows of {scenario.workload.requests} requests)"]
        lines += table(
            ["rule", *(f"{load}: {rate:g}/s" for load, rate in zip(LOADS, scenario.rates_per_s, strict=True))],
            rows(scenario, cells),
        )
        lost += lost_cells(title, scenario, cells)
        if counts:
            gains.append(gain_90(scenario, cells))
    pairs = dict.fromkeys((trace, rule) for trace, rule, _ in lost)
    told = [f"{trace}, {rule} ({'; '.join(one[2] for one in lost if one[:2] == (trace, rule))})" for trace, rule in pairs]
    lines += ["", f"(Trace, rule) cells lost beyond the interval: {'; '.join(told) if told else 'none'}.", ""]
    figures = {"mooncake_mean_gain_90": min(gains), "peer_cells_lost": float(len(pairs))}
    return Section("Against other routers' rules", lines, figures)


def run_cells(bench: Scenarios, scenario: Scenario) -> dict[tuple[str, float], Cell]:
    """Figures by rule and rate."""
    labels = [policy.label for policy in scenario.policies]
    bench.campaign.warm(scenario, [label for label in labels if label not in DEAR], scenario.rates_per_s)
    return {
        (label, rate): bench.campaign.figures(scenario, label, rate, scenario.seeds[: DEAR.get(label)])
        for label in labels
        for rate in scenario.rates_per_s
    }


def rows(scenario: Scenario, cells: dict[tuple[str, float], Cell]) -> list[list[str]]:
    """The table's rows."""
    found = []
    for policy in scenario.policies:
        few = DEAR.get(policy.label, len(scenario.seeds))
        row = [policy.label if few >= len(scenario.seeds) else f"{policy.label} ({few} windows)"]
        for rate in scenario.rates_per_s:
            cell = cells[policy.label, rate]
            good = 100 * (1 - mean(cell["violations"]))
            row.append(f"{spread(cell['ttft_mean_s'], '.2f')} / {spread(cell['ttft_p99_s'], '.1f')} / {good:.1f}")
        found.append(row)
    return found


def lost_cells(title: str, scenario: Scenario, cells: dict[tuple[str, float], Cell]) -> list[Lost]:
    """Where a rule beats ours beyond the interval."""
    found = []
    for policy in scenario.policies:
        if policy.label in OWN:
            continue
        for load, rate in zip(LOADS, scenario.rates_per_s, strict=True):
            for figure, key in (("mean", "ttft_mean_s"), ("P99", "ttft_p99_s")):
                theirs = cells[policy.label, rate][key]
                one = ratio_of_means(cells["ours", rate][key][: len(theirs)], theirs)
                if one.low > 1.0:
                    found.append((title, policy.label, f"{load}, {figure} x {one.mean:.2f}"))
    return found


def gain_90(scenario: Scenario, cells: dict[tuple[str, float], Cell]) -> float:
    """By how much ours has the lower mean TTFT than the best rule at the middle load."""
    rate = scenario.rates_per_s[1]
    best = min(mean(cells[policy.label, rate]["ttft_mean_s"]) for policy in scenario.policies if policy.label not in OWN)
    return 1 - mean(cells["ours", rate]["ttft_mean_s"]) / best
