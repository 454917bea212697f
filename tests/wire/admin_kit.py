"""A running gateway with its control plane, as the admin tests use it: real sockets, real simulated engines."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import looptime

from backends.mock import MockConfig, MockEngine
from gateway.app import App, Load
from gateway.config import Admin, BackendSpec, GatewayConfig, Health, Listen
from predictor.profile import preset
from tests.wire.kit import idle_for

ADMIN_KEY = "canary-admin-key-5f1c"
BACKEND_KEY = "canary-backend-key-77aa"
DEADLINE_S = 30.0  # a process is started and reloaded within it, on a machine that does other things as well
CONFIG = GatewayConfig(
    listen=Listen(data="127.0.0.1:0", control="127.0.0.1:0"),
    health=Health(interval_s=0.1, timeout_s=2.0),
    admin=Admin(key=ADMIN_KEY),
)


def engine_config(name: str = "demo-fast", **changes: Any) -> MockConfig:
    """A simulated engine's settings by the name of its speed."""
    return replace(MockConfig(profile=preset(name).profile, limits=preset(name).limits), **changes)


def declared(name: str, url: str, **changes: Any) -> BackendSpec:
    """A backend as the file declares it."""
    return BackendSpec(name, url, **changes)


@dataclass(frozen=True)
class Reply:
    """An answer of either listener, read whole."""

    status: int
    headers: Mapping[str, str]
    text: str
    json: Any

    @property
    def code(self) -> str:
        """The machine word of an error."""
        return str(self.json["error"]["code"])


class Running:
    """One running gateway and a client of both its listeners."""

    def __init__(self, app: App, session: aiohttp.ClientSession, log: Path) -> None:
        self.app = app
        self.session = session
        self.log = log
        self.control = f"http://127.0.0.1:{app.control_port}"
        self.data = f"http://127.0.0.1:{app.plane.port}"

    async def call(
        self, method: str, path: str, json: Any = None, key: str | None = ADMIN_KEY, data: Any = None, **headers: str
    ) -> Reply:
        """One request to the control listener."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            sent["Authorization"] = f"Bearer {key}"
        return await read(self.session.request(method, self.control + path, json=json, data=data, headers=sent))

    async def chat(self, model: str = "demo", max_tokens: int = 8, stream: bool = False) -> Reply:
        """One chat request to the data listener."""
        return await read(self.session.post(f"{self.data}/v1/chat/completions", json=chat_body(model, max_tokens, stream)))

    async def until(self, path: str, wanted: Callable[[Reply], bool]) -> Reply:
        """GET a path until the answer is the wanted one."""
        end_s = time.monotonic() + DEADLINE_S
        while True:
            reply = await self.call("GET", path)
            if wanted(reply):
                return reply
            assert time.monotonic() < end_s, f"{path} still says {reply.status} {reply.text}"
            await idle_for(0.005)

    async def ready(self, name: str) -> Reply:
        """Wait until a backend gets requests."""
        return await self.until(f"/admin/backends/{name}", lambda reply: reply.status == 200 and reply.json["routable"])

    async def gone(self, name: str) -> Reply:
        """Wait until a backend is no more."""
        return await self.until(f"/admin/backends/{name}", lambda reply: reply.status == 404)


def chat_body(model: str, max_tokens: int, stream: bool) -> dict[str, Any]:
    """A chat request of exactly so many tokens."""
    messages = [{"role": "user", "content": "How do you do?"}]
    return {"model": model, "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}


async def read(request: Any) -> Reply:
    """Send a request and read its answer whole."""
    async with request as response:
        text = await response.text()
        is_json = response.content_type == "application/json" and text
        return Reply(response.status, response.headers, text, await response.json() if is_json else None)


@asynccontextmanager
async def running(tmp_path: Path, config: GatewayConfig = CONFIG, load: Load | None = None) -> AsyncIterator[Running]:
    """A gateway on free ports, its log in a file."""
    log = tmp_path / "gateway.log"
    fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    app = App(config, load, log_fd=fd)
    await app.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Running(app, session, log)
    finally:
        await app.close()
        app.logs._writer._thread.join(DEADLINE_S)  # its last lines
        os.close(fd)


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    """Run a test whose engines take their time: whatever else the machine does, it takes them no longer or shorter."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(main)


@asynccontextmanager
async def engines(*configs: MockConfig) -> AsyncIterator[list[MockEngine]]:
    """Simulated engines, started."""
    made = [MockEngine(config) for config in configs]
    for engine in made:
        await engine.start()
    try:
        yield made
    finally:
        for engine in made:
            await engine.close()


class SteadyLoad:
    """Steady requests to the data listener, counted by how they ended."""

    def __init__(self, gateway: Running, model: str = "demo", clients: int = 8) -> None:
        self._gateway = gateway
        self._model = model
        self._stop = asyncio.Event()
        self._done: asyncio.Condition = asyncio.Condition()
        self.count = 0
        self.failures: list[str] = []
        self._tasks = [asyncio.create_task(self._client(i % 2 == 0)) for i in range(clients)]

    async def _client(self, stream: bool) -> None:
        while not self._stop.is_set():
            reply = await self._gateway.chat(self._model, stream=stream)
            whole = "[DONE]" in reply.text if stream else reply.json is not None and "choices" in reply.json
            async with self._done:
                self.count += 1
                if reply.status != 200 or not whole:
                    self.failures.append(f"{reply.status} {reply.text[:300]}")
                self._done.notify_all()

    async def more(self, count: int) -> None:
        """Wait until so many more requests have ended."""
        goal = self.count + count
        async with asyncio.timeout(DEADLINE_S), self._done:
            await self._done.wait_for(lambda: self.count >= goal)

    async def stop(self) -> None:
        """Let those under way end."""
        self._stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*self._tasks)
