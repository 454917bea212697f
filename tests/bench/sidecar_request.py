"""What a request that asks two sidecars costs the gateway, beside two Rust routers. Part of `make bench-sidecar`.

    python -m tests.bench.sidecar_request --home DIR        DIR is the folder of bench-overhead's setup.sh

Leeway with `policy = "po2"`, `binding = "early"` and a sidecar at each of four backends (each request asks two of them and
reserves at the one that it goes to), against vllm-router and smg with their power of two choices: CPU time of the
gateway's process tree per small request, ratios of medians over interleaved rounds. The sidecars answer at once with a
fixed reply: their own cost is not the gateway's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import uvloop

from predictor.request import Estimate
from predictor.snapshot import ProbeReply
from predictor.wire import encode_reply
from tests.bench.loads import Load, Stage, started
from tests.bench.peers import BACKEND_PORTS, PEERS, REPOSITORY, Command, Place, Recipe, leeway_config

SIDECAR_PORTS = tuple(port + 100 for port in BACKEND_PORTS)
RIVALS = ("vllm-router", "smg")


class Echo(asyncio.Protocol):
    """Answers each request of a read with the fixed reply; bodies hold no such head."""

    body = encode_reply(ProbeReply(Estimate(0.1, 0.02, 3.5, 0.05, 0.25, 90), 3, 2, 400, 7, 900, 0.012))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nX-Leeway-Took: 64\r\n\r\n"
    answer = head % len(body) + body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(self.answer * data.count(b" HTTP/1.1\r\n"))  # type: ignore[attr-defined]


async def echo() -> None:
    """The sidecars' process."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Echo, "127.0.0.1", port) for port in SIDECAR_PORTS]
    print("listening", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


@contextmanager
def sidecars(core: int) -> Iterator[None]:
    """Sidecars on the core of backends and load."""
    command = [sys.executable, "-m", "tests.bench.sidecar_request", "--echo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            os.sched_setaffinity(process.pid, {core})
            assert process.stdout is not None
            process.stdout.readline()
            yield
        finally:
            process.kill()


def with_sidecars(place: Place) -> Command:
    """Leeway, asking two of four sidecars for each request."""
    text = leeway_config('[models.m]\npolicy = "po2"\nbinding = "early"\n')
    for backend, port in zip(BACKEND_PORTS, SIDECAR_PORTS, strict=True):
        text = text.replace(f':{backend}"\n', f':{backend}"\nsidecar = "http://127.0.0.1:{port}"\n')
    config = place.scratch / "gateway.toml"
    config.write_text(text)
    built = os.environ.get("PYTHONPATH") or str(REPOSITORY)
    return Command((place.python, "-m", "gateway", "serve", str(config)), {"PYTHONPATH": built}, place.scratch)


def cost_us(stage: Stage, recipe: Recipe, seconds: float, log: Path) -> float:
    """CPU time of one gateway per small request."""
    with (
        tempfile.TemporaryDirectory(prefix="sidecar-") as scratch,
        started(stage.with_scratch(Path(scratch)), recipe, log) as (gateway, _),
    ):
        gateway.put(Load(16, seconds=seconds / 2))
        cost = gateway.put(Load(16, seconds=seconds))
        assert not gateway.bad, f"{gateway.bad} bad answers: see {log}"
        return cost.per(cost.answered.done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--merge", default="{}", help="figures to put beside, as JSON")
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    call = parser.parse_args()
    if call.echo:
        uvloop.run(echo())
        return
    home = call.home.resolve()
    cores = sorted(os.sched_getaffinity(0))
    stage = Stage(Place(home, home, sys.executable), cores[0], cores[1])
    os.sched_setaffinity(0, {cores[1]})
    recipes: dict[str, Recipe] = {"leeway-sidecars": with_sidecars, **{name: PEERS[name] for name in RIVALS}}
    found: dict[str, list[float]] = {name: [] for name in recipes}
    with sidecars(cores[1]):
        for number in range(call.rounds):
            for name, recipe in recipes.items():
                found[name].append(cost_us(stage, recipe, call.seconds, home / f"{name}.log"))
                print(f"round {number + 1} {name}: {found[name][-1]:.1f} us", file=sys.stderr, flush=True)
    ours = median(found["leeway-sidecars"])
    figures = {**json.loads(call.merge), "request_us": ours}
    for name in RIVALS:
        figures[f"request_vs_{name.replace('-', '_')}"] = ours / median(found[name])
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
