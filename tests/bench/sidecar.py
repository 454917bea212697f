"""What a sidecar costs and how fast it answers. `make bench-sidecar`

Three processes: a stand-in engine that publishes a state of 48 running and 50 waiting requests 50 times a second, the
sidecar beside it, and an HTTP server of the same kind that answers at once with a fixed reply (the null echo). From here
the gateway's own probing client asks both, 500 times a second, in turn. Beside that: what a step's publishing costs
the engine, and what a pair of asks costs the gateway, as thread CPU time. The last line is JSON.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop
from aiohttp import web

from backends.scheduler_record import Seen, StepRecorder, payload_max
from backends.snapshot_file import SnapshotFile
from backends.snapshot_record import Limits
from gateway.jobs import Job
from gateway.probing import ProbeClient
from predictor.request import Estimate, LengthEstimate
from predictor.snapshot import ProbeReply
from predictor.wire import encode_reply
from tests.core.in_engine import InEngine

ROOT = Path(__file__).parents[2]
LIMITS = Limits(1052, 16, 48, 512, 4096)
RUNNING, WAITING = 48, 50
STEP_S = 0.02
PROBES_PER_S = 500
REFERENCE_LOOPS = 200_000


class Engine:
    """The stand-in: decodes for 48, and now and then one ends and the next begins."""

    def __init__(self, path: str, running: int = RUNNING, waiting: int = WAITING) -> None:
        self.file = SnapshotFile(path, payload_max(max(running, LIMITS.max_num_seqs)))
        self._recorder = StepRecorder("stand-in", LIMITS, self.file.write)
        self._serial = 0
        self.running = [self._request(computed=True) for _ in range(running)]
        self.waiting = [self._request(computed=False) for _ in range(waiting)]

    def _request(self, computed: bool) -> InEngine:
        self._serial += 1
        made = InEngine(f"chatcmpl-{self._serial:032x}-{self._serial:08x}", 60 + self._serial * 37 % 200, 0, 1024, 400)
        if computed:
            made.output = [0] * (self._serial * 13 % 150)
            made.num_computed_tokens = made.num_prompt_tokens + len(made.output)
        return made

    def step(self, change: bool) -> None:
        """One step; with `change` one request has ended and the next one begins."""
        for one in self.running:
            one.num_computed_tokens += 1
            one.output.append(0)
            if one.num_output_tokens > 300:
                one.output.clear()
                one.num_computed_tokens = one.num_prompt_tokens
        if change and self.waiting:
            self.running = [*self.running[1:], self.waiting.pop(0)]
            self.running[-1].num_computed_tokens = self.running[-1].num_prompt_tokens
            self.waiting.append(self._request(computed=False))

    def publish(self) -> None:
        used = sum(-(-one.num_computed_tokens // LIMITS.block_size) for one in self.running)
        scheduled = {one.request_id: 1 for one in self.running}
        running, waiting = cast("list[Seen]", self.running), cast("list[Seen]", self.waiting)
        self._recorder.record(time.monotonic(), running, waiting, scheduled, len(scheduled), LIMITS.kv_blocks - used, 0)


def run_engine(path: str) -> None:
    """The stand-in's process."""
    engine, pause = Engine(path), threading.Event()
    for number in range(10**9):
        engine.step(change=number % 5 == 0)
        engine.publish()
        if number == 0:
            print("publishing", flush=True)
        pause.wait(STEP_S)


def run_echo() -> None:
    """The null echo's process: the same server library, no work."""
    reply = encode_reply(ProbeReply(Estimate(0.1, 0.02, 3.5, 0.05, 0.25, 90), 48, 50, 40, 700, 9000, 0.012))

    async def answer(http: web.Request) -> web.Response:
        await http.read()
        return web.Response(body=reply, content_type="application/json")

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/predict", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"echo at http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


@contextlib.contextmanager
def process(*command: str) -> Iterator[str]:
    """A child process; its first line of output."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().strip()
        finally:
            child.kill()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def open_loop(client: ProbeClient, name: str, seconds: float) -> list[float]:
    """Latencies of probes sent on a fixed schedule, counted from when each was due (a loop's timer has steps of 1 ms and
    may be early: then from when it was sent). Fails on a probe without a reply."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    count = int(seconds * PROBES_PER_S)
    left, over = count, asyncio.Event()

    def send(number: int, due_s: float) -> None:
        begun_s = min(due_s, time.monotonic())

        def done(replies: object) -> None:
            nonlocal left
            assert isinstance(replies, dict)
            assert replies.get(name) is not None, f"{name} did not answer"
            latencies.append(time.monotonic() - begun_s)
            left -= 1
            if not left:
                over.set()

        lengths = LengthEstimate(50, 200, 600, "bench")
        client.ask((name,), Job(f"{number:032x}", "m", 100 + number * 31 % 900, lengths, 0.0), done)

    begin_s = time.monotonic() + 0.05
    offset_s = loop.time() - time.monotonic()
    for number in range(count):
        due_s = begin_s + number / PROBES_PER_S
        loop.call_at(due_s + offset_s, send, number, due_s)
    await over.wait()
    return latencies


async def pair_cost_us(urls: dict[str, str], pairs: int) -> float:
    """Thread CPU time of asking two sidecars for one request, on a loop as the gateway's, 8 requests at a time."""
    client = ProbeClient(1.0, time.monotonic, lambda: 0)
    for name, url in urls.items():
        client.added(name, url)
    job = Job("0" * 32, "m", 700, LengthEstimate(50, 200, 600, "bench"), 0.0)
    names = tuple(urls)
    left = pairs
    over = asyncio.Event()

    def done(replies: object) -> None:
        nonlocal left
        left -= 1
        if left >= 8:
            client.ask(names, job, done)
        elif not left:
            over.set()

    await client.probe(names, job)
    began_s = time.thread_time()
    for _ in range(8):
        client.ask(names, job, done)
    await over.wait()
    cost_us = 1e6 * (time.thread_time() - began_s) / pairs
    await client.close()
    return cost_us


def publish_cost_us(running: int, waiting: int, change: bool, steps: int = 2000) -> list[float]:
    """Thread CPU time of each publish."""
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(str(Path(folder) / "state"), running, waiting)
        costs = []
        for _ in range(steps):
            engine.step(change)
            began_ns = time.thread_time_ns()
            engine.publish()
            costs.append((time.thread_time_ns() - began_ns) / 1e3)
        engine.file.close()
    return costs


def reference_us() -> float:
    """A fixed loop, so that figures of different machines can be told apart."""
    began_s = time.thread_time()
    total = 0
    for number in range(REFERENCE_LOOPS):
        total += number & 7
    return 1e6 * (time.thread_time() - began_s)


async def measure(sidecar: str, echo: str, rounds: int, seconds: float) -> dict[str, float]:
    client = ProbeClient(2.0, time.monotonic, lambda: 0)
    client.added("sidecar", sidecar)
    client.added("echo", echo)
    found: dict[str, list[tuple[float, float]]] = {"sidecar": [], "echo": []}
    for name in found:
        await open_loop(client, name, 0.5)  # warm
    for _ in range(rounds):
        for name, figures in found.items():
            latencies = await open_loop(client, name, seconds)
            figures.append((percentile(latencies, 0.5), percentile(latencies, 0.99)))
            print(f"{name:8} p50 {1e3 * figures[-1][0]:6.2f} ms  p99 {1e3 * figures[-1][1]:6.2f} ms", file=sys.stderr)
    await client.close()
    out = {}
    for name, key in (("sidecar", "probe"), ("echo", "echo")):
        out[f"{key}_p50_ms"] = 1e3 * statistics.median(p50 for p50, _ in found[name])
        out[f"{key}_p99_ms"] = 1e3 * statistics.median(p99 for _, p99 in found[name])
    out["pair_cpu_us"] = statistics.median([await pair_cost_us({"a": echo, "b": sidecar}, 2000) for _ in range(5)])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        run_engine(arguments.engine)
    elif arguments.echo:
        run_echo()
    else:
        run(arguments.rounds, arguments.seconds)


def run(rounds: int, seconds: float) -> None:
    """The bench itself."""
    me = (sys.executable, "-m", "tests.bench.sidecar")
    with (
        tempfile.TemporaryDirectory() as folder,
        process(*me, "--engine", f"{folder}/state"),
        process(sys.executable, "-m", "gateway", "sidecar", "--state", f"{folder}/state", "--port", "0") as sidecar,
        process(*me, "--echo") as echo,
    ):
        figures = uvloop.run(measure(sidecar.split()[-1], echo.split()[-1], rounds, seconds))
    for name, state in (("", (48, 50, False)), ("_changing", (48, 50, True)), ("_large", (256, 0, False))):
        costs = publish_cost_us(*state)
        figures[f"publish{name}_p50_us"] = percentile(costs, 0.5)
        figures[f"publish{name}_p99_us"] = percentile(costs, 0.99)
    figures["reference_us"] = reference_us()
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
