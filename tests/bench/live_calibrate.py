"""How far the load generators can be trusted: on a server with known answers, and both on the same replicas.

What differs from the known schedule is the generator's error and the server's together, so an upper bound.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import fmean

import uvloop

from tests.bench.live_figures import quantile
from tests.bench.live_fixed import E2E_S, FIRST_S, TOKENS
from tests.bench.live_load import Load
from tests.bench.live_mocks import MODEL
from tests.bench.live_peers import FIRST_MOCK_PORT, GATEWAY_PORT, PEERS
from tests.bench.live_referee import Recorded, referee
from tests.bench.live_run import LEAD_S, RunFailedError, Stage, Traffic, replicas, routed, started
from tests.bench.live_trace import Planned
from tests.bench.peers import CLIENT_KEY, REPOSITORY, NotInstalledError

RATE_PER_S = 40.0
SECONDS = 15.0

Figures = dict[str, float]


def calibrate(stage: Stage, source: Traffic, say: Callable[[str], None]) -> dict[str, object]:
    """Both generators on the known schedule, then on the replicas behind HAProxy."""
    line: dict[str, object] = {"bench": "live calibration", "rate_per_s": RATE_PER_S, "trace": source.name}
    known = known_schedule()
    with fixed(stage):
        line["known_own"] = errors(own(FIRST_MOCK_PORT, known))
        say(f"own generator on the known schedule: {line['known_own']}")
    try:
        with fixed(stage):
            line["known_aiperf"] = errors(other(stage, FIRST_MOCK_PORT, known))
            say(f"aiperf on the known schedule: {line['known_aiperf']}")
    except NotInstalledError as error:
        say(str(error))
        return line
    schedule = source.schedule(RATE_PER_S, 0, SECONDS)
    for name, send in (("replicas_own", own), ("replicas_aiperf", lambda port, plan: other(stage, port, plan))):
        with replicas(stage), routed(stage, "haproxy", PEERS["haproxy"]):
            line[name] = levels(send(GATEWAY_PORT, schedule))
            say(f"{name}: {line[name]}")
    return line


def known_schedule() -> list[Planned]:
    """Small requests with Poisson arrivals."""
    rng, at_s, requests = Random("known"), 0.0, []
    for number in range(round(RATE_PER_S * SECONDS)):
        text = f"question {number} answer {TOKENS}"
        body = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"{text}"}}],"stream":true}}'
        requests.append(Planned(at_s, body.encode(), len(text) // 4 + 4, TOKENS))
        at_s += rng.expovariate(RATE_PER_S)
    return requests


@contextmanager
def fixed(stage: Stage) -> Iterator[None]:
    """The server with known answers."""
    argv = [stage.place.python, "-m", "tests.bench.live_fixed", str(FIRST_MOCK_PORT)]
    with started(argv, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RunFailedError("the server with known answers did not start")
        yield


def own(port: int, schedule: Sequence[Planned]) -> list[Recorded]:
    """The live bench's generator, its times counted from sending as aiperf counts them."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(Load(port, schedule, CLIENT_KEY).run(time.monotonic() + LEAD_S, 30.0))
    return [
        Recorded(one.late_s, one.ttft_s - one.late_s, one.e2e_s - one.late_s)
        for one in seen
        if one.ttft_s is not None and one.e2e_s is not None and not one.problem
    ]


def other(stage: Stage, port: int, schedule: Sequence[Planned]) -> list[Recorded]:
    """aiperf."""
    with tempfile.TemporaryDirectory(prefix="live-") as scratch:
        return referee(stage.place.home, Path(scratch), port, schedule)


def errors(seen: Sequence[Recorded]) -> Figures:
    """Milliseconds off the known schedule."""
    ttft_s, e2e_s = [one.ttft_s - FIRST_S for one in seen], [one.e2e_s - E2E_S for one in seen]
    return {"requests": len(seen), **spread("ttft_error", ttft_s), **spread("e2e_error", e2e_s), **lateness(seen)}


def levels(seen: Sequence[Recorded]) -> Figures:
    """Milliseconds as measured."""
    ttft_s, e2e_s = [one.ttft_s for one in seen], [one.e2e_s for one in seen]
    return {"requests": len(seen), **spread("ttft", ttft_s), **spread("e2e", e2e_s), **lateness(seen)}


def lateness(seen: Sequence[Recorded]) -> Figures:
    """How late requests left."""
    return spread("late", [one.late_s for one in seen])


def spread(name: str, values_s: Sequence[float]) -> Figures:
    """Mean, median and 99th percentile in milliseconds."""
    if not values_s:
        return {}
    figures = {"mean": fmean(values_s), "p50": quantile(values_s, 0.5), "p99": quantile(values_s, 0.99)}
    return {f"{name}_{kind}_ms": round(value * 1e3, 2) for kind, value in figures.items()}
