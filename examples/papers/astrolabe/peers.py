"""Our plan against the published rules of other routers, on recorded traces; needs LEEWAY_DATA."""

from experiments import Scenarios, seeds_of

from gateway.sim.paper import Section, spread, table
from gateway.sim.scenario import Scenario
from gateway.sim.stats import mean, ratio_of_means

OWN = ("ours", "early, same price")
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


def peers(bench: Scenarios) -> Section:
    """Every trace, rule and load. A cell is lost where a rule is better than ours in mean TTFT or P99 beyond the interval."""
    if bench.data is None:
        return Section("Against other routers' rules", ["Not run: LEEWAY_DATA does not name the folder of the traces."])
    lines = ["Cells: mean TTFT s / P99 s / % within 5 s. Rules as published, with their default constants."]
    lost: list[str] = []
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
    lines += ["", f"Cells lost beyond the interval: {'; '.join(lost) if lost else 'none'}.", ""]
    figures = {"mooncake_mean_gain_90": min(gains), "peer_cells_lost": float(len(lost))}
    return Section("Against other routers' rules", lines, figures)


def run_cells(bench: Scenarios, scenario: Scenario) -> dict[tuple[str, float], Cell]:
    """Figures by rule and rate."""
    labels = [policy.label for policy in scenario.policies]
    bench.campaign.warm(scenario, labels, scenario.rates_per_s)
    return {(label, rate): bench.campaign.figures(scenario, label, rate) for label in labels for rate in scenario.rates_per_s}


def rows(scenario: Scenario, cells: dict[tuple[str, float], Cell]) -> list[list[str]]:
    """The table's rows."""
    found = []
    for policy in scenario.policies:
        row = [policy.label]
        for rate in scenario.rates_per_s:
            cell = cells[policy.label, rate]
            good = 100 * (1 - mean(cell["violations"]))
            row.append(f"{spread(cell['ttft_mean_s'], '.2f')} / {spread(cell['ttft_p99_s'], '.1f')} / {good:.1f}")
        found.append(row)
    return found


def lost_cells(title: str, scenario: Scenario, cells: dict[tuple[str, float], Cell]) -> list[str]:
    """Where a rule beats ours beyond the interval, in words."""
    found = []
    for policy in scenario.policies:
        if policy.label in OWN:
            continue
        for load, rate in zip(LOADS, scenario.rates_per_s, strict=True):
            for figure, key in (("mean", "ttft_mean_s"), ("P99", "ttft_p99_s")):
                one = ratio_of_means(cells["ours", rate][key], cells[policy.label, rate][key])
                if one.low > 1.0:
                    found.append(f"{title} at {load}, {policy.label}, {figure} x {one.mean:.2f}")
    return found


def gain_90(scenario: Scenario, cells: dict[tuple[str, float], Cell]) -> float:
    """By how much ours has the lower mean TTFT than the best rule at the middle load."""
    rate = scenario.rates_per_s[1]
    best = min(mean(cells[policy.label, rate]["ttft_mean_s"]) for policy in scenario.policies if policy.label not in OWN)
    return 1 - mean(cells["ours", rate]["ttft_mean_s"]) / best
