"""Failure cases, section 2: clients that leave."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import looptime
import pytest
import uvloop

from gateway.config import Timeouts
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.scripted import Call, event, silent

SEEN_S = 1.0


@pytest.mark.parametrize("on", [uvloop.new_event_loop, looptime.new_event_loop], ids=["uvloop", "virtual time"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_case_2_1_the_backend_sees_a_client_leave(
    stream: bool, reset: bool, on: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """2.1: the client goes before the first byte: the backend sees it within 1 s (of virtual time, which a busy machine does
    not use up), and is not blamed."""

    async def case(rig: Rig) -> None:
        rig.backend.play = silent
        loop = asyncio.get_running_loop()
        peers = [await rig.connect() for _ in range(5)]
        ids = [peer.ask(chat(stream=stream)) for peer in peers]
        calls = await rig.backend.called(5)
        left_s = loop.time()
        for peer in peers:
            peer.leave() if reset else peer.close()
        for call in calls:
            await call.gone.wait()
        assert loop.time() - left_s < SEEN_S or on is uvloop.new_event_loop
        assert [call.end for call in calls] == ["aborted"] * 5
        replica = rig.app.plane.fleet.get("b0")
        assert replica is not None
        await until(lambda: replica.in_flight == 0)
        assert (replica.failed_total, replica.failures, replica.state) == (0, 0, "ready")
        for request_id in ids:
            line = await rig.access(request_id)
            assert (line["end"], line["reason"], line["attempts"]) == ("client_gone", "in phase sent", 1)

    run(case, on=on)


def test_case_2_2_leaving_while_in_the_queue() -> None:
    """2.2: a request whose client leaves in the queue is never sent; the next in line gets its place."""

    async def case(rig: Rig) -> None:
        rig.backend.play = silent
        first, second, third = [await rig.connect() for _ in range(3)]
        first.ask(chat("first"))
        await rig.backend.called(1)
        second_id = second.ask(chat("second"))
        third.ask(chat("third"))
        await until(lambda: rig.app.plane.held == 2)
        second.close()
        await until(lambda: rig.app.plane.held == 1)
        first.close()
        calls = await rig.backend.called(2)
        assert b"third" in calls[1].body
        line = await rig.access(second_id)
        assert (line["end"], line["reason"], line["attempts"]) == ("client_gone", "in phase queue", 0)

    run(case, spec=lambda spec: replace(spec, max_in_flight=1))


def test_case_2_2_leaving_while_the_body_is_being_read() -> None:
    """2.2: a client that leaves while a large body is scanned, slice by slice: never sent to a backend."""
    body = json.dumps({"messages": [["x"] * 200_000] * 5, "model": "m"}).encode()

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        request_id = peer.ask(body)
        await peer.drained()
        peer.close()
        line = await rig.access(request_id)
        assert (line["end"], line["reason"], line["attempts"]) == ("client_gone", "in phase parse", 0)
        assert rig.calls == 0

    run(case)


@pytest.mark.parametrize("reset", [False, True])
def test_case_2_2_leaving_while_uploading(reset: bool) -> None:
    """2.2: a client that leaves in the middle of its body: never sent to a backend, its bytes let go."""

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        head, request_id = peer.head("/v1/chat/completions", "POST", {"content-length": "100000"})
        peer.send(head, b"{" * 50_000)
        await until(lambda: rig.app.plane.held_bytes == 50_000)
        peer.leave() if reset else peer.close()
        line = await rig.access(request_id)
        assert (line["end"], line["reason"], line["attempts"]) == ("client_gone", "in phase read", 0)
        assert rig.app.plane.held_bytes == 0
        assert rig.calls == 0

    run(case)


def test_case_2_3_many_streams_left_on_a_silent_backend() -> None:
    """2.3: 200 streams left while the backend is silent: no reader stays behind (the common checks count tasks)."""
    count = 200

    async def play(call: Call) -> None:
        call.start_events()
        call.events(event("one"))
        await call.gone.wait()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        peers = [await rig.connect() for _ in range(count)]
        for peer in peers:
            peer.ask(chat(stream=True))
        for peer in peers:
            await peer.seen(b"one")
        for peer in peers:
            peer.close()
        for call in rig.backend.calls:
            await call.gone.wait()
        assert [call.end for call in rig.backend.calls] == ["aborted"] * count

    run(case, replace(CONFIG, timeouts=Timeouts(idle_s=300)))
