"""What the simulator costs: 12 engines and 10,000 requests under each of the Astrolabe paper's policies, on one core.

One run for each policy of examples/papers/astrolabe/e1.toml, near saturation, in this process; CPU time of the process, which
is what one core of a quiet machine takes. The requests are drawn before. The last line is JSON.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gateway.sim.cluster import Cluster
from gateway.sim.runner import requests_of
from gateway.sim.scenario import Scenario, load
from tests.bench.sidecar import reference_us

SCENARIO = Path(__file__).parents[2] / "examples" / "papers" / "astrolabe" / "e1.toml"
RATE_PER_S = 32.0


def figure_name(label: str) -> str:
    """A policy's label as a figure's name."""
    words = "".join(letter if letter.isalnum() else " " for letter in label.lower()).split()
    return f"simulate_{'_'.join(words)}_s"


def measure(scenario: Scenario) -> dict[str, float]:
    """CPU seconds of each policy, and the most of them."""
    requests = requests_of(scenario, scenario.seeds[0])
    found = {}
    for policy in scenario.policies:
        begin_s = time.process_time()
        outcome = Cluster(scenario, policy, requests, scenario.seeds[0]).run()
        name = figure_name(policy.label)
        found[name] = time.process_time() - begin_s
        assert not outcome.lost
        sys.stderr.write(f"{name:36} {found[name]:6.2f} s\n")
    return {"simulate_max_s": max(found.values()), **found}


def main(argv: Sequence[str]) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--requests", type=int, default=0, help="so many, for a trial (10,000)")
    wanted = parser.parse_args(argv).requests
    scenario = load(SCENARIO).at_rate(RATE_PER_S)
    if wanted:
        scenario = replace(scenario, workload=replace(scenario.workload, requests=wanted))
    figures = {**measure(scenario), "reference_us": reference_us()}
    line: dict[str, float] = {name: round(value, 3) for name, value in figures.items()}
    line["requests"] = scenario.workload.requests
    line["replicas"] = sum(kind.count for kind in scenario.replicas)
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
