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
from collections.abc import Sequence

from tests.bench import live_calibrate
from tests.bench.live_figures import OURS, Run, attained, markdown, rows, summary
from tests.bench.live_peers import COMPARED, PEERS, QUICK
from tests.bench.live_rounds import Rounds, Whole, chosen_names, chosen_rates, chosen_stage, parser, say
from tests.bench.live_run import Stage, Traffic, one_run, traffic
from tests.bench.process import allow_many_files, end_on_signals, first_in_line

SLO_TTFT_S = 1.0
SLO_SHARE = 0.95
REFERENCE = "haproxy"
GUESS_PER_S = 45.0


class Bench(Rounds):
    """The routers under one trace."""

    def __init__(self, stage: Stage, source: Traffic, names: Sequence[str]) -> None:
        super().__init__(stage, names)
        self.source = source

    def run(self, name: str, load: int, seed: int, rate_per_s: float) -> Run:
        """One router once, at a rate that this seed's window is corrected by."""
        seconds = self.stage.timing.arrivals_s
        rate = self.source.rate_per_s(rate_per_s, seed, seconds)
        return one_run(self.stage, name, PEERS[name], self.source.schedule(rate, seed, seconds), load, seed, rate)

    def told(self, run: Run) -> str:
        """Latency, hits, and who was busy."""
        (row,) = rows([run], SLO_TTFT_S)
        return (
            f"TTFT {row.ttft_mean_s:.3f} / {row.ttft_p99_s:.3f} s, in SLO {row.attained:.1%}, "
            f"hits {row.hit_share:.0%}, router {row.router_us:.0f} us/request, busy {row.busy:.0%} (router "
            f"{run.cost.router_s / run.cost.seconds:.2f}, mocks {run.cost.mocks_s / run.cost.seconds:.2f}, load "
            f"{run.cost.load_s / run.cost.seconds:.2f} cores)"
        )


def whole_of(source: Traffic) -> Whole:
    """The reference router's capacity under that trace."""
    settings = {"trace": source.name, "slo_s": SLO_TTFT_S}
    return Whole(
        REFERENCE, "live-capacity.json", GUESS_PER_S, SLO_SHARE, lambda run: attained(run.ttft_s(), SLO_TTFT_S), settings
    )


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    made = parser(__doc__, "80,95,110; 95 with --quick", "one short load, one seed, three routers")
    made.add_argument("--synthetic", action="store_true", help="the synthetic trace, whatever LEEWAY_DATA says")
    made.add_argument("--calibrate", action="store_true", help="measure the generators instead of the routers")
    return made.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    call = arguments(argv)
    end_on_signals()
    allow_many_files()
    alone = first_in_line()
    stage = chosen_stage(call)
    data = None if call.synthetic else os.environ.get("LEEWAY_DATA")
    wanted = chosen_names(call, [*PEERS], QUICK, COMPARED)
    bench = Bench(stage, traffic(data), [name for name in PEERS if name in wanted])
    whole = not call.quick and not call.only
    checked = live_calibrate.calibrate(stage, bench.source, say) if whole or call.calibrate else None
    if call.calibrate:
        print(json.dumps(checked), flush=True)
        return 0
    capacity = call.rate or bench.capacity_per_s(whole_of(bench.source))
    rates = chosen_rates(call, capacity, "80,95,110", "95")
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
    bench.write(call.json, line)
    sound = OURS not in bench.failed and not any(run.errors for run in bench.runs if run.router == OURS)
    return 0 if sound or OURS not in bench.names else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
