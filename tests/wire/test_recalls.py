"""SGLang is told of requests whose answers nobody wants: it looks for clients that left every few seconds only."""

import asyncio
import json
from dataclasses import replace

import looptime
import pytest

from gateway.config import Health, Timeouts
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.scripted import Call, ScriptedBackend, event, well
from tests.wire.test_sglang_info import Server, sglang

COMPLETIONS = "/v1/completions"
PATH = "/v1/chat/completions"
# a probe at the same time would keep a second control connection
QUIET = replace(CONFIG, usage="off", health=Health(interval_s=60.0, timeout_s=4.0))


class Engine(Server):
    """An SGLang that does not end what it has begun, and remembers what it is to drop."""

    def __init__(self, backend: ScriptedBackend) -> None:
        super().__init__(backend)
        self.asked: list[Call] = []
        self.dropped: list[str] = []
        self.refuses = False

    async def generate(self, call: Call) -> None:
        self.asked.append(call)
        if call.stream:
            call.start_events()
            call.events(event("x"))
        await call.gone.wait()

    def play(self, call: Call) -> object:  # type: ignore[override]
        if call.target == b"/abort_request":
            if self.refuses:
                call.close()
            else:
                self.dropped.append(call.json["rid"])
                call.answer(b"")
            return None
        if b"hold" in call.body:
            return self.generate(call)
        return super().play(call)

    @property
    def ids(self) -> list[object]:
        return [call.json.get("rid") for call in self.asked]


def made() -> tuple[ScriptedBackend, Engine]:
    backend = ScriptedBackend("b0")
    return backend, Engine(backend)


@pytest.mark.parametrize("path", [PATH, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_is_told_to_the_engine(path: str, stream: bool) -> None:
    """Once at once and, since it may not have read the request by then, once more."""
    backend, engine = made()
    body = {"model": "m", "prompt": "hold", "stream": stream} if path == COMPLETIONS else chat("hold", stream=stream)

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        peer.ask(body, path)
        await until(lambda: len(engine.asked) == 1)
        (engine_id,) = engine.ids
        assert isinstance(engine_id, str)
        assert len(engine_id) == 32, "as those that the engine makes"
        assert {name: value for name, value in engine.asked[0].json.items() if name != "rid"} == body
        loop = asyncio.get_running_loop()
        left_s = loop.time()
        peer.close()
        await until(lambda: engine.dropped == [engine_id])
        assert loop.time() - left_s < 0.1
        await until(lambda: engine.dropped == [engine_id, engine_id])
        assert 0.4 < loop.time() - left_s < 2.0

    run(case, QUIET, backends=(backend,), spec=sglang, on=looptime.new_event_loop)


def test_each_has_an_id_that_begins_no_other_and_who_stays_is_not_told_of() -> None:
    """The engine drops what begins as it was told; a client's own request id may begin another's."""
    backend, engine = made()

    async def case(rig: Rig) -> None:
        assert (await rig.ask(chat("well"))).status == 200
        assert (await rig.ask(chat("well", stream=True))).status == 200
        peers = [await rig.connect() for _ in range(12)]
        for number, peer in enumerate(peers):
            peer.ask(chat("hold"), headers={"x-request-id": f"r{number}"})
        await until(lambda: len(engine.asked) == 12)
        assert len({len(str(one)) for one in engine.ids}) == 1
        assert len(set(engine.ids)) == 12
        leaving = [call.json["rid"] for call in engine.asked if call.headers[b"x-request-id"] in (b"r1", b"r10")]
        peers[1].close()
        peers[10].close()
        await until(lambda: len(engine.dropped) == 4)
        assert sorted(set(engine.dropped)) == sorted(leaving)

    run(case, QUIET, backends=(backend,), spec=sglang)


@pytest.mark.parametrize(
    "body", [chat("hold", rid="own"), chat("hold", n=2), {"model": "m", "max_tokens": 5, "messages": [{"content": "hold"}]}]
)
def test_a_client_s_own_id_and_what_has_several_stay_as_they_are(body: dict[str, object]) -> None:
    """The engine numbers several answers itself; Anthropic's messages have no such member."""
    backend, engine = made()
    path = "/v1/messages" if "max_tokens" in body else PATH

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        peer.ask(body, path)
        await until(lambda: len(engine.asked) == 1)
        assert json.loads(engine.asked[0].body) == body
        peer.close()
        await until(lambda: engine.asked[0].end == "aborted")
        assert (await rig.ask(chat("well"))).status == 200
        assert engine.dropped == []

    run(case, QUIET, backends=(backend,), spec=sglang)


def test_what_took_too_long_is_told_as_well() -> None:
    backend, engine = made()

    async def case(rig: Rig) -> None:
        assert (await rig.ask(chat("hold"))).status == 504
        await until(lambda: engine.dropped[:1] == engine.ids)

    config = replace(QUIET, timeouts=Timeouts(unary_s=0.3))
    run(case, config, backends=(backend,), spec=sglang)


def test_an_engine_that_cannot_be_told_is_not_blamed() -> None:
    backend, engine = made()
    engine.refuses = True

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        peer.ask(chat("hold"))
        await until(lambda: len(engine.asked) == 1)
        peer.close()
        await until(lambda: sum(call.target == b"/abort_request" for call in backend.calls) >= 2)
        (replica,) = rig.app.plane.fleet
        assert (replica.state, replica.failures) == ("ready", 0)

    run(case, QUIET, backends=(backend,), spec=sglang)


def test_other_engines_get_no_such_member() -> None:
    async def case(rig: Rig) -> None:
        rig.backend.play = well
        assert (await rig.ask(chat("x"))).status == 200
        assert "rid" not in rig.backend.calls[-1].json

    run(case)
