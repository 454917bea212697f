"""One run of the live bench: fresh replicas, one router, one schedule; what came of it and what it cost."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import uvloop

from gateway.sim.traces import TraceRow, read_trace
from tests.bench.live_figures import Cost, Run, in_window
from tests.bench.live_load import Load, Seen
from tests.bench.live_mocks import MODEL
from tests.bench.live_peers import FIRST_MOCK_PORT, GATEWAY_PORT
from tests.bench.live_trace import Planned, planned, shrunk, synthetic_rows, window, work_tokens
from tests.bench.peers import CLIENT_KEY, REPOSITORY, Place, Recipe, clean_environment
from tests.bench.process import ahead_of_others, cpu, ends_within, first_answer_s, stop

START_LIMIT_S = 60.0
SETTLE_S = 2.0
LEAD_S = 0.5
NICE = "-10"  # every router before others' work on the machine, after the replicas and the load; ignored without the right
SYNTHETIC_ROWS = 12_000


class RunFailedError(Exception):
    """A router or the replicas did not start or ended under load; the message says where to look."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a run: the warm-up, the measured window, steady load after it, the wait for what is open then."""

    warm_s: float = 6.0
    window_s: float = 24.0
    tail_s: float = 2.0
    drain_s: float = 30.0

    @property
    def arrivals_s(self) -> float:
        """How long requests are sent."""
        return self.warm_s + self.window_s + self.tail_s


@dataclass(frozen=True, slots=True)
class Traffic:
    """Where requests come from."""

    name: str
    rows: tuple[TraceRow, ...]

    def schedule(self, rate_per_s: float, seed: int, seconds: float) -> list[Planned]:
        """The requests of a seed at a rate."""
        return planned(window(self.rows, seed, round(rate_per_s * seconds)), rate_per_s, seed, MODEL)

    def rate_per_s(self, rate_per_s: float, seed: int, seconds: float) -> float:
        """The rate at which this seed's window is as much work a second as that of seed 0 at `rate_per_s`."""
        count = round(rate_per_s * seconds)
        return rate_per_s * work_tokens(window(self.rows, 0, count)) / work_tokens(window(self.rows, seed, count))


def traffic(data: str | None) -> Traffic:
    """The published conversation trace if the data folder is named, else the synthetic one."""
    if data is None:
        return Traffic("synthetic", tuple(synthetic_rows(0, SYNTHETIC_ROWS)))
    path = Path(data) / "traces" / "mooncake_conversation.jsonl.zst"
    return Traffic("mooncake conversation", tuple(shrunk(row) for row in read_trace(path, "mooncake")))


@dataclass(frozen=True, slots=True)
class Stage:
    """The place of the runs, and how long they are."""

    place: Place
    timing: Timing

    def log(self, name: str) -> Path:
        return self.place.home / f"live-{name}.log"


@contextmanager
def started(argv: Sequence[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process group that is ended with the block, and by the kernel if this process dies."""
    command = ["setpriv", "--pdeathsig", "KILL", *argv]
    process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
        command, stdin=subprocess.DEVNULL, start_new_session=True, **options
    )
    ahead_of_others(process.pid)
    try:
        yield process
    finally:
        stop(process)


@contextmanager
def replicas(stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    """The eight, listening."""
    argv = [stage.place.python, "-m", "tests.bench.live_mocks", str(FIRST_MOCK_PORT)]
    with stage.log("mocks").open("wb") as log, started(argv, stdout=subprocess.PIPE, stderr=log, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RunFailedError(f"the replicas did not start: see {stage.log('mocks')}")
        yield process


@contextmanager
def routed(stage: Stage, name: str, recipe: Recipe) -> Iterator[subprocess.Popen[bytes]]:
    """A router that has given its first answer and has had time to find its replicas."""
    with tempfile.TemporaryDirectory(prefix="live-") as scratch, stage.log(name).open("wb") as log:
        place = replace(stage.place, scratch=Path(scratch))
        command = recipe(place)
        env = clean_environment(place, command.env)
        with started(("nice", "-n", NICE, *command.argv), stdout=log, stderr=log, env=env, cwd=command.cwd) as process:
            if first_answer_s(process, GATEWAY_PORT, time.monotonic(), START_LIMIT_S) is None:
                raise RunFailedError(f"{name} did not start: see {stage.log(name)}")
            if ends_within(process, SETTLE_S):
                raise RunFailedError(f"{name} ended: see {stage.log(name)}")
            yield process


def one_run(stage: Stage, name: str, recipe: Recipe, schedule: Sequence[Planned], load: int, seed: int, rate: float) -> Run:
    """A router under a schedule. Raises RunFailedError, NotInstalledError."""
    with replicas(stage) as mocks:
        with routed(stage, name, recipe) as router:
            seen, cost = drive(stage.timing, schedule, router.pid, mocks.pid)
            if ends_within(router, 0):
                raise RunFailedError(f"{name} ended under load: see {stage.log(name)}")
        told = report_of(mocks)
    timing = stage.timing
    measured = in_window(seen, timing.warm_s, timing.warm_s + timing.window_s)
    tokens = float(str(told["prompt_tokens"])) or 1.0
    return Run(
        name,
        load,
        seed,
        rate,
        timing.window_s,
        measured,
        len(measured),
        cost,
        float(str(told["cached_tokens"])) / tokens,
        int(str(told["preemptions"])),
        float(str(told["late_p99_ms"])),
        tuple(cast("list[int]", told["requests"])),
    )


def report_of(mocks: subprocess.Popen[bytes]) -> dict[str, object]:
    """Ends the replicas and reads what they say of the run."""
    assert mocks.stdout is not None
    os.kill(mocks.pid, signal.SIGTERM)
    line = mocks.stdout.readline()
    if not line:
        raise RunFailedError("the replicas ended without a report")
    told: dict[str, object] = json.loads(line)
    return told


def drive(timing: Timing, schedule: Sequence[Planned], router_pid: int, mocks_pid: int) -> tuple[list[Seen], Cost]:
    """Send a schedule; CPU times are those of the measured window."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_drive(timing, schedule, router_pid, mocks_pid))
    finally:
        gc.enable()
        gc.unfreeze()


async def _drive(timing: Timing, schedule: Sequence[Planned], router_pid: int, mocks_pid: int) -> tuple[list[Seen], Cost]:
    start_s = time.monotonic() + LEAD_S
    run = asyncio.create_task(Load(GATEWAY_PORT, schedule, CLIENT_KEY).run(start_s, timing.drain_s))
    used: list[tuple[float, float, float, float]] = []
    for at_s in (timing.warm_s, timing.warm_s + timing.window_s):
        await reaches(start_s + at_s)
        router, mocks = cpu(router_pid).total_s, cpu(mocks_pid).total_s
        used.append((time.monotonic(), router, mocks, time.process_time()))
    seen = await run
    spent = [after - before for before, after in zip(*used, strict=True)]
    return seen, Cost(spent[0], os.cpu_count() or 1, *spent[1:])


async def reaches(at_s: float) -> None:
    """Until that instant of time.monotonic."""
    loop = asyncio.get_running_loop()
    reached: asyncio.Future[None] = loop.create_future()
    loop.call_later(max(0.0, at_s - time.monotonic()), reached.set_result, None)
    await reached


def interpreter() -> str:
    """The interpreter for Leeway and the replicas: this one."""
    return sys.executable


def in_turn(names: list[str], turn: int) -> list[str]:
    """The same names, begun one later with each turn: nobody is always the first on a cold machine."""
    shift = turn % max(len(names), 1)
    return names[shift:] + names[:shift]
