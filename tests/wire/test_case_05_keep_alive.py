"""Failure cases, section 5: connections that the backend closes while they idle."""

import asyncio
from dataclasses import replace

import looptime
import pytest

from gateway.config import Pool
from tests.wire.kit import CONFIG, Rig, chat, run, virtual_pause
from tests.wire.scripted import Call, well

IDLE_S = 0.15
BURST = 40
BLIND_S = 0.02
EDGE_MS = (0, -18, -14, -10, -6, -4, -2, -1, 0, 1, 3)


@pytest.mark.parametrize("unproven_s", [Pool().unproven_idle_s, 10.0], ids=["default", "trusting"])
def test_case_5_1_bursts_at_the_backends_idle_limit(unproven_s: float) -> None:
    """5.1: POST bursts within milliseconds of the backend's idle limit: no error, no call twice (virtual time: a busy machine
    moves no edge).

    The backend is 20 ms away: what is sent in the last 20 ms before it closes is lost. Also with a gateway that trusts an
    idle connection until it has seen one closed.
    """

    async def case(rig: Rig) -> None:
        rig.backend.idle_s, rig.backend.blind_s = IDLE_S, BLIND_S
        peers = [await rig.connect() for _ in range(BURST)]
        if unproven_s > 1:
            # a trusting gateway may lose a request to the first close: let it see one before the edge is tried
            await asyncio.gather(*(rig.ask(chat()) for _ in range(3)))
            await virtual_pause(IDLE_S + 0.1)
        before = rig.calls
        for edge_ms in EDGE_MS:
            for peer in peers:
                peer.ask(chat("burst"))
            answers = [await peer.answer() for peer in peers]
            assert {answer.status for answer in answers} == {200}
            await virtual_pause(IDLE_S + edge_ms / 1000)
        assert rig.calls - before == BURST * len(EDGE_MS)
        assert rig.backend.partial == 0

    run(case, replace(CONFIG, pool=Pool(unproven_idle_s=unproven_s)), on=looptime.new_event_loop)


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_case_5_2_a_get_on_a_connection_that_just_closed(method: str) -> None:
    """5.2: the pooled connection closes under a request that is safe to repeat: tried once more on a fresh one.

    (/v1/models is answered by the gateway itself; what goes to backends by GET are stored responses.) DELETE changes
    something, so it is told as lost.
    """

    def play(call: Call) -> None:
        if call.method == b"POST" or len(repeated) > 1:
            call.answer(b'{"id":"resp_1","object":"response","status":"completed","output":[]}')
        else:
            repeated.append(call)
            call.close() if len(repeated) == 1 else play(call)

    repeated: list[Call] = []

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        assert (await rig.ask({"model": "m", "input": "hi"}, "/v1/responses")).status == 200
        connected = rig.backend.connected
        answer = await rig.ask(path="/v1/responses/resp_1", method=method)
        assert answer.status == (200 if method == "GET" else 502)
        assert rig.calls == (3 if method == "GET" else 2)
        assert rig.backend.connected == connected + (method == "GET")

    run(case, replace(CONFIG, pool=Pool(unproven_idle_s=5.0)))


def test_case_5_2_a_get_is_tried_again_only_once() -> None:
    """5.2: a backend that closes on every GET gets two, and the client one 502."""

    def play(call: Call) -> None:
        call.close() if call.method == b"GET" else call.answer(b'{"id":"resp_1","object":"response"}')

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        assert (await rig.ask({"model": "m", "input": "hi"}, "/v1/responses")).status == 200
        assert (await rig.ask(path="/v1/responses/resp_1", method="GET")).status == 502
        assert rig.calls == 3

    run(case, replace(CONFIG, pool=Pool(unproven_idle_s=5.0)))


def test_case_5_2_models_need_no_backend() -> None:
    """5.2: GET /v1/models is answered by the gateway, whatever the backend's connections do."""

    async def case(rig: Rig) -> None:
        rig.backend.idle_s = 0.001
        rig.backend.play = well
        for _ in range(10):
            answer = await rig.ask(path="/v1/models", method="GET")
            assert (answer.status, [card["id"] for card in answer.json["data"]]) == (200, ["m"])
        assert rig.calls == 0

    run(case)
