"""Failure cases, section 3: time-outs, in virtual time, so that the defaults and exact figures can be tried."""

import asyncio
from dataclasses import replace

import looptime
import pytest

from gateway.config import Health, Queue, Timeouts
from tests.wire.kit import CONFIG, Rig, chat, run
from tests.wire.peer import Answer
from tests.wire.scripted import Call, event, silent, well

TICK_S = 0.1
LONG_S = 300.0
CALM = replace(CONFIG, health=Health(interval_s=5.0))


def test_case_3_1_a_stopped_backend_among_three() -> None:
    """3.1: one of three is stopped: what it got ends with 504 at the limit, the others are untouched, it leaves rotation."""
    limits = Timeouts(first_byte_s=20.0, unary_s=40.0)

    async def timed(rig: Rig, stream: bool) -> tuple[Answer, float]:
        started_s = asyncio.get_running_loop().time()
        answer = await rig.ask(chat(stream=stream))
        return answer, asyncio.get_running_loop().time() - started_s

    async def case(rig: Rig) -> None:
        rig.backend.freeze()
        results = await asyncio.gather(*(timed(rig, i % 2 == 0) for i in range(100)))
        stuck = [(answer, taken_s) for answer, taken_s in results if answer.headers[b"x-leeway-backend"] == b"b0"]
        assert stuck
        for answer, taken_s in stuck:
            assert answer.status == 504
            assert answer.headers[b"x-should-retry"] == b"false"
            limit_s = limits.first_byte_s if abs(taken_s - limits.first_byte_s) < TICK_S else limits.unary_s
            assert taken_s == pytest.approx(limit_s, abs=TICK_S)
        others = [(answer, taken_s) for answer, taken_s in results if answer.headers[b"x-leeway-backend"] != b"b0"]
        assert {answer.status for answer, _ in others} == {200}
        assert max(taken_s for _, taken_s in others) < 2 * TICK_S
        assert rig.state(rig.backend) == "down"
        for _ in range(20):
            assert (await rig.ask(chat())).headers[b"x-leeway-backend"] != b"b0"

    config = replace(CONFIG, timeouts=limits, health=Health(interval_s=1.0, timeout_s=2.0))
    run(case, config, backends=3, on=looptime.new_event_loop, limit_s=LONG_S)


def test_case_3_2_a_stream_that_goes_silent_under_default_limits() -> None:
    """3.2: five events, then nothing: one in-stream error at the default idle limit, and the backend's connection is closed."""

    async def play(call: Call) -> None:
        call.start_events()
        call.events(*(event(f"part {i}") for i in range(5)))
        await call.gone.wait()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        loop = asyncio.get_running_loop()
        peer = await rig.connect()
        peer.ask(chat(stream=True))
        await peer.seen(b"part 4")
        silent_s = loop.time()
        answer = await peer.answer()
        assert 60 <= loop.time() - silent_s <= 120
        assert loop.time() - silent_s == pytest.approx(Timeouts().idle_s, abs=TICK_S)
        assert len(answer.events) == 6
        assert b'"code":"idle_timeout"' in answer.events[-1]
        assert not answer.whole
        await rig.backend.calls[0].gone.wait()
        assert rig.backend.calls[0].end == "aborted"

    run(case, CALM, on=looptime.new_event_loop, limit_s=LONG_S)


@pytest.mark.parametrize(
    ("headers", "due_s"),
    [
        ({"x-llm-d-inference-ttl": "2s"}, 2.0),
        ({"x-llm-d-inference-ttl": "1500ms"}, 1.5),
        ({"x-llm-d-inference-ttl": "1m30s"}, 60.0),
        ({"x-llm-d-inference-ttl": "soon"}, 60.0),
        ({"x-llm-d-inference-ttl": "20s", "x-stainless-read-timeout": "7"}, 7.0),
        ({"x-llm-d-inference-ttl": "3s", "x-stainless-timeout": "7.5"}, 3.0),
        ({}, 60.0),
    ],
)
def test_case_3_3_the_shortest_queue_limit_wins(headers: dict[str, str], due_s: float) -> None:
    """3.3: everything is full; a request's own queue limit and the server's: the shortest wins, and it is never sent later."""

    async def case(rig: Rig) -> None:
        rig.backend.play = silent
        loop = asyncio.get_running_loop()
        holder = await rig.connect()
        holder.ask(chat("holder"))
        await rig.backend.called(1)
        started_s = loop.time()
        answer = await rig.ask(chat("waiter"), headers=headers)
        assert loop.time() - started_s == pytest.approx(due_s, abs=TICK_S)
        assert answer.status == 503
        assert answer.error["code"] == "queue_timeout"
        assert int(answer.headers[b"retry-after"]) >= 1
        holder.close()
        await rig.backend.calls[0].gone.wait()
        rig.backend.play = well
        assert (await rig.ask(chat("later"), headers={"x-llm-d-inference-ttl": "1s"})).status == 200
        assert not any(b"waiter" in call.body for call in rig.backend.calls)

    config = replace(CALM, queue=Queue(timeout_s=60.0), timeouts=Timeouts(unary_s=LONG_S))
    run(case, config, spec=lambda spec: replace(spec, max_in_flight=1), on=looptime.new_event_loop, limit_s=LONG_S)
