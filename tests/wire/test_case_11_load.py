"""Failure cases, section 11: memory, backpressure, slow clients."""

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

import looptime

from gateway.config import Health, Queue, Timeouts
from tests.wire.kit import CONFIG, Rig, chat, idle_for, run, until, virtual_pause
from tests.wire.peer import Peer
from tests.wire.scripted import DONE, FINISH, Call, ScriptedBackend, event
from tests.wire.served import Served, served

MIB = 1 << 20
PROMPTS = 4096
STALLED = 20
OFFER_BYTES = 24 * MIB
PART = event("x" * 65_000)


def rss_bytes(pid: int) -> int:
    """What a process holds in memory now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_case_11_1_memory_is_flat_over_different_prompts(tmp_path: Path) -> None:
    """11.1: thousands of different 2 KB prompts: the gateway's memory stays where it was after the warm-up."""

    async def client(gateway: Served, number: int, count: int) -> None:
        peer = await gateway.connect()
        for i in range(count):
            peer.ask(chat(f"{number}-{i} " * 200))
            assert (await peer.answer()).status == 200
        peer.close()

    async def load(gateway: Served, backend: ScriptedBackend, first: int, prompts: int) -> None:
        await asyncio.gather(*(client(gateway, first + i, prompts // 8) for i in range(8)))
        backend.calls.clear()

    async def main() -> None:
        backend = ScriptedBackend("b0")
        await backend.start()
        async with served(tmp_path, "", backend) as gateway:
            await load(gateway, backend, 0, PROMPTS // 2)
            before = rss_bytes(gateway.pid)
            await load(gateway, backend, 100, PROMPTS)
            grown = rss_bytes(gateway.pid) - before
            assert grown < PROMPTS * 2048 // 2, f"{grown} bytes more after {PROMPTS} prompts of 2 KB"
        await backend.close()

    asyncio.run(main())


async def deaf(port: int) -> tuple[socket.socket, asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose kernel takes little before somebody reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    return sock, reader, writer


async def offer(call: Call) -> None:
    """The play of a backend that has much to say, and waits while nobody takes it."""
    call.start_events()
    for _ in range(OFFER_BYTES // len(PART)):
        call.events(PART)
        await call.drained()
        if call.gone.is_set():
            return
    call.end_events(FINISH, DONE)


def test_case_11_2_stalled_readers_hold_little(tmp_path: Path) -> None:
    """11.2: 20 clients that never read, 24 MB offered to each: at most 1 MiB held for each, and the backend is slowed."""

    async def main() -> None:
        backend = ScriptedBackend("b0")
        await backend.start()
        backend.play = offer
        async with served(tmp_path, "", backend) as gateway:
            await gateway.ask(path="/livez", method="GET")
            before = rss_bytes(gateway.pid)
            peers = []
            for _ in range(STALLED):
                _, reader, writer = await deaf(gateway.port)
                peers.append(Peer(reader, writer, gateway.sent))
                peers[-1].ask(chat(stream=True))
            await backend.called(STALLED)
            for _ in range(3):  # quiet: nobody took anything for a while
                await until(lambda: not any(call.idle_link.writable.is_set() for call in backend.calls))
                await idle_for(0.1)
            held = (rss_bytes(gateway.pid) - before) / STALLED
            assert held < MIB, f"{held:.0f} bytes held for each"
            assert {call.end for call in backend.calls} == {"open"}
            answer = await peers[0].answer()
            assert answer.whole
            assert len(answer.body) > OFFER_BYTES - len(PART)
            for peer in peers:
                peer.leave()
            for call in backend.calls:
                await call.gone.wait()
        await backend.close()

    asyncio.run(main())


def test_case_11_2_who_never_reads_is_let_go() -> None:
    """11.2: under default limits a reader that takes nothing for 300 s is cut off (virtual time), the backend too."""

    async def case(rig: Rig) -> None:
        rig.backend.play = offer
        _, reader, writer = await deaf(rig.app.plane.port)
        peer = Peer(reader, writer, rig.sent)
        request_id = peer.ask(chat(stream=True))
        (call,) = await rig.backend.called(1)
        started_s = asyncio.get_running_loop().time()
        await call.gone.wait()
        assert call.end == "aborted"
        assert 299 <= asyncio.get_running_loop().time() - started_s <= 310
        line = await rig.access(request_id)
        assert (line["end"], line["reason"]) == ("client_gone", "reads too slowly")
        peer.close()

    run(case, replace(CONFIG, health=Health(interval_s=30.0)), on=looptime.new_event_loop, limit_s=1000)


def test_case_11_3_more_streams_than_places() -> None:
    """11.3: 200 streams at once, 50 places and 60 in the line: 110 served, the rest 429 with Retry-After, none dropped."""
    go_on = asyncio.Event()
    most = 0

    async def play(call: Call) -> None:
        nonlocal most
        most = max(most, sum(one.end == "open" for one in backend.calls))
        call.start_events()
        call.events(event("begun"))
        await go_on.wait()
        call.end_events(FINISH, DONE)

    backend = ScriptedBackend("b0")

    async def case(rig: Rig) -> None:
        backend.play = play
        asked = [asyncio.create_task(rig.ask(chat(stream=True))) for _ in range(200)]
        await until(lambda: sum(task.done() for task in asked) == 90)
        assert rig.app.plane.held == 60
        go_on.set()
        answers = await asyncio.gather(*asked)
        served = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status == 429]
        assert (len(served), len(refused)) == (110, 90)
        assert all(answer.whole and answer.body.endswith(FINISH + DONE) for answer in served)
        assert all(int(answer.headers[b"retry-after"]) >= 1 for answer in refused)
        assert all(answer.error["code"] == "queue_full" for answer in refused)
        assert most <= 50
        assert len(backend.calls) == 110

    run(case, replace(CONFIG, queue=Queue(size=60)), backends=(backend,), spec=lambda spec: replace(spec, max_in_flight=50))


SLOW = 40


async def drip(peer: Peer, data: bytes, size: int) -> None:
    """Send `size` bytes of `data` a second, in virtual time."""
    for at in range(0, len(data), size):
        peer.send(data[at : at + size])
        await virtual_pause(1.0)


def test_case_11_4_slow_heads_and_bodies_under_default_limits() -> None:
    """11.4: slow heads, slow bodies, silent connections: 408 within the limits; other clients notice nothing (virtual time)."""

    async def slow_head(rig: Rig) -> float:
        peer = await rig.connect()
        started_s = asyncio.get_running_loop().time()
        dripping = asyncio.create_task(
            drip(peer, b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nx-y: " + b"z" * 99, 1)
        )
        assert (await peer.answer()).status == 408
        dripping.cancel()
        return asyncio.get_running_loop().time() - started_s

    async def slow_body(rig: Rig) -> float:
        peer = await rig.connect()
        head, _ = peer.head("/v1/chat/completions", "POST", {"content-length": "100000"})
        peer.send(head)
        started_s = asyncio.get_running_loop().time()
        dripping = asyncio.create_task(drip(peer, b"{" * 50_000, 100))
        assert (await peer.answer()).status == 408
        dripping.cancel()
        return asyncio.get_running_loop().time() - started_s

    async def mute(rig: Rig) -> float:
        peer = await rig.connect()
        started_s = asyncio.get_running_loop().time()
        await peer.ended()
        return asyncio.get_running_loop().time() - started_s

    async def normal(rig: Rig) -> float:
        worst_s = 0.0
        for _ in range(20):
            started_s = asyncio.get_running_loop().time()
            assert (await rig.ask(chat(stream=True))).status == 200
            worst_s = max(worst_s, asyncio.get_running_loop().time() - started_s)
            await virtual_pause(1.0)
        return worst_s

    async def case(rig: Rig) -> None:
        slow = [asyncio.create_task(make(rig)) for make in (slow_head, slow_body, mute) for _ in range(SLOW)]
        assert await normal(rig) < 0.1
        times_s = await asyncio.gather(*slow)
        limits = Timeouts()
        assert limits.head_s <= 10
        assert max(times_s[:SLOW]) <= limits.head_s + 0.2
        assert max(times_s[SLOW : 2 * SLOW]) <= limits.body_stall_s + 0.2
        assert max(times_s[2 * SLOW :]) <= limits.head_s + 0.2
        assert {call.end for call in rig.backend.calls} == {"finished"}
        assert rig.calls == 20

    run(case, replace(CONFIG, health=Health(interval_s=5.0)), on=looptime.new_event_loop, limit_s=300)


def test_case_11_4_a_slow_but_steady_upload_is_served() -> None:
    """11.4, the other side: an upload above the least rate is served, however long it takes (virtual time)."""

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        body = b'{"model":"m","messages":[],"x":"%b"}' % (b"y" * 100_000)
        head, _ = peer.head("/v1/chat/completions", "POST", {"content-length": str(len(body))})
        peer.send(head)
        started_s = asyncio.get_running_loop().time()
        await drip(peer, body, 2000)
        assert (await peer.answer()).status == 200
        assert asyncio.get_running_loop().time() - started_s > 50

    run(case, replace(CONFIG, health=Health(interval_s=5.0)), on=looptime.new_event_loop, limit_s=300)
