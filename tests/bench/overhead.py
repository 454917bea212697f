"""Gateways side by side: CPU time per request and per streamed event, memory, first event, start.

    python -m tests.bench.overhead --home DIR                             all peers, seven interleaved rounds
    python -m tests.bench.overhead --home DIR --quick                     a smoke run of one short round
    python -m tests.bench.overhead --home DIR --only =leeway,nginx        parts of names, =NAME for a whole one
    python -m tests.bench.overhead --home DIR --add 'mine=/path/to/gateway --port {port} --backends {urls}'

`setup.sh DIR` prepares DIR.  The table and the progress go to standard error; standard output is one JSON line.
Exit status: 0, or 1 if Leeway was to be measured and was not, or answered wrongly; 2 for a call that cannot work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from tests.bench.figures import DIRECT, Round, exit_code, markdown, summary
from tests.bench.loads import QUICK_PLAN, PeerFailedError, Plan, Stage, direct_round, gateway_round, started
from tests.bench.peers import (
    BACKEND_PORTS,
    CONTROL_PORT,
    GATEWAY_PORT,
    PEERS,
    QUICK,
    NotInstalledError,
    Place,
    Recipe,
    added_command,
)
from tests.bench.process import allow_many_files, end_on_signals, is_open

LOOP_STEPS = 1_000_000

Results = dict[str, list[Round]]


def reference_loop_ms(core: int) -> float:
    """Thread CPU time of a fixed pure-Python loop on the gateway's core: how fast this machine is right now."""
    home = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    started_s, state = time.thread_time(), 1
    for _ in range(LOOP_STEPS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    spent_ms = (time.thread_time() - started_s) * 1e3
    os.sched_setaffinity(0, home)
    assert state == 345801665, "the loop is deterministic"
    return spent_ms


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Bench:
    """The rounds of one run and what came of them."""

    def __init__(self, stage: Stage, plan: Plan, peers: Mapping[str, Recipe]) -> None:
        self.stage, self.plan, self.peers = stage, plan, peers
        self.results: Results = {DIRECT: [], **{name: [] for name in peers}}
        self.failures: dict[str, str] = {}
        self.loop_ms: list[float] = []

    def log(self, name: str) -> Path:
        return self.stage.place.home / f"{name.replace('/', '_').replace(' ', '_')}.log"

    def start_each_once(self) -> None:
        """Starts every gateway once, unmeasured: files get cached and compiled, and who cannot start is left out."""
        for name, recipe in self.peers.items():
            with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
                try:
                    with started(self.stage.with_scratch(Path(scratch)), recipe, self.log(name)):
                        say(f"{name} starts")
                except (PeerFailedError, NotInstalledError, OSError) as error:
                    self.fail(name, error)

    def fail(self, name: str, error: Exception) -> None:
        self.failures[name] = str(error)
        say(f"{name} failed: {error}")

    def round(self, number: int) -> None:
        """Each peer once; the order moves on by one each round, so that none always follows the same other."""
        names = [name for name in self.peers if name not in self.failures or self.results[name]]
        shift = number % max(len(names), 1)
        self.loop_ms.append(reference_loop_ms(self.stage.gateway_core))
        self.results[DIRECT].append(direct_round(self.stage, self.plan))
        for name in names[shift:] + names[:shift]:
            with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
                self.one(number, name, self.stage.with_scratch(Path(scratch)))

    def one(self, number: int, name: str, stage: Stage) -> None:
        """One round of one gateway; a failure is noted and the others go on."""
        started_s = time.monotonic()
        try:
            seen = gateway_round(stage, self.peers[name], self.plan, self.log(name))
        except (PeerFailedError, NotInstalledError, OSError) as error:
            self.fail(name, error)
            return
        self.results[name].append(seen)
        say(
            f"round {number + 1} {name}: {seen.unary_us:.1f} us/request, {seen.event_us:.2f} us/event, "
            f"{seen.errors} errors ({time.monotonic() - started_s:.0f} s)"
        )

    def summary(self, settings: Mapping[str, object]) -> dict[str, object]:
        return summary(self.results, self.failures, median(self.loop_ms), settings)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", required=True, type=Path, help="folder that setup.sh prepared")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (7; 1 with --quick)")
    parser.add_argument("--seconds", type=float, help="length of each plain load (2; 0.5 with --quick)")
    parser.add_argument("--quick", action="store_true", help="short loads; Leeway, vllm-router and smg only")
    parser.add_argument("--only", default="", help="comma separated parts of names, =NAME for a whole one")
    parser.add_argument("--add", action="append", default=[], metavar="NAME=COMMAND", help="one more gateway")
    parser.add_argument("--python", default=sys.executable, help="interpreter for Leeway")
    parser.add_argument("--json", type=Path, help="file for every round beside the summary")
    parser.add_argument("--gateway-core", type=int, help="first allowed core by default")
    parser.add_argument("--load-core", type=int, help="second allowed core by default")
    return parser.parse_args(argv)


def chosen_peers(call: argparse.Namespace) -> dict[str, Recipe]:
    """The peers that the call asks for, in the order of the table; added ones always."""
    wanted = [part for part in call.only.split(",") if part]
    names = [name for name in PEERS if name in QUICK or not call.quick]
    kept = [
        name for name in names if not wanted or any(part[1:] == name if part[0] == "=" else part in name for part in wanted)
    ]
    if any("=" not in item for item in call.add):
        refuse("--add takes NAME=COMMAND")
    more = dict(item.split("=", 1) for item in call.add)
    return {name: PEERS[name] for name in kept} | {name: added_command(command) for name, command in more.items()}


def chosen_plan(call: argparse.Namespace) -> Plan:
    """The loads that the call asks for."""
    if not call.quick:
        return Plan(seconds=call.seconds or 2.0)
    return QUICK_PLAN if call.seconds is None else replace(QUICK_PLAN, seconds=call.seconds)


def chosen_stage(call: argparse.Namespace) -> Stage:
    """Cores and folders. Raises SystemExit(2) with a reason if the bench cannot run here."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        refuse("two cores are needed: one for the gateway, one for backends and load")
    home = call.home.resolve()
    if not (home / "loadgen").exists() or not (home / "fake_upstream").exists():
        refuse(f"no tools in {call.home}: run setup.sh {call.home}")
    busy = [port for port in (*BACKEND_PORTS, GATEWAY_PORT, CONTROL_PORT) if is_open(port)]
    if busy:
        refuse(f"ports in use on loopback: {busy}")
    python = call.python if os.sep not in call.python else os.path.abspath(call.python)
    gateway_core = allowed[0] if call.gateway_core is None else call.gateway_core
    load_core = allowed[1] if call.load_core is None else call.load_core
    return Stage(Place(home, home, python), gateway_core, load_core)


def refuse(reason: str) -> None:
    say(reason)
    raise SystemExit(2)


def write_all(path: Path, bench: Bench, line: Mapping[str, object]) -> None:
    rounds = {name: [asdict(one) for one in seen] for name, seen in bench.results.items()}
    path.write_text(json.dumps({"summary": line, "rounds": rounds, "reference_loop_ms": bench.loop_ms}, indent=1))


def main(argv: Sequence[str]) -> int:
    call = arguments(argv)
    end_on_signals()
    allow_many_files()
    stage, plan, peers = chosen_stage(call), chosen_plan(call), chosen_peers(call)
    os.sched_setaffinity(0, {stage.load_core})
    bench, settings = Bench(stage, plan, peers), {"quick": call.quick, "seconds": plan.seconds}
    bench.start_each_once()
    for number in range(call.rounds or (1 if call.quick else 7)):
        bench.round(number)
        if call.json:
            write_all(call.json, bench, bench.summary(settings))
    say(markdown(bench.results, bench.failures))
    print(json.dumps(bench.summary(settings)), flush=True)
    return exit_code(list(peers), bench.results, bench.failures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
