"""E15: the real gateway over loopback, in real time, beside the simulator on the same trace.

Four simulated engines (stack_mocks.py) behind `gateway serve`; the load leaves open loop at the trace's instants, and a
time to the first token counts from the instant at which a request was due. The same requests go through the simulator.
What the machine adds is measured by the engines' own stamps, as the way there and the way back of each request, and what
comes of that by telling the simulator these ways; one engine without a gateway is run beside.
"""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any
from urllib.parse import urlsplit

from experiments import Scenarios

from gateway.sim.cluster import Cluster
from gateway.sim.foretold import foretold
from gateway.sim.paper import Section, table
from gateway.sim.runner import requests_of
from gateway.sim.scenario import PolicySpec, Scenario, ViewSpec
from gateway.sim.stats import mean, quantile
from gateway.sim.workload import SimRequest
from predictor.catalog import EngineProfile, engine_profile, render
from predictor.request import Timeline

sys.path.insert(0, str(Path(__file__).parents[3]))
from backends.mock_text import BYTES_PER_TOKEN, TOKENS_PER_MESSAGE
from tests.bench.live_load import Load, Seen
from tests.bench.live_run import START_LIMIT_S, reaches, started
from tests.bench.live_trace import Planned, words
from tests.bench.peers import Place, clean_environment
from tests.bench.process import cpu, first_answer_s, first_in_line

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MODEL = "m"
PROMPT_TOKENS_MIN = 8  # room for the mark that tells an engine the answer's length
LEAD_S, DRAIN_S = 0.2, 40.0
DRAWS, DRAWS_QUICK = 10, 2
QUICK_FASTER = 40.0
NICE = "-10"
DIRECT_SHARE = 0.6  # of an engine's part of the rate: one engine alone holds less
SHARES = (("mean", None), ("P50", 0.5), ("P99", 0.99))


Legs = list[tuple[float, float, float]]


class StackFailedError(Exception):
    """A process did not start; the text says which."""


@dataclass(frozen=True, slots=True)
class Trip:
    """One request in real time: the first token, counted from when it was due, and what that consists of."""

    ttft_s: float
    there_s: float
    engine_s: float
    back_s: float


def e15(bench: Scenarios) -> Section:
    """Real time against simulated time."""
    scenario = bench.scenario("e15", 1)
    if bench.quick:
        kind = replace(scenario.replicas[0], slower=scenario.replicas[0].slower / QUICK_FASTER)
        scenario = replace(scenario.at_rate(scenario.workload.rate_per_s * QUICK_FASTER), replicas=(kind,))
    draws = DRAWS_QUICK if bench.quick else DRAWS
    found = {}
    for policy in scenario.policies:
        item = (replace(scenario, name="", note="", policies=(policy,)), scenario.seeds[0], draws)
        (found[policy.label],) = bench.campaign.collect(run_pair, [item])
    return Section("E15: the real stack, small", _words(scenario, found), _figures(found))


def run_pair(item: tuple[Scenario, int, int]) -> dict[str, Any]:
    """One policy, simulated with so many draws and in real time."""
    scenario, (_, seed, draws) = _direct(item[0]), item
    policy = scenario.policies[0]
    requests = [replace(one, prompt_tokens=max(PROMPT_TOKENS_MIN, one.prompt_tokens)) for one in requests_of(scenario, seed)]
    told = foretold(requests, policy.skill, seed) if policy.skill >= 0 else requests
    warm = int(len(requests) * scenario.warmup_share)

    def in_turn(view: ViewSpec) -> list[tuple[list[float], Legs]]:
        runs = (Cluster(replace(scenario, view=view), policy, told, draw).run() for draw in range(draws))
        return [_simulated(run.timelines[warm:]) for run in runs]

    simulated = in_turn(scenario.view)
    before = [leg for _, legs in simulated for leg in legs]
    trips, cost = real(scenario, policy, requests)
    legs = [(trip.there_s, trip.engine_s, trip.back_s) for trip in trips[warm:]]
    there_s, back_s = _ways(legs)
    late_s = scenario.view.dispatch_s + max(0.0, there_s - _ways(before)[0])
    as_late = in_turn(replace(scenario.view, dispatch_s=late_s, feedback_s=back_s))
    return {
        "requests": len(legs),
        "rate_per_s": scenario.workload.rate_per_s,
        "simulated": [figures for figures, _ in simulated],
        "simulated_legs": [mean(column) for column in zip(*before, strict=True)],
        "as_late": [[value + back_s for value in figures] for figures, _ in as_late],
        "real": _three([trip.ttft_s for trip in trips[warm:]]),
        "legs": [mean(column) for column in zip(*legs, strict=True)],
        "ways": [there_s, back_s],
        **cost,
    }


def _ways(legs: Legs) -> tuple[float, float]:
    """There and back, medians: a machine's rare hiccup is not how late everybody was."""
    there, _, back = zip(*legs, strict=True)
    return median(there), median(back)


def _simulated(lines: Sequence[Timeline]) -> tuple[list[float], Legs]:
    """The three figures, and the legs of each request: before the engine, in it, back."""
    stamps = [(line.arrived_s, line.dispatched_s or nan, line.first_token_s or nan) for line in lines]
    return _three([first - due for due, _, first in stamps]), [(sent - due, first - sent, 0.0) for due, sent, first in stamps]


def _direct(scenario: Scenario) -> Scenario:
    """A policy that needs no gateway is one engine's share of the load on one engine."""
    if scenario.policies[0].policy != "least_request":
        return scenario
    work, (kind,) = scenario.workload, scenario.replicas
    alone = replace(
        work,
        rate_per_s=DIRECT_SHARE * work.rate_per_s / kind.count,
        requests=max(8, round(work.requests * DIRECT_SHARE / kind.count)),
    )
    view = replace(scenario.view, dispatch_s=0.0, feedback_s=0.0)
    return replace(scenario, workload=alone, replicas=(replace(kind, count=1),), view=view)


def _three(ttft_s: Sequence[float]) -> list[float]:
    ordered = sorted(ttft_s)
    return [mean(ordered) if share is None else quantile(ordered, share) for _, share in SHARES]


# ---- the processes ----


def planned(requests: Sequence[SimRequest]) -> list[Planned]:
    """The requests as bytes: as many tokens as the simulator's, by the engines' count; the last word is the answer's length."""
    found = []
    for request in requests:
        mark = f" answer {request.output_tokens}"
        size = (request.prompt_tokens - TOKENS_PER_MESSAGE) * BYTES_PER_TOKEN
        text = words(f"e15 {request.id}", size - len(mark)) + mark
        body = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"{text}"}}],"stream":true}}'
        lines = f"X-Request-Id: {request.id}\r\n"
        found.append(Planned(request.arrival_s, body.encode(), request.prompt_tokens, request.output_tokens, request.id, lines))
    return found


def real(scenario: Scenario, policy: PolicySpec, requests: Sequence[SimRequest]) -> tuple[list[Trip], dict[str, float]]:
    """A run in real time: its trips in the order of arrival, and what it cost. Raises StackFailedError."""
    (kind,) = scenario.replicas
    with tempfile.TemporaryDirectory(prefix="e15-") as scratch, _first():
        folder = Path(scratch)
        profile = folder / "engine.toml"
        known = EngineProfile("e15", kind.profile.scaled(kind.slower), kind.limits, 0.0)
        profile.write_text(render(known, "The engines of E15."), encoding="utf-8")
        assert engine_profile(str(profile)).limits == kind.limits
        with _mocks(folder, kind.count, profile) as (mocks, urls):
            if policy.policy == "least_request":
                port = urlsplit(urls[0][0]).port
                assert port is not None
                seen, start_s, cost = _driven(port, requests, {"mocks": mocks.pid})
            else:
                with _gateway(folder, policy, urls, profile) as (gateway, port):
                    seen, start_s, cost = _driven(port, requests, {"mocks": mocks.pid, "gateway": gateway.pid})
            os.kill(mocks.pid, signal.SIGTERM)
            told = json.loads(mocks.stdout.readline())
    return _trips(seen, start_s, told["rows"]), {**cost, "late_p99_ms": told["late_p99_ms"]}


@contextmanager
def _first() -> Iterator[None]:
    """Before all others on this machine, where the system allows it."""
    allowed = first_in_line()
    try:
        yield
    finally:
        if allowed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def _mocks(folder: Path, count: int, profile: Path) -> Iterator[tuple[Any, list[list[str]]]]:
    """Their process, and the URLs of each engine and of its sidecar."""
    argv = [sys.executable, str(HERE / "stack_mocks.py"), str(count), str(profile)]
    with (folder / "mocks.log").open("wb") as log, started(argv, stdout=PIPE, stderr=log, cwd=ROOT) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise StackFailedError(f"the engines did not start: {(folder / 'mocks.log').read_text()[-500:]}")
        yield process, json.loads(line)


@contextmanager
def _gateway(folder: Path, policy: PolicySpec, urls: list[list[str]], profile: Path) -> Iterator[tuple[Any, int]]:
    """Its process, and its port."""
    config, ports = folder / "gateway.toml", _free_ports()
    config.write_text(gateway_toml(policy, urls, profile, ports), encoding="utf-8")
    env = clean_environment(Place(folder, folder, sys.executable), {"PYTHONPATH": str(ROOT)})
    argv = ["nice", "-n", NICE, sys.executable, "-m", "gateway", "serve", str(config)]
    with (folder / "gateway.log").open("wb") as log, started(argv, stdout=log, stderr=log, env=env, cwd=folder) as process:
        if first_answer_s(process, ports[0], time.monotonic(), START_LIMIT_S) is None:
            raise StackFailedError(f"the gateway did not start: {(folder / 'gateway.log').read_text()[-500:]}")
        yield process, ports[0]


def _free_ports() -> tuple[int, int]:
    """Two that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def gateway_toml(policy: PolicySpec, urls: list[list[str]], profile: Path, ports: tuple[int, int]) -> str:
    """What the simulated gateway knows, and no more: the engines' profile; lengths by what has been seen."""
    rule = policy.rule
    lines = ["[listen]", f'data = "127.0.0.1:{ports[0]}"', f'control = "127.0.0.1:{ports[1]}"']
    lines += ["[tagger]", 'mode = "off"', f"[models.{MODEL}]", f'policy = "{rule.policy}"', f'order = "{rule.order}"']
    lines += [f"margin = {rule.margin}", f"age_rate = {rule.age_rate}", f"d = {rule.d}"]
    lines += ["[slo]", 'engine_budget = "always"']  # so that an engine, and its sidecar, is told how long answers may be
    for i, (engine, sidecar) in enumerate(urls):
        lines += ["[[backends]]", f'name = "b{i}"', f'url = "{engine}"', 'engine = "vllm"', f'profile = "{profile}"']
        lines += ['scheduling = "fcfs"']
        lines += [f'sidecar = "{sidecar}"'] if policy.sidecar else []
    return "\n".join(lines) + "\n"


def _driven(port: int, requests: Sequence[SimRequest], pids: dict[str, int]) -> tuple[list[Seen], float, dict[str, float]]:
    gc.collect()
    gc.freeze()
    try:
        return asyncio.run(_drive(port, planned(requests), pids))
    finally:
        gc.unfreeze()


async def _drive(port: int, schedule: list[Planned], pids: dict[str, int]) -> tuple[list[Seen], float, dict[str, float]]:
    """What came of it, when it began, and the share of all cores that load, engines and gateway used meanwhile."""
    start_s = time.monotonic() + LEAD_S
    run = asyncio.create_task(Load(port, schedule).run(start_s, DRAIN_S))
    used = []
    for at_s in (0.0, schedule[-1].at_s):
        await reaches(start_s + at_s)
        used.append([time.monotonic(), time.process_time(), *(cpu(pid).total_s for pid in pids.values())])
    seen = await run
    seconds, *spent = (after - before for before, after in zip(*used, strict=True))
    shares = [one / seconds / (os.cpu_count() or 1) for one in spent]
    return seen, start_s, {"busy": sum(shares), **{f"{name}_busy": one for name, one in zip(pids, shares[1:], strict=True)}}


def _trips(seen: Sequence[Seen], start_s: float, rows: Sequence[tuple[str, float, float | None]]) -> list[Trip]:
    """Both ends' stamps of each request. Raises StackFailedError if one failed; what still ran at the end had its token."""
    engines = {name: (arrival_s, first_s) for name, arrival_s, first_s in rows}
    trips = []
    for one in seen:
        if one.ttft_s is None or one.problem not in ("", "unfinished"):
            raise StackFailedError(f"request {one.label}: {one.problem or 'no token'}")
        arrival_s, first_s = engines[one.label]
        assert first_s is not None
        due_s = start_s + one.at_s
        trips.append(Trip(one.ttft_s, arrival_s - due_s, first_s - arrival_s, due_s + one.ttft_s - first_s))
    return trips


# ---- the words ----


def _words(scenario: Scenario, found: dict[str, dict[str, Any]]) -> list[str]:
    rows, legs = [], []
    for label, one in found.items():
        rows += _rows(label, one)
        cells = [f"{was * 1e3:.1f} / {now * 1e3:.1f}" for was, now in zip(one["simulated_legs"], one["legs"], strict=True)]
        legs.append([label, *cells, f"{one['busy']:.0%}", f"{one['late_p99_ms']:.1f}"])
        legs[-1].append(" / ".join(f"{way * 1e3:.1f}" for way in one["ways"]))
    kind, direct = scenario.replicas[0], next(iter(found.values()))
    text = (
        f"Not simulation: `gateway serve` over loopback before {kind.count} simulated engines in real time (the A30 profile, "
        f"steps x {kind.slower:g}), {scenario.workload.rate_per_s:g} requests per s, {one['requests']} counted after "
        f"the first {scenario.warmup_share:.0%}; one engine without a gateway got {direct['rate_per_s']:.2g} per s "
        f"({direct['requests']} counted). The same trace in the simulator, {len(one['simulated'])} times with other luck of "
        "the draw (Po2's choice of two; least and most stand in brackets). Lengths are foretold by the quantiles of all "
        "answers in the simulator; the real gateway learns them meanwhile, knows a prompt by its bytes, and tells engines "
        'what it foretells (`engine_budget = "always"`), as the paper does. *The machine\'s share*: how far the simulator '
        "itself moves when it is told the ways there and back of that run (medians, last column below); *left* is what then "
        "still differs: the model's error, and luck."
    )
    more = (
        "Means of the ways in ms, simulated / real: before the engine (the load's lateness, the gateway, its line, its "
        "probes), in the engine until the first token, back to the client; the share of all cores that load, engines and "
        "gateway used together, and how late the engines' timers were (P99, ms):"
    )
    heads = ["TTFT s", "simulator", "real stack", "difference", "the machine's share", "left"]
    ways = ["", "before the engine", "in the engine", "back", "cores busy", "timers late", "medians there / back"]
    return [text, *table(heads, rows), more, *table(ways, legs)]


def _rows(label: str, one: dict[str, Any]) -> list[list[str]]:
    rows = []
    for i, (name, _) in enumerate(SHARES):
        values = [draw[i] for draw in one["simulated"]]
        simulated, as_late, wall = mean(values), mean([draw[i] for draw in one["as_late"]]), one["real"][i]
        chance = f" ({min(values):.3f} to {max(values):.3f})" if max(values) - min(values) > 1e-6 else ""
        parts = [f"{part / simulated:+.1%}" for part in (wall - simulated, as_late - simulated, wall - as_late)]
        rows.append([f"{label}, {name}", f"{simulated:.3f}{chance}", f"{wall:.3f}", *parts])
    return rows


def _figures(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    figures = {}
    for label, one in found.items():
        short = {"one engine, no gateway": "direct", "Po2 through sidecars": "po2"}.get(label, "plan")
        for i, (name, _) in enumerate(SHARES):
            figures[f"live_{short}_{name.lower()}_ratio"] = one["real"][i] / mean([draw[i] for draw in one["simulated"]])
    return figures
