"""A wake-up of a real vLLM that fails in its second half: put back to sleep, its requests kept, and woken up later.

At level 2 the weights are read again between the two halves; a loader that reads none makes vLLM itself answer 500 there.
(On a CPU vLLM's sleep pauses, and keeps the weights, so that a wake-up of level 1 puts everything right.)
"""

from collections.abc import Iterator

import pytest

from backends.base import Reply
from backends.moves import MoveError, MoverSpec
from backends.vllm_sleep import VllmSleep
from gateway.swap_config import SwapSpec
from tests.engine.engine_http import SURELY_S, Stream, ask
from tests.engine.engine_run import Engines, Server, Servers
from tests.engine.test_engine_sleep import BODY, GENERATE, said
from tests.wire.mover_kit import control_of


class Sleeper:
    """Steps of movers of one engine, each with a connection of its own."""

    def __init__(self, engines: Engines, server: Server) -> None:
        self._portal, self._server = engines.portal, server
        self.holds = False

    def out(self, level: int) -> None:
        """Take it out, its requests kept; again, if a move of it stopped half way."""
        self._portal.run(self._move(level, into=False))

    def into(self, level: int) -> None:
        """Bring it back."""
        self._portal.run(self._move(level, into=True))

    async def _move(self, level: int, into: bool) -> None:
        async with control_of(self._server.url, SURELY_S) as http:
            mover = VllmSleep(MoverSpec(SwapSpec("cpu", "sleep", level=level, keeps=True), self._server.url, "smollm2"), http)
            mover.holds = self.holds
            try:
                await (mover.into(1.0) if into else mover.out(keep=not self.holds))
            finally:
                self.holds = mover.holds
                self.place = await mover.where()

    def read_by(self, load_format: str) -> Reply:
        """Its weights are, from now on, read by another loader."""
        body: dict[str, object] = {
            "method": "update_config",
            "kwargs": {"overrides": {"load_config": {"load_format": load_format}}},
        }
        return self._portal.run(self._told(body))

    async def _told(self, body: dict[str, object]) -> Reply:
        async with control_of(self._server.url, SURELY_S) as http:
            return await http.post("/collective_rpc", body)


@pytest.fixture
def sleeper(engines: Engines, servers: Servers) -> Iterator[Sleeper]:
    """It is awake afterwards, and reads as before, for whoever comes next."""
    made = Sleeper(engines, servers.smol_a)
    try:
        yield made
    finally:
        made.read_by("auto")
        ask(servers.smol_a.target, "POST", "/wake_up")


def test_whose_weights_cannot_be_read_sleeps_on_with_its_requests(sleeper: Sleeper, servers: Servers) -> None:
    engine = servers.smol_a
    undisturbed = said(Stream(engine.target, GENERATE, BODY).result())
    stream = Stream(engine.target, GENERATE, BODY)
    assert stream.first.wait(SURELY_S)
    sleeper.out(2)
    assert (sleeper.place, sleeper.holds, engine.running_requests()) == ("asleep2", False, 1)
    assert sleeper.read_by("dummy").status == 200
    with pytest.raises(MoveError, match="/collective_rpc answered 500"):
        sleeper.into(2)
    assert (sleeper.place, sleeper.holds) == ("asleep2", True), "it says that it sleeps, and its weights are there"
    sleeper.out(2)
    assert (sleeper.place, sleeper.holds, engine.running_requests()) == ("asleep2", False, 1)
    assert stream.is_alive()
    sleeper.into(1)
    assert (sleeper.place, sleeper.holds) == ("gpu", False)
    assert said(stream.result()) == undisturbed
