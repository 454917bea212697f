"""What predicted lengths are worth: runs lengths.toml, prints a table in Markdown, then one line of JSON.

Each policy is told the truth, the tagger's prediction, that of its cheap layers, and one constant for all; runs are paired
by seed. A gain is 1 - (figure with the prediction / figure with the constant), a share is what of the oracle's gain it is.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from gateway.sim.report import Figures
from gateway.sim.runner import keys, run_all
from gateway.sim.scenario import Scenario, load
from gateway.sim.stats import interval, mean

HERE = Path(__file__).parent
CONSTANT = "constant"
ORACLE = "oracle"
WORTH = 0.02  # of the requests: less than that to gain is noise
Runs = dict[tuple[str, str, float], list[Figures]]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=0, help="at most so many")
    parser.add_argument("--requests", type=int, default=0, help="requests a run")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    scenario = load(HERE / "lengths.toml")
    if given.seeds:
        scenario = replace(scenario, seeds=scenario.seeds[: given.seeds])
    if given.requests:
        scenario = replace(scenario, workload=replace(scenario.workload, requests=given.requests))
    runs = _runs(scenario, given.jobs)
    sys.stdout.write(_table(runs))
    sys.stdout.write("\n" + json.dumps(_figures(runs)) + "\n")


def _runs(scenario: Scenario, jobs: int) -> Runs:
    found: Runs = {}
    wanted = keys(scenario)
    for number, result in enumerate(run_all(scenario, wanted, jobs), 1):
        policy, _, told = result.key.label.partition(": ")
        found.setdefault((policy, told, result.key.rate_per_s), []).append(result.figures)
        sys.stderr.write(f"\r{number} of {len(wanted)} runs   ")
    return found


def _table(runs: Runs) -> str:
    lines = ["| policy | req/s | told | TTFT mean, s | against constant | TTFT P99, s | late, % | preemptions |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for (policy, told, rate), figures in runs.items():
        base = runs[policy, CONSTANT, rate]
        ratio = interval([one.ttft_mean_s / other.ttft_mean_s for one, other in zip(figures, base, strict=True)])
        lines.append(
            f"| {policy} | {rate:g} | {told} | {mean([one.ttft_mean_s for one in figures]):.3f} "
            f"| {ratio.mean:.2f} ± {ratio.high - ratio.mean:.2f} | {mean([one.ttft_p99_s for one in figures]):.1f} "
            f"| {100 * mean([one.violations for one in figures]):.1f} | {mean([one.preemptions for one in figures]):.0f} |"
        )
    return "\n".join(lines) + "\n"


def _figures(runs: Runs) -> dict[str, float]:
    found: dict[str, float] = {}
    for (policy, told, rate), figures in runs.items():
        if told == CONSTANT:
            continue
        name = f"{policy.replace(', ', '_')}_{told}_{rate:g}"
        base, best = runs[policy, CONSTANT, rate], runs[policy, ORACLE, rate]
        pairs = zip(figures, base, strict=True)
        found[f"{name}_ttft_gain"] = round(1.0 - mean([one.ttft_mean_s / other.ttft_mean_s for one, other in pairs]), 3)
        saved = mean([one.violations for one in base]) - mean([one.violations for one in figures])
        possible = mean([one.violations for one in base]) - mean([one.violations for one in best])
        found[f"{name}_late_saved"] = round(saved, 4)
        if told != ORACLE and possible > WORTH:
            found[f"{name}_share_of_oracle"] = round(saved / possible, 3)
    return found


if __name__ == "__main__":
    main()
