"""SGLang's model out of its memory and back by its own routes, with requests kept inside; paused by others; drained.

The memory saver is a stand-in that gives a process's memory back to the system (tests/engine/sglang_cpu): what SGLang asks
of it, and when, is SGLang's own.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from backends.movers import mover_for
from backends.moves import Mover
from gateway.config import Admin, BackendSpec, GatewayConfig, Health, Listen
from tests.engine.engine_http import SURELY_S, Answer, Json, Stream, ask, wait_until
from tests.engine.engine_run import Portal
from tests.engine.sglang_server import Front, Sglangs, SglangServer
from tests.wire.mover_kit import control_of, spec

PATH = "/v1/completions"
TOKENS = {"smollm2": 150, "tiny": 1500}  # some seconds of work
TRIES = 8
SAME_CHARACTERS = 100
# SmolLM2-135M's weights stay in memory, its KV of 12288 tokens goes (283 million); both of the tiny one go (13 million).
LEAST_BYTES = {"smollm2": 150_000_000, "tiny": 5_000_000}


def asked(server: SglangServer, tokens: int) -> Json:
    text = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"
    usage = {"include_usage": True}
    made = {"model": server.model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {**made, "stream": True, "stream_options": usage}


def said(answer: Answer) -> str:
    *events, last = answer.events()
    assert (answer.status, answer.broken, last) == (200, False, b"data: [DONE]")
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


def alike(text: str, undisturbed: str) -> bool:
    """The same for far longer than what was out before: KV computed anew may tip a choice between two tokens later on, where
    wrong weights or none would say something else at once."""
    return text[:SAME_CHARACTERS] == undisturbed[:SAME_CHARACTERS]


def moved(server: SglangServer, level: int, work: Callable[[Mover], Awaitable[None]]) -> None:
    """Do that with a mover of that server."""

    async def run() -> None:
        limits = {"start_s": SURELY_S, "stop_s": SURELY_S}
        async with control_of(server.url, SURELY_S) as http:
            await work(mover_for(spec("memory", server.url, server.model, level=level, keeps=True, **limits), http))

    asyncio.run(run())


@pytest.fixture(params=[("smollm2", 1), ("tiny", 2)], ids=["weights kept", "weights lost"])
def level(request: pytest.FixtureRequest, sglangs: Sglangs) -> tuple[SglangServer, int]:
    name, level = request.param
    return (sglangs.smol if name == "smollm2" else sglangs.tiny), level


def test_requests_stay_inside_while_its_memory_is_away(level: tuple[SglangServer, int]) -> None:
    """A request that was over before the server found time for the mover is asked for again."""
    server, of = level
    tokens = TOKENS[server.model]
    undisturbed = said(Stream(server.target, PATH, asked(server, tokens)).result())

    async def out(mover: Mover) -> None:
        assert await mover.where() == "gpu"
        await mover.out(keep=True)
        assert await mover.where() == f"asleep{of}"

    async def into(mover: Mover) -> None:
        assert await mover.where() == f"asleep{of}"  # by another gateway, as far as this one knows
        await mover.into(1.0)
        assert await mover.where() == "gpu"

    freed = 0
    for _ in range(TRIES):
        held = server.memory_bytes()
        running = Stream(server.target, PATH, asked(server, tokens))
        assert running.first.wait(SURELY_S)
        moved(server, of, out)
        freed = max(freed, held - server.memory_bytes())  # what comes back is in memory once it is used
        if running.is_alive():
            break
        moved(server, of, into)
    else:
        raise AssertionError("each time it was over before it could be paused")
    waiting = Stream(server.target, PATH, asked(server, 5))
    moved(server, of, into)
    assert alike(said(running.result()), undisturbed)
    assert undisturbed.startswith(said(waiting.result()))
    assert freed > LEAST_BYTES[server.model]
    listed = ask(server.target, "GET", "/v1/models").json()["data"][0]["id"]  # type: ignore[index]
    # weights read again take their path for a name, which is why a backend that moves names its model itself
    assert listed == server.model if of == 1 else listed.endswith(f"/{server.model}")


def test_a_paused_server_gets_nothing_and_is_found_again(portal: Portal, sglangs: Sglangs) -> None:
    """As when somebody else loads new weights into it: told at once, and no trial reaches it meanwhile."""
    server = sglangs.tiny
    config = GatewayConfig(
        listen=Listen("127.0.0.1:0", "127.0.0.1:0"),
        backends=(BackendSpec("gen", server.url, models=(server.model,)),),
        health=Health(interval_s=0.1),
        admin=Admin(key="k"),
    )
    with Front(portal, config) as front:
        (replica,) = front.replicas
        assert ask(server.target, "POST", "/pause_generation", {"mode": "in_place"}).status == 200
        try:
            wait_until(lambda: (replica.state, replica.reason) == ("down", "generation is paused"), SURELY_S, "it is known")
            since_s = replica.last_probe_s
            wait_until(lambda: replica.last_probe_s > since_s + 1.0, SURELY_S, "it was asked again, often")
            assert replica.state == "down"
        finally:
            assert ask(server.target, "POST", "/continue_generation", {}).status == 200
        wait_until(lambda: replica.state == "ready", SURELY_S, "it is found again")
        assert said(Stream(front.target, PATH, asked(server, 5)).result())


def test_a_drained_server_ends_what_it_has(portal: Portal, sglangs: Sglangs) -> None:
    server = sglangs.tiny
    config = GatewayConfig(
        listen=Listen("127.0.0.1:0", "127.0.0.1:0"),
        backends=(BackendSpec("gen", server.url, models=(server.model,)),),
        admin=Admin(key="k"),
    )
    with Front(portal, config) as front:
        stream = Stream(front.target, PATH, asked(server, 1500))
        assert stream.first.wait(SURELY_S)
        front.call(lambda: front.app.operations.drain("gen", 60.0))
        assert ask(front.target, "POST", PATH, asked(server, 5)).status in (404, 503)
        assert said(stream.result())
        (replica,) = front.replicas
        wait_until(lambda: (replica.state, replica.in_flight) == ("draining", 0), SURELY_S, "it has none any more")


def test_a_killed_server_ends_its_streams_and_is_used_again(portal: Portal, sglangs: Sglangs) -> None:
    server = sglangs.tiny
    config = GatewayConfig(
        listen=Listen("127.0.0.1:0", "127.0.0.1:0"), backends=(BackendSpec("gen", server.url),), admin=Admin(key="k")
    )
    with Front(portal, config) as front:
        (replica,) = front.replicas
        stream = Stream(front.target, PATH, {**asked(server, 1900), "model": replica.identity.models[0]})
        assert stream.first.wait(SURELY_S)
        server.kill()
        answer = stream.result()
        assert answer.broken
        assert b'"error"' in answer.events()[-1]
        assert b"[DONE]" not in answer.body
        wait_until(lambda: replica.state == "down", SURELY_S, "it is known")
        server.start()
        server.wait_ready()
        wait_until(lambda: replica.state == "ready", SURELY_S, "it is found again")
        wait_until(lambda: replica.identity.models == ("tiny",), SURELY_S, "under its own name")
        assert said(Stream(front.target, PATH, asked(server, 5)).result())
