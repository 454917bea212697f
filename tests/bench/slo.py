"""Promises kept: Leeway by deadlines, Leeway first come first served, and real routers before the same replicas, open loop.

    python -m tests.bench.slo --home DIR                     loads 80, 100 and 120 %, three paired seeds
    python -m tests.bench.slo --home DIR --quick             one short seed at 120 %, after a short search for capacity
    python -m tests.bench.slo --home DIR --only leeway-mh,smg-256 --loads 120 --seeds 1 --rate 60

`setup.sh DIR` prepares DIR. Four classes (slo_traffic.py) go to eight simulated replicas in real time (live_mocks.py).
100 % is the highest rate at which Leeway without an order of its own (fcfs) keeps what is promised to 95 % of the
requests; it is searched for once and kept in DIR. Table and progress go to standard error, one JSON line to standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tests.bench import live_capacity
from tests.bench.live_figures import Run
from tests.bench.live_mocks import MODEL
from tests.bench.live_peers import TOLD, leeway, router
from tests.bench.live_rounds import Rounds, Whole, chosen_names, chosen_rates, chosen_stage, parser, say
from tests.bench.live_run import one_run
from tests.bench.peers import Recipe
from tests.bench.process import allow_many_files, end_on_signals, first_in_line
from tests.bench.slo_figures import FCFS, OURS, attained, markdown, row, rows, summary
from tests.bench.slo_traffic import KINDS, classes_toml, schedule

SLO_SHARE = 0.95
GUESS_PER_S = 110.0
QUICK_PRECISION = 1.15
# smg orders by class only what waits for one of its places, and none is refused for want of a line. How many places suit
# it is tried: with 128 for all eight replicas it starves them.
SMG = ("--priority-scheduler-enabled", "--priority-scheduler-default-max-class", "interactive", "--queue-size", "4000")
OPEN = "--disable-worker-overload-protection"


def by_order(order: str, engine_settings: str = "") -> Recipe:
    """Leeway with the classes and this order of its line."""
    return leeway(f'policy = "plan"\norder = "{order}"\n{classes_toml()}', engine_settings)


def smg(policy: str, places: int) -> Recipe:
    """smg with its classes, and so many requests at its workers at once."""
    return router("v_smg", policy, "smg", "launch", more=(*SMG, OPEN, "--max-concurrent-requests", str(places)))


PEERS: Mapping[str, Recipe] = {
    OURS: by_order("mh"),
    FCFS: by_order("fcfs"),
    "vllm-router-cache": router("v_vr", "cache_aware", "vllm_router.launch_router"),
    "vllm-router-po2": router("v_vr", "power_of_two", "vllm_router.launch_router"),
    "smg-256": smg("cache_aware", 256),
    "smg-512": smg("cache_aware", 512),
    "smg-po2-256": smg("power_of_two", 256),
    # Not compared by default.
    "leeway-mh-told": by_order("mh", TOLD),
    "leeway-lrb": by_order("lrb"),
    "leeway-edf": by_order("edf"),
    "leeway-sjf": by_order("sjf"),
    "smg-128": smg("cache_aware", 128),
}
COMPARED = (OURS, FCFS, "vllm-router-cache", "vllm-router-po2", "smg-256", "smg-512", "smg-po2-256")
QUICK = (OURS, FCFS, "vllm-router-po2", "smg-256")


class Bench(Rounds):
    """The routers under four classes of requests."""

    def run(self, name: str, load: int, seed: int, rate_per_s: float) -> Run:
        """One router once."""
        plan = schedule(rate_per_s, seed, self.stage.timing.arrivals_s)
        return one_run(self.stage, name, PEERS[name], plan, load, seed, rate_per_s)

    def told(self, run: Run) -> str:
        """What was kept, by class."""
        figures = row([run])
        shares = ", ".join(f"{kind.name} {share:.0%}" for kind, share in zip(KINDS, figures.by_class, strict=True))
        return (
            f"goodput {figures.goodput_per_s:.2f}/s ({shares}), TTFT P50 {figures.ttft_p50_s:.3f} "
            f"P99 {figures.ttft_p99_s:.2f} s, busy {figures.busy:.0%}, {figures.router_us:.0f} us"
        )


def whole() -> Whole:
    """The capacity of Leeway without an order of its own."""
    settings = {"bench": "slo", "kinds": [asdict(kind) for kind in KINDS]}
    return Whole(FCFS, "slo-capacity.json", GUESS_PER_S, SLO_SHARE, lambda run: attained(run.seen), settings)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    return parser(__doc__, "80,100,120; 120 with --quick", "one short load, one seed, four routers").parse_args(argv)


def main(argv: Sequence[str]) -> int:
    call = arguments(argv)
    end_on_signals()
    allow_many_files()
    alone = first_in_line()
    bench = Bench(chosen_stage(call), chosen_names(call, [*PEERS], QUICK, COMPARED))
    capacity = call.rate or bench.capacity_per_s(whole(), QUICK_PRECISION if call.quick else live_capacity.PRECISION)
    rates = chosen_rates(call, capacity, "80,100,120", "120")
    bench.compare(rates, call.seeds or (1 if call.quick else 3))
    settings = {"capacity_per_s": round(capacity, 2), "quick": call.quick, "raised_priority": alone, "model": MODEL}
    line = summary(bench.runs, bench.failed, settings)
    say(markdown(rows(bench.runs), rates))
    bench.write(call.json, line)
    return 1 if bench.failed.keys() & {OURS, FCFS} else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
