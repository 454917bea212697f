"""Whether an SGLang server is well, by routes that answer at once: /health waits for tokens, and hangs while it is paused."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import looptime
import pytest

from gateway.config import Health
from tests.wire.kit import CONFIG, Rig, run, until
from tests.wire.scripted import Call, ScriptedBackend, well

QUICK = replace(CONFIG, health=Health(interval_s=0.1, timeout_s=0.5))
UP = {b"/ready": 200, b"/ping": 200, b"/health": 200}
PAUSED = {b"/ready": 503, b"/ping": 200}
STARTING = {b"/ready": 503, b"/ping": 503, b"/health": 503}
DOUBTED = {b"/ready": 503, b"/ping": 503, b"/health": 200}
OLDER = {b"/ready": 404, b"/health": 200}


class Server:
    """SGLang's routes by their status; one that is not there hangs."""

    def __init__(self, backend: ScriptedBackend, statuses: dict[bytes, int]) -> None:
        self.statuses = statuses
        self.asked: list[bytes] = []
        self._others = backend._utility
        backend.play = backend.get = self.play

    def play(self, call: Call) -> None:
        self.asked.append(call.target)
        if call.target == b"/model_info":
            call.answer(b'{"is_generation":true}')
        elif call.target == b"/server_info":
            call.answer(b'{"version":"0.5.23"}')
        elif call.method == b"POST":
            well(call)
        elif call.target not in UP:
            call.answer(self._others(call.target))
        elif call.target in self.statuses:
            call.answer(b"", self.statuses[call.target])


def probed(backend: ScriptedBackend, case: Callable[[Rig], Awaitable[None]]) -> None:
    """That, while it is probed as an SGLang server, in virtual time."""
    run(
        case,
        QUICK,
        backends=(backend,),
        spec=lambda made: replace(made, engine="sglang"),
        on=looptime.new_event_loop,
        limit_s=300.0,
    )


@pytest.mark.parametrize("ill", [PAUSED, STARTING], ids=["paused", "starting"])
def test_one_that_is_not_ready_gets_nothing_though_it_lists_its_models(ill: dict[bytes, int]) -> None:
    backend = ScriptedBackend("b0")
    server = Server(backend, UP)

    async def case(rig: Rig) -> None:
        (replica,) = rig.app.plane.fleet
        for _ in range(2):
            server.statuses = ill
            await until(lambda: replica.state == "down", limit_s=60.0)
            server.asked.clear()
            await until(lambda: len(server.asked) > 30, limit_s=60.0)
            assert replica.state == "down", "no trial meanwhile"
            server.statuses = UP
            await until(lambda: replica.state == "ready", limit_s=60.0)

    probed(backend, case)
    assert (b"/health" in server.asked) == (ill is STARTING)


@pytest.mark.parametrize("well_told", [UP, DOUBTED, OLDER], ids=["ready", "unhealthy for its last prober", "older"])
def test_health_is_asked_only_where_the_others_do_not_tell(well_told: dict[bytes, int]) -> None:
    backend = ScriptedBackend("b0")
    server = Server(backend, well_told)

    async def case(rig: Rig) -> None:
        (replica,) = rig.app.plane.fleet
        await until(lambda: len(server.asked) > 30, limit_s=60.0)
        assert replica.state == "ready"

    probed(backend, case)
    assert (b"/health" in server.asked) == (well_told is not UP)
