"""Routers in turn under each load and seed, and the rate that counts as 100 %: what the benches on live_run have in common.

A bench says what it sends (`Rounds.run`) and what it tells of a run (`Rounds.told`); progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from tests.bench import live_capacity
from tests.bench.live_figures import Run
from tests.bench.live_mocks import LIMITS, PROFILE
from tests.bench.live_peers import CONTROL_PORT, GATEWAY_PORT, MOCK_PORTS
from tests.bench.live_run import RunFailedError, Stage, Timing, in_turn, interpreter
from tests.bench.peers import NotInstalledError, Place
from tests.bench.process import is_open

QUICK_TIMING = Timing(warm_s=3.0, window_s=8.0, tail_s=1.0, drain_s=15.0)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def refuse(reason: str) -> None:
    say(reason)
    raise SystemExit(2)


def parser(doc: str | None, loads: str, quick: str) -> argparse.ArgumentParser:
    """The options that all have. `loads` says which are the default, `quick` what a quick run is."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--home", required=True, type=Path, help="folder that setup.sh prepared")
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--only", default="", help="comma separated names of routers")
    made.add_argument("--loads", default="", help=f"per cent of capacity ({loads})")
    made.add_argument("--seeds", type=int, help="paired seeds (3; 1 with --quick)")
    made.add_argument("--rate", type=float, help="requests/s to take for 100 %% instead of searching for it")
    made.add_argument("--json", type=Path, help="file for every run beside the summary")
    return made


def chosen_names(call: argparse.Namespace, known: Sequence[str], quick: Sequence[str], compared: Sequence[str]) -> list[str]:
    """The routers that the call asks for. Raises SystemExit(2) for an unknown one."""
    names = [name for name in call.only.split(",") if name] or [*(quick if call.quick else compared)]
    if unknown := [name for name in names if name not in known]:
        refuse(f"no router {', '.join(unknown)}; known: {', '.join(known)}")
    return names


def chosen_stage(call: argparse.Namespace) -> Stage:
    """Where and how long. Raises SystemExit(2) if the bench cannot run here."""
    home = call.home.resolve()
    if not home.is_dir():
        refuse(f"no {call.home}: run setup.sh {call.home}")
    busy = [port for port in (*MOCK_PORTS, GATEWAY_PORT, CONTROL_PORT) if is_open(port)]
    if busy:
        refuse(f"ports in use on loopback: {busy}")
    return Stage(Place(home, home, interpreter()), QUICK_TIMING if call.quick else Timing())


def chosen_rates(call: argparse.Namespace, capacity_per_s: float, loads: str, quick: str) -> dict[int, float]:
    """Requests per second by load; `loads` and `quick` are the defaults, comma separated."""
    wanted = [int(load) for load in (call.loads or (quick if call.quick else loads)).split(",")]
    return {load: capacity_per_s * load / 100 for load in wanted}


@dataclass(frozen=True, slots=True)
class Whole:
    """What counts as 100 %: the highest rate at which `attained` of a run of this router is at least `share`. It is searched
    for from the guess, and kept in `file` by `settings` and all else that it depends on."""

    router: str
    file: str
    guess_per_s: float
    share: float
    attained: Callable[[Run], float]
    settings: Mapping[str, object]


class Rounds(ABC):
    """The runs of one call and what came of them."""

    def __init__(self, stage: Stage, names: Sequence[str]) -> None:
        self.stage, self.names = stage, names
        self.runs: list[Run] = []
        self.failed: dict[str, str] = {}

    @abstractmethod
    def run(self, name: str, load: int, seed: int, rate_per_s: float) -> Run:
        """One router once. Raises RunFailedError, NotInstalledError, OSError."""

    @abstractmethod
    def told(self, run: Run) -> str:
        """The figures of a run, for who looks on."""

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
        problems = sorted({one.problem for one in run.seen if one.problem})[:3]
        say(
            f"{name} at {load} %, seed {seed}: {self.told(run)}, late {run.late_p99_ms:.0f} ms, "
            f"replicas {min(run.spread)}-{max(run.spread)}{': ' if problems else ''}{', '.join(problems)}"
        )

    def capacity_per_s(self, whole: Whole, precision: float = live_capacity.PRECISION) -> float:
        """From the file, or by search."""
        settings = {
            **whole.settings, "share": whole.share, "timing": asdict(self.stage.timing), "profile": asdict(PROFILE),
            "limits": asdict(LIMITS), "router": whole.router,
        }  # fmt: skip
        path = self.stage.place.home / whole.file

        def attained(rate_per_s: float) -> float:
            share = whole.attained(self.run(whole.router, 100, 0, rate_per_s))
            say(f"capacity: {share:.1%} in time at {rate_per_s:.1f} requests/s")
            return share

        known = live_capacity.kept(path, settings)
        if known is None:
            known = live_capacity.bisect(attained, whole.guess_per_s, whole.share, precision)
            live_capacity.keep(path, settings, known)
        say(f"capacity: {known:.1f} requests/s ({whole.router}, {whole.share:.0%} in time)")
        return known

    def write(self, path: Path | None, line: Mapping[str, object]) -> None:
        """Every run beside the summary, if a file is named; the summary to standard output."""
        if path:
            path.write_text(json.dumps({"summary": line, "runs": [asdict(run) for run in self.runs]}) + "\n")
        print(json.dumps(line), flush=True)
