"""Failure cases, section 1: streaming and SSE framing (1.6, a proxy in front, is with the tools)."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import looptime
import openai
import pytest
import uvloop

from gateway.config import Health, Timeouts
from tests.wire.kit import CONFIG, Rig, chat, run, virtual_pause
from tests.wire.scripted import DONE, FINISH, STREAM, Call, chunk, event

TEXT = "한글😀끝"
EVENTS = (event(TEXT), event(TEXT[::-1]), FINISH, DONE)


@pytest.mark.parametrize("on", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_case_1_1_every_byte_in_a_chunk_of_its_own(on: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """1.1: a stream whose every byte is a chunk arrives byte for byte; no character is broken."""
    whole = b"".join(EVENTS)

    async def play(call: Call) -> None:
        call.start_events()
        for i in range(len(whole)):
            call.write(chunk(whole[i : i + 1]))
            await asyncio.sleep(0)
        call.end_events()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        answer = await rig.ask(chat(stream=True, stream_options={"include_usage": True}))
        assert answer.whole
        assert answer.body == whole
        assert answer.body.decode().count(TEXT) == 1

    run(case, on=on)


@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_case_1_2_a_giant_line(size: int) -> None:
    """1.2: one data line of 300 KB or 3 MB passes whole; past the hold limit it goes out before its end is there."""
    giant = event("x" * size)
    whole = giant + FINISH + DONE
    on_its_way = asyncio.Event()

    async def play(call: Call) -> None:
        call.start_events()
        for at in range(0, len(giant), 16384):
            if at > 200_000:
                await on_its_way.wait()
            call.write(chunk(giant[at : at + 16384]))
            await call.drained()
        call.end_events(FINISH, DONE)

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        peer = await rig.connect()
        peer.ask(chat(stream=True))
        await peer.seen(b"x" * 70_000)
        on_its_way.set()
        answer = await peer.answer()
        assert answer.whole
        assert answer.body == whole

    run(case)


def test_case_1_3_a_backend_silent_for_long_with_default_limits() -> None:
    """1.3: 40 s of silence before and between events: the gateway adds nothing, and the SDK finishes (virtual time)."""
    numbered = [b"id: %d\n%b" % (i, one) for i, one in enumerate((*STREAM, DONE))]

    async def play(call: Call) -> None:
        call_s = asyncio.get_running_loop().time()
        for i, one in enumerate(numbered):
            await virtual_pause(40)
            if i == 0:
                call.start_events()
            call.events(one)
        call.end_events()
        assert asyncio.get_running_loop().time() - call_s >= 160

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        answer = await rig.ask(chat(stream=True))
        assert answer.body == b"".join(numbered)
        client = openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0)
        async with client:
            stream = await client.chat.completions.create(**chat("hi", stream=True))
            parts = [part.choices[0].delta.content async for part in stream]
        assert "".join(filter(None, parts)) == "hello"

    run(case, replace(CONFIG, health=Health(interval_s=30.0)), on=looptime.new_event_loop, limit_s=3600)


@pytest.mark.parametrize("cut", ["clean end", "closed", "reset", "silence"])
def test_case_1_4_a_stream_without_its_end(cut: str) -> None:
    """1.4: events, then an end without finish_reason and [DONE]: one error event, nothing invented, counted as failed."""
    sent = [event(f"part {i}") for i in range(3)]

    async def play(call: Call) -> None:
        call.start_events()
        call.events(*sent)
        if cut == "clean end":
            call.end_events()
        elif cut == "silence":
            await call.gone.wait()
        else:
            await _read_by_client.wait()
            call.close() if cut == "closed" else call.reset()

    _read_by_client = asyncio.Event()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        peer = await rig.connect()
        request_id = peer.ask(chat(stream=True))
        await peer.seen(b"part 2")
        _read_by_client.set()
        answer = await peer.answer()
        *relayed, error = answer.events
        assert relayed == sent
        assert error.startswith(b'data: {"error":{')
        assert b'"finish_reason":"' not in answer.body
        assert b"[DONE]" not in answer.body
        assert not answer.whole
        line = await rig.access(request_id)
        assert line["end"] == "failed_in_stream"
        assert line["events"] == 3
        assert 'end="failed_in_stream"' in await rig.metrics()

    run(case, replace(CONFIG, timeouts=Timeouts(idle_s=0.2)))


@pytest.mark.parametrize("face", ["/v1/chat/completions", "/v1/messages"])
def test_case_1_4_a_cut_inside_an_event_that_is_partly_out(face: str) -> None:
    """1.4: the backend breaks in a giant event of which a part is out: nothing is added, the connection breaks."""
    part = event("x" * 200_000)[:150_000]
    on_its_way = asyncio.Event()

    async def play(call: Call) -> None:
        call.start_events()
        call.events(event("first"), part)
        await on_its_way.wait()
        call.reset()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        peer = await rig.connect()
        request_id = peer.ask(chat(stream=True), face)
        await peer.seen(b"x" * 100_000)
        on_its_way.set()
        answer = await peer.answer()
        assert not answer.whole
        assert (event("first") + part).startswith(answer.body)
        assert (await rig.access(request_id))["end"] == "failed_in_stream"

    run(case)


@pytest.mark.parametrize("how", ["refused", "closed at once", "reset after the body", "closed in the head", "no status line"])
def test_case_1_5_no_status_before_the_backends_own(how: str) -> None:
    """1.5: no 200 before the backend's status line is known: a JSON error with a status of its own."""

    def play(call: Call) -> None:
        if how == "closed in the head":
            call.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-")
        elif how == "no status line":
            call.write(b"\x00\x01\x02 what is this\r\n\r\n")
        if how == "reset after the body":
            call.reset()
        else:
            call.close()

    async def case(rig: Rig) -> None:
        if how == "refused":
            rig.backend.kill()
        rig.backend.play = play
        answer = await rig.ask(chat(stream=True))
        assert answer.status in (502, 503)
        assert answer.whole
        assert answer.error["type"] == "server_error"
        assert rig.calls == (0 if how == "refused" else 1)

    run(case)


def test_case_1_5_the_first_event_decides() -> None:
    """1.5: a backend that breaks behind its head, before any event, still becomes an error with a status."""

    def play(call: Call) -> None:
        call.start_events()
        call.reset()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        answer = await rig.ask(chat(stream=True))
        assert answer.status == 502
        assert answer.error["code"] == "backend_lost"

    run(case)


def test_case_1_6_events_pass_one_by_one_and_say_so() -> None:
    """1.6 without the proxy: each event passes before the next is written; the headers that keep proxies from buffering."""
    steps = [asyncio.Event() for _ in range(3)]

    async def play(call: Call) -> None:
        call.start_events()
        for i, step in enumerate(steps):
            call.events(event(f"part {i}"))
            await step.wait()
        call.end_events(FINISH, DONE)

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        peer = await rig.connect()
        peer.ask(chat(stream=True))
        for i, step in enumerate(steps):
            body = await peer.seen(b"part %d" % i)
            assert b"part %d" % (i + 1) not in body
            step.set()
        answer = await peer.answer()
        assert answer.headers[b"x-accel-buffering"] == b"no"
        assert answer.headers[b"cache-control"] == b"no-cache"

    run(case)
