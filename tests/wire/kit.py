"""What every failure case runs in: a gateway inside the test's loop, scripted backends behind it, raw clients before it.

`run` also checks, after each case, what must hold after all of them: the gateway answers in time; requests in flight,
connections, tasks and file descriptors are back where they were; no traceback and no canary in log or metrics; each
request that a client sent has exactly one line in the access log.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import IO, Any

import looptime
import uvloop

from backends.mock import MockConfig, MockEngine
from gateway.app import App, Load
from gateway.config import Admin, BackendSpec, GatewayConfig, Health, Listen, Tagger
from predictor.profile import preset
from tests.wire.peer import Answer, Peer, Sent, connect
from tests.wire.scripted import ScriptedBackend, well

CANARY = "canary-5f1c77aa"
ADMIN_KEY = "admin-key-of-the-cases"
CHAT = "/v1/chat/completions"
CASE_LIMIT_S = 120.0  # these two are for what never comes: a busy machine takes several times as long as a quiet one
BACK_S = 20.0
ANSWER_S = 0.1
LONG_AFTER_S = 1e6
CONFIG = GatewayConfig(
    listen=Listen(data="127.0.0.1:0", control="127.0.0.1:0"),
    health=Health(interval_s=0.1, timeout_s=1.0),
    admin=Admin(key=ADMIN_KEY),
    tagger=Tagger(mode="off"),  # its process is the business of test_tagger*.py
)
INSTANT = MockConfig(profile=preset("instant").profile, limits=preset("instant").limits)


async def idle_for(wait_s: float) -> None:
    """Let real time pass, at most 0.3 s: for edges that only a clock outside the test has (a server's idle limit)."""
    assert wait_s <= 0.3, wait_s
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), wait_s)


async def virtual_pause(wait_s: float) -> None:
    """Let virtual time pass: only on a loop whose clock costs nothing."""
    assert isinstance(asyncio.get_running_loop(), looptime.LoopTimeEventLoop)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), wait_s)


async def until(true: Callable[[], bool], limit_s: float = BACK_S, say: Callable[[], object] = lambda: "") -> None:
    """Wait until `true()`, looking every few ms; AssertionError with `say()` after `limit_s`, by the loop's clock and by the
    real one: threads and other processes know nothing of virtual time."""
    loop = asyncio.get_running_loop()
    end_s, real_end_s = loop.time() + limit_s, time.monotonic() + limit_s
    while not true():
        assert loop.time() < end_s or time.monotonic() < real_end_s, f"not within {limit_s} s: {say()}"
        await idle_for(0.005)


async def quick(ask: Callable[[], Awaitable[None]], limit_s: float) -> None:
    """Check that `ask` takes less than `limit_s`: the quickest try counts, for the machine may be busy elsewhere."""
    loop = asyncio.get_running_loop()
    end_s, taken_s = loop.time() + BACK_S, math.inf
    while taken_s >= limit_s:
        assert loop.time() < end_s, f"it took {taken_s:.3f} s at best"
        started_s = loop.time()
        await ask()
        taken_s = min(taken_s, loop.time() - started_s)


def chat(text: str = CANARY, **fields: object) -> dict[str, object]:
    """A chat request's body."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


class Rig:
    """A running gateway with its backends."""

    def __init__(self, app: App, backends: list[ScriptedBackend], engines: list[MockEngine], log: IO[bytes]) -> None:
        self.app = app
        self.backends = backends
        self.engines = engines
        self.key = ""
        self.sent = Sent()
        self.faults: list[str] = []
        self._log = log
        self._peers: list[Peer] = []

    @property
    def backend(self) -> ScriptedBackend:
        """The first scripted backend."""
        return self.backends[0]

    @property
    def calls(self) -> int:
        """Calls over all scripted backends."""
        return sum(len(backend.calls) for backend in self.backends)

    @property
    def url(self) -> str:
        """The data listener's base URL."""
        return f"http://127.0.0.1:{self.app.plane.port}"

    async def connect(self) -> Peer:
        """A fresh connection to the data listener, closed after the case."""
        peer = await connect(self.app.plane.port, self.sent, self.key)
        self._peers.append(peer)
        return peer

    async def ask(
        self, body: object = None, path: str = CHAT, method: str = "POST", headers: dict[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own."""
        peer = await connect(self.app.plane.port, self.sent, self.key)
        peer.ask(body, path, method, headers)
        answer = await peer.answer()
        peer.close()
        return answer

    async def admin(self, method: str, path: str, body: object = None, key: str | None = ADMIN_KEY) -> Answer:
        """One request to the control listener."""
        peer = await connect(self.app.control_port, Sent())
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        peer.ask(body, path, method, {"content-type": "application/json", **headers})
        answer = await peer.answer()
        peer.close()
        return answer

    async def metrics(self) -> str:
        """The text of /metrics."""
        return (await self.admin("GET", "/metrics")).body.decode()

    async def routable(self, *backends: ScriptedBackend | MockEngine) -> None:
        """Wait until these backends (all of them by default) get requests."""
        names = {_name(backend) for backend in backends or (*self.backends, *self.engines)}
        fleet = self.app.plane.fleet
        await until(lambda: all((r := fleet.get(n)) is not None and r.state == "ready" for n in names), say=lambda: fleet)

    def state(self, backend: ScriptedBackend | MockEngine) -> str:
        """What the gateway makes of a backend."""
        replica = self.app.plane.fleet.get(_name(backend))
        return replica.state if replica is not None else "absent"

    def log(self) -> list[dict[str, Any]]:
        """The log so far; lines come up to 0.1 s late."""
        with open(f"/proc/self/fd/{self._log.fileno()}", "rb") as file:
            whole, _, _ = file.read().rpartition(b"\n")  # the writer may be in the middle of a line
            return [json.loads(line) for line in whole.splitlines()]

    async def access(self, request_id: str) -> dict[str, Any]:
        """The access line of a request."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [line for line in self.log() if line["event"] == "request" and line["id"] == request_id]
            return bool(found)

        await until(there, say=lambda: request_id)
        return found[0]

    def drop_peers(self) -> None:
        """Close all connections made by `connect`."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()


Case = Callable[[Rig], Awaitable[None]]
Respec = Callable[[BackendSpec], BackendSpec]


def _name(backend: ScriptedBackend | MockEngine) -> str:
    return backend.name if isinstance(backend, ScriptedBackend) else backend.config.name


def run(
    case: Case,
    config: GatewayConfig = CONFIG,
    *,
    backends: int | tuple[ScriptedBackend, ...] = 1,
    engines: tuple[MockConfig, ...] = (),
    spec: Respec = lambda made: made,
    key: str = "",
    load: Load | None = None,
    on: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
    limit_s: float = CASE_LIMIT_S,
) -> None:
    """Run a case. `backends` are scripted ones (named b0, b1, ...), or a number of them; `spec` changes
    how they are declared; `key` is what clients send.

    `on` makes the loop: uvloop, as when serving, if nothing is said. `limit_s` is in that loop's time.
    """
    scripted = tuple(ScriptedBackend(f"b{i}") for i in range(backends)) if isinstance(backends, int) else backends

    async def limited(rig: Rig) -> None:
        async with asyncio.timeout(limit_s):
            await case(rig)

    async def main() -> None:
        with tempfile.TemporaryFile(buffering=0) as log:
            mocks = [MockEngine(engine) for engine in engines]
            await _start(*scripted, *mocks)
            specs = [spec(BackendSpec(b.name, b.url, "openai")) for b in scripted]
            specs += [spec(BackendSpec(e.config.name, e.url, "vllm")) for e in mocks]
            app = App(replace(config, backends=(*config.backends, *specs)), load, log_fd=log.fileno())
            await app.start()
            rig = Rig(app, list(scripted), mocks, log)
            rig.key = key
            await _run(limited, rig)

    with asyncio.Runner(loop_factory=on) as runner:
        runner.run(main())


async def _start(*servers: ScriptedBackend | MockEngine) -> None:
    for server in servers:
        await server.start()


async def _run(case: Case, rig: Rig) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: rig.faults.append(_told(context)))
    try:
        await rig.routable()
        before = await _settled(rig)
        await case(rig)
        await _check_after(rig, before)
    finally:
        rig.drop_peers()
        await rig.app.close()
        rig.app.logs._writer._thread.join(BACK_S)  # the last lines: the gateway itself waits a second for who reads its log
        servers: list[ScriptedBackend | MockEngine] = [*rig.backends, *rig.engines]
        for server in servers:
            await server.close()
    _check_log(rig)


def _told(context: dict[str, Any]) -> str:
    return f"{context.get('message')}: {context.get('exception')!r}"


# -- the common pass conditions


class _Held:
    """What a gateway holds at rest."""

    def __init__(self, rig: Rig) -> None:
        plane = rig.app.plane
        self.in_flight = sum(replica.in_flight for replica in plane.fleet)
        self.streams = sum(replica.streams + replica.stalled for replica in plane.fleet)
        self.upstream = sum(pool.open_connections for pool in plane.pools)
        self.clients = plane.connections
        self.waiting = plane.held
        self.body_bytes = plane.held_bytes
        self.moving = sum(replica.moves for replica in plane.fleet)
        self.tasks = len(asyncio.all_tasks())
        link = plane.desks.tagging.link
        self.fds = len(os.listdir("/proc/self/fd")) - (link is not None and link.connected)

    def __repr__(self) -> str:
        return f"<held {vars(self)}>"

    def within(self, before: "_Held") -> bool:
        """Whether nothing is more than it was, but for a second control connection to a simulated engine that moves: probes
        and whoever moves it may speak to it at once, and the connection, with its task and both ends, is kept."""
        return all(value <= vars(before)[name] + self._spare(name) for name, value in vars(self).items())

    def _spare(self, name: str) -> int:
        return {"tasks": self.moving, "fds": 2 * self.moving}.get(name, 0)


async def _settled(rig: Rig) -> _Held:
    """A round trip, then what is held once idle connections have aged away. Forgets the calls that it made."""
    await _answers_in_time(rig)
    for backend in rig.backends:
        backend.calls.clear()
    _age(rig)
    await until(lambda: _Held(rig).upstream == 0, say=lambda: _Held(rig))
    return _Held(rig)


def _age(rig: Rig) -> None:
    for pool in rig.app.plane.pools:
        pool.sweep(rig.app.plane.now() + LONG_AFTER_S)


async def _answers_in_time(rig: Rig) -> None:
    """A plain request takes under 100 ms."""
    plane = rig.app.plane
    models = [r.models[0] for r in plane.fleet if r.state == "ready" and r.open(plane.now()) and r.serves("generate")]

    async def plain() -> None:
        if models:
            answer = await rig.ask({**chat("hi"), "model": models[0], "max_tokens": 1})
        else:
            answer = await rig.ask(path="/v1/models", method="GET")
        assert answer.status == 200, answer

    await quick(plain, ANSWER_S)


async def _check_after(rig: Rig, before: _Held) -> None:
    for backend in rig.backends:
        backend.play, backend.get, backend.idle_s = well, None, 0.0
        backend.freeze(False)
        if not backend.running:
            await backend.start()
    rig.drop_peers()
    here = [b for b in rig.backends or rig.engines if rig.state(b) not in ("draining", "absent", "asleep")]
    if here or not rig.engines:
        await rig.routable(*here)
    await _answers_in_time(rig)

    def back() -> bool:
        _age(rig)
        return _Held(rig).within(before)

    await until(back, say=lambda: f"{before} then {_Held(rig)}; {[task.get_coro() for task in asyncio.all_tasks()]}")
    assert CANARY not in await rig.metrics()


def _check_log(rig: Rig) -> None:
    assert not rig.faults, rig.faults
    lines = rig.log()
    text = json.dumps(lines)
    assert "Traceback" not in text
    assert CANARY not in text
    ends = Counter(line["id"] for line in lines if line["event"] == "request")
    wrong = {request_id: ends[request_id] for request_id in rig.sent.ids if ends[request_id] != 1}
    assert not wrong, f"requests without exactly one end: {wrong}"


def metric(text: str, name: str) -> float:
    """The sum of a metric's series."""
    values = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values))
