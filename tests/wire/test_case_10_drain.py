"""Failure cases, section 10.5: what SIGTERM does to streams, tried on a process of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.wire.kit import chat
from tests.wire.peer import Peer
from tests.wire.scripted import DONE, FINISH, Held, ScriptedBackend, event
from tests.wire.served import Served, served

STREAMS = 50

Use = Callable[[Served, ScriptedBackend, list[Peer], asyncio.Event], Awaitable[None]]


def with_streams(tmp_path: Path, drain_s: float, use: Use) -> None:
    """Run a test body with many streams in flight; each ends once the event is set."""
    play = Held(begun=True)

    async def main() -> None:
        backend = ScriptedBackend("b0")
        await backend.start()
        backend.play = play
        async with served(tmp_path, f"[timeouts]\ndrain_s = {drain_s}", backend) as gateway:
            peers = [await gateway.connect() for _ in range(STREAMS)]
            for peer in peers:
                peer.ask(chat(stream=True))
            for peer in peers:
                await peer.seen(b"begun")
            await use(gateway, backend, peers, play.go_on)
        await backend.close()

    async def limited() -> None:
        async with asyncio.timeout(120):
            await main()

    asyncio.run(limited())


def check_ends(gateway: Served, end: str) -> None:
    """Every stream had this end."""
    ends = [line["end"] for line in gateway.log if line["event"] == "request" and line["route"] == "chat"]
    assert ends == [end] * STREAMS


def test_case_10_5_streams_outlive_sigterm(tmp_path: Path) -> None:
    """10.5: SIGTERM with 50 streams: the listener closes at once, idle connections too, the streams finish, exit code 0."""

    async def use(gateway: Served, backend: ScriptedBackend, peers: list[Peer], go_on: asyncio.Event) -> None:
        idle = await gateway.connect()
        idle.ask(path="/livez", method="GET")
        assert (await idle.answer()).status == 200
        gateway.terminate()
        await gateway.event("draining")
        assert await idle.ended() == b""
        with pytest.raises(OSError, match="Connect call failed"):
            await gateway.connect()
        go_on.set()
        for peer in peers:
            answer = await peer.answer()
            assert answer.whole
            assert answer.events == [event("begun"), event("x"), FINISH, DONE]
        assert await gateway.ended() == 0
        check_ends(gateway, "complete")

    with_streams(tmp_path, 20, use)


def test_case_10_5_the_drain_limit_gives_each_stream_one_error(tmp_path: Path) -> None:
    """10.5: at the drain limit each open stream gets one error event; the exit code is still 0."""

    async def use(gateway: Served, backend: ScriptedBackend, peers: list[Peer], go_on: asyncio.Event) -> None:
        gateway.terminate()
        for peer in peers:
            answer = await peer.answer()
            assert len(answer.events) == 2
            assert b'"code":"shutting_down"' in answer.events[1]
            assert not answer.whole
        assert await gateway.ended() == 0
        check_ends(gateway, "failed_in_stream")
        for call in backend.calls:
            await call.gone.wait()

    with_streams(tmp_path, 0.2, use)


def test_case_10_5_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    """10.5: whoever does not want to wait sends SIGTERM again; the exit code is 0."""

    async def use(gateway: Served, backend: ScriptedBackend, peers: list[Peer], go_on: asyncio.Event) -> None:
        gateway.terminate()
        await gateway.event("draining")
        gateway.terminate()
        assert await gateway.ended() == 0
        for peer in peers:
            assert not (await peer.answer()).whole

    with_streams(tmp_path, 60, use)
