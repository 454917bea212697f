"""Failure cases, section 4: a request runs once."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import looptime
import pytest

from gateway.config import Health, ModelSpec, Queue, Retry
from tests.wire.kit import CONFIG, Rig, chat, run, until, virtual_pause
from tests.wire.scripted import ANSWER, Call, well


def overloaded(call: Call) -> None:
    """The play of a backend that has too much to do for 7 s."""
    call.error(429, b"retry-after: 7", b"x-ratelimit-remaining-requests: 0")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_case_4_1_a_request_that_was_read_is_not_sent_again(how: str, stream: bool) -> None:
    """4.1: the backend reads the body and closes: exactly one call among three backends, and a 502 that says so."""

    def play(call: Call) -> None:
        call.close() if how == "close" else call.reset()

    async def case(rig: Rig) -> None:
        for backend in rig.backends:
            backend.play = play
        answer = await rig.ask(chat(stream=stream))
        assert rig.calls == 1
        assert answer.status == 502
        assert "may have run" in answer.error["message"]
        assert answer.headers[b"x-should-retry"] == b"false"

    run(case, backends=3)


def test_case_4_1_a_connection_that_was_refused_is_tried_elsewhere() -> None:
    """4.1, the other side: where nothing can have run, another backend serves the request, once."""

    async def case(rig: Rig) -> None:
        rig.backends[0].kill()
        answers = await asyncio.gather(*(rig.ask(chat()) for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        assert len(rig.backends[1].calls) == 20

    run(case, backends=2)


def test_case_4_1_each_backend_is_tried_once() -> None:
    """4.1: nobody takes the connection: each backend is tried once, then the client is told."""

    async def case(rig: Rig) -> None:
        for backend in rig.backends:
            backend.kill()
        peer = await rig.connect()
        request_id = peer.ask(chat())
        answer = await peer.answer()
        assert (answer.status, answer.error["code"]) == (502, "connect_failed")
        assert b"x-should-retry" not in answer.headers
        assert (await rig.access(request_id))["attempts"] == 3

    run(case, replace(CONFIG, health=Health(interval_s=0.5, failures=50)), backends=3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 418, 500, 501])
def test_case_4_2_an_error_of_the_backend_is_passed_through(status: int, stream: bool) -> None:
    """4.2: the backend's own error: exactly one call, status and body as they were."""
    body = b'{"error":{"message":"no \xc3\xa9 %d","type":"BadRequestError","param":null,"code":%d}}' % (status, status)

    def play(call: Call) -> None:
        call.answer(body, status)

    async def case(rig: Rig) -> None:
        for backend in rig.backends:
            backend.play = play
        for count in range(1, 4):
            answer = await rig.ask(chat(stream=stream))
            assert (answer.status, answer.body) == (status, body)
            assert rig.calls == count

    run(case, backends=3)


def test_case_4_3_an_overloaded_backend_is_believed() -> None:
    """4.3: 429 with Retry-After 7: at most one other backend is asked, then none that said so for 7 s; virtual time."""

    async def case(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        for backend in rig.backends:
            backend.play = overloaded
        first = await rig.ask(chat("first"))
        assert (first.status, first.headers[b"retry-after"]) == (429, b"7")
        assert first.headers[b"x-ratelimit-remaining-requests"] == b"0"
        assert [len(backend.calls) for backend in rig.backends].count(1) == 2
        said_s = loop.time()
        second = await rig.ask(chat("second"))
        assert (second.status, second.headers[b"retry-after"]) == (429, b"7")
        assert [len(backend.calls) for backend in rig.backends] == [1, 1, 1]
        for backend in rig.backends:
            backend.play = well
        third = await rig.ask(chat("third"))  # waits in the line: all three said 7 s
        assert third.status == 200
        assert 6.9 <= loop.time() - said_s <= 7.2
        assert rig.calls == 4

    config = replace(CONFIG, health=Health(interval_s=5.0), queue=Queue(timeout_s=30.0))
    run(case, config, backends=3, on=looptime.new_event_loop, limit_s=300)


def test_case_4_3_another_backend_serves_what_one_is_too_busy_for() -> None:
    """4.3: one backend says 429, another is free: the client gets its answer after two calls."""

    async def case(rig: Rig) -> None:
        rig.backends[0].play = overloaded
        while not rig.backends[0].calls:
            before = rig.calls
            answer = await rig.ask(chat())
            assert (answer.status, answer.body) == (200, ANSWER)
        assert rig.calls == before + 2
        assert answer.headers[b"x-leeway-backend"] == b"b1"

    run(case, backends=2)


def test_case_4_3_second_attempts_have_a_budget() -> None:
    """4.3: a fleet that is always overloaded gets at most ratio x requests + burst second attempts."""

    def play(call: Call) -> None:
        call.error(429, b"retry-after: 0")

    async def case(rig: Rig) -> None:
        for backend in rig.backends:
            backend.play = play
        for _ in range(30):
            assert (await rig.ask(chat())).status == 429
        assert 30 <= rig.calls <= 30 + 3 + 2

    config = replace(CONFIG, health=Health(interval_s=5.0), retry=Retry(attempts=2, ratio=0.1, burst=2))
    run(case, config, backends=2, on=looptime.new_event_loop, limit_s=300)


@pytest.mark.parametrize(("strict", "status", "calls"), [("true", 429, 1), ("false", 200, 2)])
def test_what_is_strict_is_not_begun_again_too_late_for_its_promise(strict: str, status: int, calls: int) -> None:
    """An engine says 429 when half of the time is left that computing the prompt takes alone."""
    tell = asyncio.Event()

    async def busy(call: Call) -> None:
        await tell.wait()
        overloaded(call)

    async def case(rig: Rig) -> None:
        def play(call: Call) -> Awaitable[None] | None:
            if rig.calls == 1:
                return busy(call)
            well(call)
            return None

        for backend in rig.backends:
            backend.play = play
        headers = {"x-slo-ttft-ms": "30000", "x-leeway-strict": strict}
        asked = asyncio.create_task(rig.ask(chat("x" * 400_000), headers=headers))
        await until(lambda: rig.calls == 1)
        (placement,) = rig.app.plane.underway._placements.values()
        account = placement.account
        assert 0.1 < account.work_s < 29.0, "there was time enough when it was begun"
        await virtual_pause(account.deadline_s - 0.5 * account.work_s - rig.app.plane.now())
        tell.set()
        answer = await asked
        assert (answer.status, rig.calls) == (status, calls)

    config = replace(CONFIG, models=(ModelSpec("m", "plan"),), health=Health(interval_s=5.0))
    run(case, config, backends=2, on=looptime.new_event_loop, limit_s=300)
