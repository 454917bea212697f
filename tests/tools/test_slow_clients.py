"""Case 11.4: slowhttptest's slow heads, slow bodies and slow reads, with normal load at the same time.

The gateway runs with the shipped defaults, but for `head_s` and `body_stall_s`, so that a run is short.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from backends.mock import MockConfig, MockEngine
from gateway.config import Limits
from tests.tools.programs import Gateway, ask, find, free_port, running, serving
from tests.wire.kit import metric, until
from tests.wire.peer import Sent, connect

HEAD_S = 3.0
BODY_STALL_S = 3.0
CONNECTIONS = 200
TEST_S = 15
LIMITS = f"[timeouts]\nhead_s = {HEAD_S}\nbody_stall_s = {BODY_STALL_S}\n"
WORKERS = 4
CHAT = "/v1/chat/completions"
BODY = {"model": "m0", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
# a long list of models is the largest answer that anybody can have by a plain GET: about 60 KB
MODELS = tuple(f"m{i}" if i == 0 else f"m{i}-{'x' * 80}" for i in range(400))
MIB = 1 << 20
HELD_PER_CLIENT_BYTES = 64 * 1024


async def _slowhttptest(folder: Path, mode: str, url: str, *more: str) -> str:
    """One run, to its end; what it printed."""
    sizes = ("-c", str(CONNECTIONS), "-r", "100", "-i", "5", "-l", str(TEST_S))
    command = (find("slowhttptest"), f"-{mode}", *sizes, "-v", "1", "-u", url, *more)
    async with running(command, folder / "slowhttptest.log") as program:
        await asyncio.wait_for(program.process.wait(), 4 * TEST_S)
    return re.sub(r"\x1b\[[0-9;]*m", "", program.output())


@asynccontextmanager
async def _normal_load(gateway: Gateway) -> AsyncIterator[Counter[int]]:
    """Plain requests one after another by some workers, until the block ends; how often each status came."""
    statuses: Counter[int] = Counter()
    done = asyncio.Event()

    async def work() -> None:
        while not done.is_set():
            statuses[(await ask(gateway.port, CHAT, BODY)).status] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(work())
        yield statuses
        done.set()


@asynccontextmanager
async def _under_attack(folder: Path) -> AsyncIterator[Gateway]:
    """A gateway under normal load; in the end nothing but good answers went to that, and no connection is left."""
    port = free_port()
    engine = MockEngine(MockConfig(name="engine", models=MODELS, port=port))
    async with engine, serving(folder, {"engine": f"http://127.0.0.1:{port}"}, more=LIMITS) as gateway:
        async with _normal_load(gateway) as statuses:
            yield gateway
        assert set(statuses) == {200}, statuses
        assert statuses[200] >= 5 * WORKERS
        assert await _connections(gateway) == 0
        assert (await ask(gateway.port, CHAT, BODY)).status == 200


async def _connections(gateway: Gateway) -> float:
    """Client connections, once they have come down to none (or have not)."""
    loop, left = asyncio.get_running_loop(), 1.0
    end_s = loop.time() + 60
    while left and loop.time() < end_s:
        left = metric(await gateway.metrics(), "leeway_client_connections")
    return left


async def _witness(gateway: Gateway, sent: bytes) -> tuple[int, bytes, float]:
    """One slow client of our own: what it got after half a request, and after how many seconds the connection ended."""
    now = asyncio.get_running_loop().time
    peer = await connect(gateway.port, Sent())
    started_s = now()
    peer.send(sent)
    answer = await peer.answer()
    taken_s = now() - started_s
    await peer.ended()
    peer.close()
    return answer.status, answer.headers[b"connection"], taken_s


def _refused_as_slow(gateway: Gateway) -> int:
    return sum(line["status"] == 408 for line in gateway.access())


async def _slow_requests(folder: Path, mode: str, half: bytes, limit_s: float) -> None:
    async with _under_attack(folder) as gateway:
        before = gateway.memory_bytes("VmHWM")
        url = f"http://127.0.0.1:{gateway.port}{CHAT}"
        output, (status, connection, taken_s) = await asyncio.gather(_slowhttptest(folder, mode, url), _witness(gateway, half))
        assert "No open connections left" in output, output
        assert (status, connection) == (408, b"close")
        assert 0.9 * limit_s < taken_s < limit_s + 5  # the machine may be busy elsewhere
        await until(lambda: _refused_as_slow(gateway) == CONNECTIONS + 1, 60, lambda: _refused_as_slow(gateway))
        assert gateway.memory_bytes("VmHWM") - before < CONNECTIONS * HELD_PER_CLIENT_BYTES


def test_slow_heads_are_closed_in_time(tmp_path: Path) -> None:
    half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nX-A: b\r\n"
    asyncio.run(_slow_requests(tmp_path, "H", half, HEAD_S))


def test_slow_bodies_are_closed_in_time(tmp_path: Path) -> None:
    half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: 4096\r\n\r\n{"
    asyncio.run(_slow_requests(tmp_path, "B", half, BODY_STALL_S))


def test_slow_readers_cost_little(tmp_path: Path) -> None:
    """They may take their time (write_stall_s is minutes), but what is held for each is bounded."""

    async def main() -> None:
        async with _under_attack(tmp_path) as gateway:
            before = gateway.memory_bytes("VmHWM")
            output = await _slowhttptest(tmp_path, "X", f"http://127.0.0.1:{gateway.port}/v1/models", "-k", "3")
            assert re.search(r"Hit test time limit|No open connections left", output), output
            await until(lambda: sum(line["route"] == "models" for line in gateway.access()) >= CONNECTIONS, 60)
            assert gateway.memory_bytes("VmHWM") - before < CONNECTIONS * Limits().write_buffer_bytes

    asyncio.run(main())
