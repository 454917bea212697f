"""`make bench-queues`: what deciding anew about 1,000 waiting requests costs, and adding and taking one, in CPU time.
Their guarded costs are GUARD times the mean ones, so that mh has second chances to give.

One line of JSON: milliseconds of thread CPU time, median and P99 over rounds; beside them a fixed loop of plain Python
that tells how fast the machine was, and how many times its median a shorter one took at P99: what the machine itself adds
to a tail. `form` says whether the module was compiled.
"""

import argparse
import json
import statistics
import sys
import time
from random import Random

import predictor.queues
from predictor.queues import TieredQueue
from predictor.waiting import Waiting

WAITING = 1000
ROUNDS = 400
GUARD = 1.3


def filled(order: str, slack_s: float) -> TieredQueue:
    """1,000 requests, about a minute of work; with little slack many of them are late."""
    rng, queue = Random(1), TieredQueue(order)
    for number in range(WAITING):
        cost_s = rng.lognormvariate(-4.0, 1.0)
        deadline_s = 0.5 + rng.random() * slack_s
        tokens = int(cost_s * 30000) + 1
        queue.add(Waiting(str(number), -rng.random(), cost_s, tokens, deadline_s, mean_s=cost_s / GUARD), 0.0)
    return queue


def measure(order: str, slack_s: float) -> dict[str, float]:
    """Deciding anew at moving instants and loads, as a step would ask for it; then one goes and one comes."""
    queue = filled(order, slack_s)
    retier_ms, turn_ms = [], []
    for number in range(ROUNDS):
        now_s = number * 0.001
        begin = time.thread_time()
        queue.retier(now_s, 0.005, 1.0, 1.0 + 0.01 * (number % 5))
        middle = time.thread_time()
        taken = queue.pop(now_s)
        assert taken is not None
        deadline_s = now_s + 0.5 + slack_s
        queue.add(Waiting(f"n{number}", now_s, taken.cost_s, taken.tokens, deadline_s, mean_s=taken.mean_s), now_s)
        retier_ms.append((middle - begin) * 1e3)
        turn_ms.append((time.thread_time() - middle) * 1e3)
    name = f"{order}_{'tight' if slack_s < 10 else 'loose'}"
    return {
        f"retier_ms_{name}": statistics.median(retier_ms),
        f"retier_p99_ms_{name}": sorted(retier_ms)[int(0.99 * ROUNDS)],
        f"turn_ms_{name}": statistics.median(turn_ms),
    }


def reference(additions: int, rounds: int) -> list[float]:
    """A fixed loop of so many additions: its milliseconds in order."""
    taken = []
    for _ in range(rounds):
        begin, total = time.thread_time(), 0
        for number in range(additions):
            total += number
        taken.append((time.thread_time() - begin) * 1e3)
    return sorted(taken)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--beside", default="{}", help="the line of the other form, to be put beside this one")
    other = json.loads(parser.parse_args().beside)
    short = reference(10_000, ROUNDS)
    figures: dict[str, float] = {"waiting": WAITING, "reference_ms": statistics.median(reference(100_000, 20))}
    figures["reference_p99_to_median"] = short[int(0.99 * ROUNDS)] / statistics.median(short)
    for order in ("lrb", "mh"):
        for slack_s in (5.0, 40.0):
            figures |= measure(order, slack_s)
    form = "plain" if (predictor.queues.__file__ or "").endswith(".py") else "compiled"
    shown = {"form": form, **{name: round(value, 4) for name, value in figures.items()}}
    shown |= {f"{other['form']}_{name}": value for name, value in other.items() if name not in ("form", "waiting")}
    sys.stdout.write(json.dumps(shown) + "\n")


if __name__ == "__main__":
    main()
