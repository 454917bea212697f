"""The loads of the overhead bench, and one round of one gateway under them.

A round: start, settle, memory at rest, warm-up, plain requests of three sizes (closed loop), paced streams, latency
at low load, memory with 1,000 open streams.  Around each load the CPU time of the gateway's tree is read.
The caller, the backends and the load generator share one core; the gateway has the other for itself.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.figures import Round, bad_answers
from tests.bench.peers import BACKEND_PORTS, GATEWAY_PORT, Place, Recipe, clean_environment
from tests.bench.process import CpuTime, cpu, ends_within, first_answer_s, pss_mib, running

START_LIMIT_S = 60.0
LOAD_LIMIT_S = 320.0
SETTLE_S = 1.0
WARMED_S = 3.0  # what the first load made a peer start (a process of predicted lengths: 2 s of CPU) is no cost of a request
SAMPLE_S = 0.25
MOST_BUSY = 0.75
STREAM_STEPS = (200, 50, 10)
SIZES_BYTES = {"unary_us": 600, "body16k_us": 16_000, "body220k_us": 220_000}


class PeerFailedError(Exception):
    """A gateway did not start, or ended under load; the message says where to look."""


@dataclass(frozen=True, slots=True)
class Load:
    """One call of the load generator. `requests` or `seconds` ends it; events > 0 makes the requests streams."""

    connections: int
    requests: int = 0
    seconds: float = 0.0
    prompt_bytes: int = 600
    events: int = 0
    gap_ms: int = 0

    def arguments(self) -> list[str]:
        plain = ["-c", f"{self.connections}", "-n", f"{self.requests}", "-t", f"{self.seconds}", "-b", f"{self.prompt_bytes}"]
        return plain + (["-s", "-k", f"{self.events}", "-d", f"{self.gap_ms}"] if self.events else [])


@dataclass(frozen=True, slots=True)
class Answered:
    """What the load generator saw; times are medians in microseconds, `bad` failed requests and wrong events."""

    done: int
    events: int
    bad: int
    latency_us: float
    first_event_us: float
    relay_us: float


@dataclass(frozen=True, slots=True)
class Cost:
    """A load and what it cost the gateway; `utilisation` is the share of the core that its tree used."""

    answered: Answered
    used: CpuTime
    utilisation: float

    def per(self, count: int) -> float:
        """CPU in microseconds per unit."""
        return self.used.total_s / max(count, 1) * 1e6


@dataclass(frozen=True, slots=True)
class Plan:
    """How long the loads of a round are."""

    seconds: float
    streams_each: int = 3
    low_requests: int = 400
    low_streams: int = 120
    open_events: int = 5


QUICK_PLAN = Plan(seconds=0.5, streams_each=1, low_requests=200, low_streams=40, open_events=4)


@dataclass(frozen=True, slots=True)
class Stage:
    """The machine as the bench divides it, and the place of the run."""

    place: Place
    gateway_core: int
    load_core: int

    def with_scratch(self, scratch: Path) -> Stage:
        return replace(self, place=replace(self.place, scratch=scratch))


def decode(line: bytes, load: Load) -> Answered:
    """The load generator's JSON line."""
    seen = json.loads(line)
    bad = bad_answers(seen["done"], seen["errors"], seen["events"], load.events)
    return Answered(seen["done"], seen["events"], bad, seen["lat_us"][0], seen["ttfb_us"][0], seen["relay_us"][0])


def load_command(stage: Stage, port: int, load: Load) -> list[str]:
    return [str(stage.place.home / "loadgen"), "-p", str(port), *load.arguments()]


def run_load(stage: Stage, port: int, load: Load) -> Answered:
    """Runs one load to its end. Raises PeerFailedError if the generator gives up."""
    command = load_command(stage, port, load)
    with running(command, core=stage.load_core, output=subprocess.PIPE, errors=subprocess.PIPE) as generator:
        return collect(generator, load)


def collect(generator: subprocess.Popen[bytes], load: Load) -> Answered:
    """The result of a load generator that is about to end."""
    if not ends_within(generator, LOAD_LIMIT_S):
        raise PeerFailedError(f"no end of {load} after {LOAD_LIMIT_S:.0f} s")
    output, complaint = generator.communicate()
    if generator.returncode:
        raise PeerFailedError(f"load generator: {complaint.decode(errors='replace').strip()}")
    return decode(output, load)


class Gateway:
    """A running gateway under measurement."""

    def __init__(self, stage: Stage, process: subprocess.Popen[bytes]) -> None:
        self.stage, self.process = stage, process
        self.bad = 0

    def put(self, load: Load) -> Cost:
        """Runs a load through the gateway and reads what it cost. Raises PeerFailedError if the gateway ended."""
        before, started_s = cpu(self.process.pid), time.monotonic()
        answered = run_load(self.stage, GATEWAY_PORT, load)
        used = cpu(self.process.pid).since(before)
        if ends_within(self.process, 0):
            raise PeerFailedError(f"ended under {load}")
        self.bad += answered.bad
        return Cost(answered, used, used.total_s / (time.monotonic() - started_s))

    def paced(self, streams_each: int) -> tuple[int, Cost]:
        """Streams of 100 events, 20 ms apart; fewer streams where the core would be the limit."""
        for streams in STREAM_STEPS:
            cost = self.put(Load(streams, streams * streams_each, events=100, gap_ms=20))
            if cost.utilisation <= MOST_BUSY:
                break
        return streams, cost

    def memory_with_open_streams(self, events: int) -> float:
        """The largest PSS in MiB while 1,000 streams of one event a second are open."""
        load = Load(1000, 1000, events=events, gap_ms=1000)
        command, largest = load_command(self.stage, GATEWAY_PORT, load), 0.0
        with running(command, core=self.stage.load_core, output=subprocess.PIPE, errors=subprocess.PIPE) as generator:
            while not ends_within(generator, SAMPLE_S):
                largest = max(largest, pss_mib(self.process.pid))
            self.bad += collect(generator, load).bad
        return largest


@contextmanager
def backends(stage: Stage) -> Iterator[None]:
    """Fresh backends for as long as the block runs."""
    command = [str(stage.place.home / "fake_upstream"), "-p", ",".join(map(str, BACKEND_PORTS))]
    with running(command, core=stage.load_core) as process:
        if first_answer_s(process, BACKEND_PORTS[0], time.monotonic(), START_LIMIT_S) is None:
            raise PeerFailedError("the fake backends did not start")
        yield


@contextmanager
def started(stage: Stage, recipe: Recipe, log: Path) -> Iterator[tuple[Gateway, float]]:
    """A gateway that has given its first answer, and how many seconds that took.

    Raises PeerFailedError, NotInstalledError.
    """
    command = recipe(stage.place)
    env = clean_environment(stage.place, command.env)
    with log.open("wb") as output, backends(stage):
        started_s = time.monotonic()
        with running(command.argv, core=stage.gateway_core, output=output, errors=output, env=env, cwd=command.cwd) as process:
            start_s = first_answer_s(process, GATEWAY_PORT, started_s, START_LIMIT_S)
            if start_s is None:
                raise PeerFailedError(f"did not start: {last_words(log)}")
            yield Gateway(stage, process), start_s


def gateway_round(stage: Stage, recipe: Recipe, plan: Plan, log: Path) -> Round:
    """One round of one gateway. Raises PeerFailedError, NotInstalledError."""
    with started(stage, recipe, log) as (gateway, start_s):
        return measured(gateway, plan, start_s)


def measured(gateway: Gateway, plan: Plan, start_s: float) -> Round:
    """All loads of a round on a gateway that has given its first answer."""
    ends_within(gateway.process, SETTLE_S)
    mem_idle_mib = pss_mib(gateway.process.pid)
    gateway.put(Load(16, seconds=plan.seconds / 2))
    gateway.put(Load(16, seconds=plan.seconds / 4, events=20))
    ends_within(gateway.process, WARMED_S)
    plain: Mapping[str, Cost] = {
        name: gateway.put(Load(16, seconds=plan.seconds, prompt_bytes=size)) for name, size in SIZES_BYTES.items()
    }
    streams, paced = gateway.paced(plan.streams_each)
    single = gateway.put(Load(1, plan.low_requests)).answered
    few = gateway.put(Load(4, plan.low_streams, events=10, gap_ms=10)).answered
    mem1000_mib = gateway.memory_with_open_streams(plan.open_events)
    events = max(paced.answered.events, 1)
    return Round(
        **{name: cost.per(cost.answered.done) for name, cost in plain.items()},
        event_us=paced.per(events),
        event_user_us=paced.used.user_s / events * 1e6,
        streams=streams,
        utilisation=paced.utilisation,
        latency_us=single.latency_us,
        first_event_us=few.first_event_us,
        relay_us=few.relay_us,
        mem_idle_mib=mem_idle_mib,
        mem1000_mib=mem1000_mib,
        start_s=start_s,
        errors=gateway.bad,
    )


def direct_round(stage: Stage, plan: Plan) -> Round:
    """The low loads without a gateway: what the wall-clock figures are differences to."""
    with backends(stage):
        run_load(stage, BACKEND_PORTS[0], Load(1, plan.low_requests))
        single = run_load(stage, BACKEND_PORTS[0], Load(1, plan.low_requests))
        few = run_load(stage, BACKEND_PORTS[0], Load(4, plan.low_streams, events=10, gap_ms=10))
    return Round(
        latency_us=single.latency_us, first_event_us=few.first_event_us, relay_us=few.relay_us, errors=single.bad + few.bad
    )


def last_words(log: Path) -> str:
    """The end of a gateway's log, on one line."""
    lines = log.read_text(errors="replace").strip().splitlines()[-3:]
    return " / ".join(lines)[-400:] or "it said nothing"
