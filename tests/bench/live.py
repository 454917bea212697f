"""Leeway and real routers in turn in front of the same eight simulated replicas, under the same open-loop trace.

    python -m tests.bench.live --home DIR                    every router, loads 80, 95 and 110 %, three paired seeds
    python -m tests.bench.live --home DIR --quick            one short load, three routers
    python -m tests.bench.live --home DIR --only leeway,smg --loads 95 --seeds 1 --rate 46
    python -m tests.bench.live --home DIR --calibrate        the generator (and aiperf, if installed) on a known schedule

`setup.sh DIR` prepares DIR. 100 % is the rate at which HAProxy (leastconn) keeps the TTFT SLO for 95 % of the requests;
it is searched for once and kept in DIR. The trace is Mooncake's conversation if LEEWAY_DATA names the data folder, else
a synthetic one. Table and progress go to standard error; standard output is one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path

from tests.bench import live_calibrate, live_capacity
from tests.bench.live_figures import OURS, Run, attained, markdown, rows, summary
from tests.bench.live_mocks import LIMITS, PROFILE
from tests.bench.live_peers import COMPARED, CONTROL_PORT, GATEWAY_PORT, MOCK_PORTS, PEERS, QUICK
from tests.bench.live_run import RunFailedError, Stage, Timing, Traffic, in_turn, interpreter, one_run, traffic
from tests.bench.peers import NotInstalledError, Place, Recipe
from tests.bench.process import allow_many_files, end_on_signals, first_in_line, is_open

SLO_TTFT_S = 1.0
SLO_SHARE = 0.95
REFERENCE = "haproxy"
GUESS_PER_S = 45.0
QUICK_TIMING = Timing(warm_s=3.0, window_s=8.0, tail_s=1.0, drain_s=15.0)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def refuse(reason: str) -> None:
    say(reason)
    raise SystemExit(2)


class Bench:
    """The runs of one call and what came of them."""

    def __init__(self, stage: Stage, source: Traffic, peers: Mapping[str, Recipe]) -> None:
        self.stage, self.source, self.peers = stage, source, peers
        self.runs: list[Run] = []
        self.failed: dict[str, str] = {}

    def run(self, name: str, load: int, seed: int, rate_per_s: float) -> Run:
        """One router once, at a rate that this seed's window is corrected by."""
        seconds = self.stage.timing.arrivals_s
        rate = self.source.rate_per_s(rate_per_s, seed, seconds)
        return one_run(self.stage, name, PEERS[name], self.source.schedule(rate, seed, seconds), load, seed, rate)

    def capacity_per_s(self) -> float:
        """The reference router's, from the file or by search."""
        settings = {
            "trace": self.source.name, "slo_s": SLO_TTFT_S, "share": SLO_SHARE, "timing": asdict(self.stage.timing),
            "profile": asdict(PROFILE), "limits": asdict(LIMITS), "router": REFERENCE,
        }  # fmt: skip
        path = self.stage.place.home / "live-capacity.json"
        known = live_capacity.kept(path, settings)
        if known is None:
            known = live_capacity.bisect(self._attained, GUESS_PER_S, SLO_SHARE)
            live_capacity.keep(path, settings, known)
        say(f"capacity: {known:.1f} requests/s ({REFERENCE}, TTFT <= {SLO_TTFT_S} s for {SLO_SHARE:.0%})")
        return known

    def _attained(self, rate_per_s: float) -> float:
        share = attained(self.run(REFERENCE, 100, 0, rate_per_s).ttft_s(), SLO_TTFT_S)
        say(f"capacity: {share:.1%} in time at {rate_per_s:.1f} requests/s")
        return share

    def compare(self, rates: Mapping[int, float], seeds: int) -> None:
        """Every router under every load and seed; the order moves on by one each time."""
        for turn, (seed, (load, rate_per_s)) in enumerate(product(range(seeds), rates.items())):
            for name in in_turn([name for name in self.peers if name not in self.failed], turn):
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
        (row,) = rows([run], SLO_TTFT_S)
        problems = sorted({one.problem for one in run.seen if one.problem})[:3]
        say(
            f"{name} at {load} %, seed {seed}: TTFT {row.ttft_mean_s:.3f} / {row.ttft_p99_s:.3f} s, in SLO {row.attained:.1%}, "
            f"hits {row.hit_share:.0%}, router {row.router_us:.0f} us/request, busy {row.busy:.0%} (router "
            f"{run.cost.router_s / run.cost.seconds:.2f}, mocks {run.cost.mocks_s / run.cost.seconds:.2f}, load "
            f"{run.cost.load_s / run.cost.seconds:.2f} cores), late {run.late_p99_ms:.0f} ms, "
            f"replicas {min(run.spread)}-{max(run.spread)}"
            f"{': ' if problems else ''}{', '.join(problems)}"
        )


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", required=True, type=Path, help="folder that setup.sh prepared")
    parser.add_argument("--quick", action="store_true", help="one short load, one seed, three routers")
    parser.add_argument("--only", default="", help="comma separated names of routers")
    parser.add_argument("--loads", default="", help="per cent of capacity (80,95,110; 95 with --quick)")
    parser.add_argument("--seeds", type=int, help="paired seeds (3; 1 with --quick)")
    parser.add_argument("--rate", type=float, help="requests/s to take for 100 %% instead of searching for it")
    parser.add_argument("--synthetic", action="store_true", help="the synthetic trace, whatever LEEWAY_DATA says")
    parser.add_argument("--calibrate", action="store_true", help="measure the generators instead of the routers")
    parser.add_argument("--json", type=Path, help="file for every run beside the summary")
    return parser.parse_args(argv)


def chosen_peers(call: argparse.Namespace) -> dict[str, Recipe]:
    """The routers that the call asks for, in the order of the table."""
    wanted = [name for name in call.only.split(",") if name] or [*(QUICK if call.quick else COMPARED)]
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        refuse(f"no router {', '.join(unknown)}; known: {', '.join(PEERS)}")
    return {name: PEERS[name] for name in PEERS if name in wanted}


def chosen_stage(call: argparse.Namespace) -> Stage:
    """Where and how long. Raises SystemExit(2) if the bench cannot run here."""
    home = call.home.resolve()
    if not home.is_dir():
        refuse(f"no {call.home}: run setup.sh {call.home}")
    busy = [port for port in (*MOCK_PORTS, GATEWAY_PORT, CONTROL_PORT) if is_open(port)]
    if busy:
        refuse(f"ports in use on loopback: {busy}")
    return Stage(Place(home, home, interpreter()), QUICK_TIMING if call.quick else Timing())


def write_all(path: Path, bench: Bench, line: Mapping[str, object]) -> None:
    path.write_text(json.dumps({"summary": line, "runs": [asdict(run) for run in bench.runs]}) + "\n")


def main(argv: Sequence[str]) -> int:
    call = arguments(argv)
    end_on_signals()
    allow_many_files()
    alone = first_in_line()
    stage = chosen_stage(call)
    data = None if call.synthetic else os.environ.get("LEEWAY_DATA")
    bench = Bench(stage, traffic(data), chosen_peers(call))
    whole = not call.quick and not call.only
    checked = live_calibrate.calibrate(stage, bench.source, say) if whole or call.calibrate else None
    if call.calibrate:
        print(json.dumps(checked), flush=True)
        return 0
    capacity = call.rate or bench.capacity_per_s()
    loads = [int(load) for load in (call.loads or ("95" if call.quick else "80,95,110")).split(",")]
    rates = {load: capacity * load / 100 for load in loads}
    bench.compare(rates, call.seeds or (1 if call.quick else 3))
    settings: dict[str, object] = {
        "trace": bench.source.name,
        "capacity_per_s": round(capacity, 2),
        "quick": call.quick,
        "raised_priority": alone,
        "calibration": checked,
    }
    line = summary(bench.runs, SLO_TTFT_S, bench.failed, settings)
    say(markdown(rows(bench.runs, SLO_TTFT_S), rates))
    if call.json:
        write_all(call.json, bench, line)
    print(json.dumps(line), flush=True)
    sound = OURS not in bench.failed and not any(run.errors for run in bench.runs if run.router == OURS)
    return 0 if sound or OURS not in bench.peers else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
