"""Promises kept: Leeway by deadlines, Leeway first come first served, and real routers before the same replicas, open loop.

    python -m tests.bench.slo --home DIR                     loads 80, 100 and 120 %, three paired seeds
    python -m tests.bench.slo --home DIR --quick             one short seed at 120 %, after a short search for capacity
    python -m tests.bench.slo --home DIR --only leeway-mh,smg-128 --loads 120 --seeds 1 --rate 60

`setup.sh DIR` prepares DIR. Four classes (slo_traffic.py) go to eight simulated replicas in real time (live_mocks.py).
100 % is the highest rate at which Leeway without an order of its own (fcfs) keeps what is promised to 95 % of the
requests; it is searched for once and kept in DIR. Table and progress go to standard error, one JSON line to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from tests.bench import live_capacity
from tests.bench.live import chosen_stage, refuse, say
from tests.bench.live_figures import Run
from tests.bench.live_mocks import LIMITS, MODEL, PROFILE
from tests.bench.live_peers import TOLD, leeway, router
from tests.bench.live_run import RunFailedError, Stage, in_turn, one_run
from tests.bench.peers import NotInstalledError, Recipe
from tests.bench.process import allow_many_files, end_on_signals, first_in_line
from tests.bench.slo_figures import FCFS, OURS, attained, markdown, row, rows, summary
from tests.bench.slo_traffic import KINDS, classes_toml, schedule

SLO_SHARE = 0.95
GUESS_PER_S = 55.0
# smg orders by class only what waits for one of its places: so many are given, and none is refused for want of a line.
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
    "smg-128": smg("cache_aware", 128),
    "smg-256": smg("cache_aware", 256),
    "smg-po2-128": smg("power_of_two", 128),
    # Not compared by default.
    "leeway-mh-told": by_order("mh", TOLD),
    "leeway-lrb": by_order("lrb"),
    "leeway-edf": by_order("edf"),
    "leeway-sjf": by_order("sjf"),
}
COMPARED = (OURS, FCFS, "vllm-router-cache", "vllm-router-po2", "smg-128", "smg-256", "smg-po2-128")
QUICK = (OURS, FCFS, "vllm-router-po2", "smg-128")


class Bench:
    """The runs of one call and what came of them."""

    def __init__(self, stage: Stage, names: Sequence[str]) -> None:
        self.stage, self.names = stage, names
        self.runs: list[Run] = []
        self.failed: dict[str, str] = {}

    def run(self, name: str, load: int, seed: int, rate_per_s: float) -> Run:
        """One router once."""
        plan = schedule(rate_per_s, seed, self.stage.timing.arrivals_s)
        return one_run(self.stage, name, PEERS[name], plan, load, seed, rate_per_s)

    def capacity_per_s(self, *, quick: bool) -> float:
        """From the file, or by search."""
        settings = {
            "bench": "slo", "kinds": [asdict(kind) for kind in KINDS], "share": SLO_SHARE, "timing": asdict(self.stage.timing),
            "profile": asdict(PROFILE), "limits": asdict(LIMITS), "router": FCFS,
        }  # fmt: skip
        path = self.stage.place.home / "slo-capacity.json"
        known = live_capacity.kept(path, settings)
        if known is None:
            precision = 1.15 if quick else live_capacity.PRECISION
            known = live_capacity.bisect(self._attained, GUESS_PER_S, SLO_SHARE, precision)
            live_capacity.keep(path, settings, known)
        say(f"capacity: {known:.1f} requests/s ({FCFS}, {SLO_SHARE:.0%} in time)")
        return known

    def _attained(self, rate_per_s: float) -> float:
        share = attained(self.run(FCFS, 100, 0, rate_per_s).seen)
        say(f"capacity: {share:.1%} in time at {rate_per_s:.1f} requests/s")
        return share

    def compare(self, rates: Mapping[int, float], seeds: int) -> None:
        """Every router under every load and seed; the order moves on by one each time."""
        for turn, (seed, (load, rate_per_s)) in enumerate(product(range(seeds), rates.items())):
            for name in in_turn([name for name in self.names if name not in self.failed], turn):
                self.one(name, load, seed, rate_per_s)

    def one(self, name: str, load: int, seed: int, rate_per_s: float) -> None:
        """One run; a router that fails is noted and left out from then on."""
        try:
            run = self.run(name, load, seed, rate_per_s)
        except (RunFailedError, NotInstalledError, OSError) as error:
            self.failed[name] = str(error)
            say(f"{name} failed: {error}")
            return
        self.runs.append(run)
        told = row([run])
        shares = ", ".join(f"{kind.name} {share:.0%}" for kind, share in zip(KINDS, told.by_class, strict=True))
        problems = sorted({one.problem for one in run.seen if one.problem})[:3]
        say(
            f"{name} at {load} %, seed {seed}: goodput {told.goodput_per_s:.2f}/s ({shares}), TTFT P50 {told.ttft_p50_s:.3f} "
            f"P99 {told.ttft_p99_s:.2f} s, busy {told.busy:.0%}, late {run.late_p99_ms:.0f} ms, {told.router_us:.0f} us, "
            f"replicas {min(run.spread)}-{max(run.spread)}{': ' if problems else ''}{', '.join(problems)}"
        )


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", required=True, type=Path, help="folder that setup.sh prepared")
    parser.add_argument("--quick", action="store_true", help="one short load, one seed, four routers")
    parser.add_argument("--only", default="", help=f"comma separated names of: {', '.join(PEERS)}")
    parser.add_argument("--loads", default="", help="per cent of capacity (80,100,120; 120 with --quick)")
    parser.add_argument("--seeds", type=int, help="paired seeds (3; 1 with --quick)")
    parser.add_argument("--rate", type=float, help="requests/s to take for 100 %% instead of searching for it")
    parser.add_argument("--json", type=Path, help="file for every run beside the summary")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    call = arguments(argv)
    end_on_signals()
    allow_many_files()
    alone = first_in_line()
    names = [name for name in call.only.split(",") if name] or list(QUICK if call.quick else COMPARED)
    if unknown := [name for name in names if name not in PEERS]:
        refuse(f"no router {', '.join(unknown)}; known: {', '.join(PEERS)}")
    bench = Bench(chosen_stage(call), names)
    capacity = call.rate or bench.capacity_per_s(quick=call.quick)
    loads = [int(load) for load in (call.loads or ("120" if call.quick else "80,100,120")).split(",")]
    rates = {load: capacity * load / 100 for load in loads}
    bench.compare(rates, call.seeds or (1 if call.quick else 3))
    settings = {"capacity_per_s": round(capacity, 2), "quick": call.quick, "raised_priority": alone, "model": MODEL}
    line = summary(bench.runs, bench.failed, settings)
    say(markdown(rows(bench.runs), rates))
    if call.json:
        call.json.write_text(json.dumps({"summary": line, "runs": [asdict(run) for run in bench.runs]}) + "\n")
    print(json.dumps(line), flush=True)
    return 1 if bench.failed.keys() & {OURS, FCFS} else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
