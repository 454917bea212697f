"""What one what-if costs with 48 requests running and 50 waiting, compiled and interpreted, beside a reference loop.

Forty states of an A30 with Llama-2-7B, chat lengths and nearly full memory; thread CPU time of each single call. The
last line on standard output is JSON. The reference loop is a fixed piece of interpreter work: where it takes another
time than on the machine of the record, scale by it.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from statistics import mean, median, quantiles
from types import ModuleType

from predictor.forecast import Forecast
from predictor.request import Request
from predictor.snapshot import Snapshot
from tests.core.states import FORMS, PAPER, PAPER_LIMITS, busy_state, chat_lengths

STATES = 40


def timed_us(call: Callable[..., object], *arguments: object) -> float:
    begin = time.thread_time_ns()
    call(*arguments)
    return (time.thread_time_ns() - begin) / 1e3


def reference() -> int:
    """Arithmetic, a list and a dict: what interpreted code is made of."""
    table = {number: number for number in range(64)}
    total = 0
    for number in range(10_000):
        total += table[number & 63] ^ number
    return total


def what_ifs(form: ModuleType, states: list[Snapshot], rounds: int) -> tuple[list[float], list[float], float]:
    """Times of each what-if and of each load, and the steps simulated on average."""
    rng = random.Random(7)
    engine = form.Kernel(PAPER_LIMITS, PAPER.coefficients)
    spent, loads, steps = [], [], []
    for state in states:
        loads += [timed_us(engine.load, state.running, state.waiting, state.free_blocks) for _ in range(5)]
        for _ in range(rounds):
            spent.append(timed_us(engine.predict, *chat_lengths(rng)))
            steps.append(engine.steps)
    return spent, loads, mean(steps)


def forecasts(states: list[Snapshot], rounds: int) -> list[float]:
    """Times of `Forecast.predict`, which puts an estimate around a what-if."""
    forecast = Forecast(PAPER, PAPER_LIMITS)
    request = Request("new", 200, 300, 0.0)
    spent = []
    for state in states:
        forecast.load(state)
        spent += [timed_us(forecast.predict, request) for _ in range(rounds)]
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="what-ifs on each of the states, compiled")
    rounds = parser.parse_args().rounds
    states = [busy_state(seed) for seed in range(STATES)]
    loop = median(timed_us(reference) for _ in range(50))
    figures: dict[str, float | None] = {"whatif_p50_us": None, "whatif_p99_us": None}
    if "compiled" in FORMS:
        what_ifs(FORMS["compiled"], states[:4], 50)  # warm
        spent, loads, steps = what_ifs(FORMS["compiled"], states, rounds)
        figures |= {"whatif_p50_us": median(spent), "whatif_p99_us": quantiles(spent, n=100)[98]}
        figures |= {"load_p50_us": median(loads), "steps_mean": steps, "forecast_p50_us": median(forecasts(states, rounds))}
    spent, loads, _ = what_ifs(FORMS["source"], states, max(2, rounds // 50))
    figures |= {"plain_p50_us": median(spent), "plain_p99_us": quantiles(spent, n=100)[98], "plain_load_p50_us": median(loads)}
    figures["clock_us"] = median(timed_us(lambda: None) for _ in range(1000))
    figures["reference_us"] = loop
    for name, value in figures.items():
        print(f"{name:20} {'not built' if value is None else f'{value:10.2f}'}")
    print(json.dumps({name: None if value is None else round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
