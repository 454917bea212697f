"""`make bench-swaps`: what one plan costs, at 8 devices and 50 models that are all asked for. Plain Python, thread CPU time.

Prints one line of JSON: the median and the worst plan in ms, of plans that find something to do.
"""

import json
import sys
import time

from gateway.residency import PlanSettings
from gateway.swap_search import best
from gateway.swaps import Planner
from predictor.cost import SwapCosts
from predictor.hosts import host_profiles
from tests.core.fleets import fleet

SEEDS = 25


def main() -> None:
    """The command."""
    costs, took_ms, searched, steps = SwapCosts(host_profiles()), [], [], []
    for seed in range(SEEDS):
        view = fleet(seed, devices=8, models=50)
        times = []
        for _ in range(5):
            begin = time.thread_time()
            planner = Planner(view, costs, PlanSettings())
            found = best(planner)
            times.append((time.thread_time() - begin) * 1e3)
        took_ms.append(sorted(times)[2])
        searched.append(planner.searched)
        steps.append(len(found.steps))
    took_ms.sort()
    figures = {
        "plan_ms_p50": round(took_ms[SEEDS // 2], 2),
        "plan_ms_max": round(took_ms[-1], 2),
        "states": sum(searched) / SEEDS,
        "steps": sum(steps) / SEEDS,
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
