"""Budgets in a running SGLang's own queue: who must start first runs first, by either sign, over running ones if need be."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway.config import Admin, BackendSpec, GatewayConfig, Listen
from tests.engine.engine_http import SURELY_S, Answer, Json, Stream, half_done, wait_until
from tests.engine.engine_run import Portal
from tests.engine.sglang_server import Front, Sglangs, SglangServer

PATH = "/v1/completions"
TOKENS = {"smollm2": 100, "tiny": 1500}  # more than some seconds of work
SAME_CHARACTERS = 40  # what is computed anew may tip a choice between two tokens later on
HOLD_TOKENS = 1950  # until they are left
TRIES = 8
TIGHTEST, TIGHT = {"x-slo-ttft-ms": "1000"}, {"x-slo-ttft-ms": "5000"}


@pytest.fixture(scope="module", params=["smollm2", "tiny"])
def behind(request: pytest.FixtureRequest, portal: Portal, sglangs: Sglangs) -> Iterator[tuple[Front, SglangServer, int]]:
    """(a gateway before one server, that server, how many it runs at a time)."""
    server, at_once = (sglangs.smol, 2) if request.param == "smollm2" else (sglangs.tiny, 1)
    config = GatewayConfig(
        listen=Listen("127.0.0.1:0", "127.0.0.1:0"),
        backends=(BackendSpec("gen", server.url, models=(server.model,)),),
        admin=Admin(key="k"),
    )
    with Front(portal, config) as front:
        yield front, server, at_once


# So sure of itself that what is computed anew tips no choice.
SURE = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"


def asked(server: SglangServer, tokens: int, text: str = SURE) -> Json:
    usage = {"include_usage": True}
    made = {"model": server.model, "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {**made, "stream": True, "stream_options": usage}


def said(answer: Answer) -> tuple[str, int]:
    """(text, tokens) of a stream that was whole."""
    *events, last = answer.events()
    assert (answer.status, answer.broken, last) == (200, False, b"data: [DONE]")
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    return text, chunks[-1]["usage"]["completion_tokens"]


def order_of_those_who_wait(front: Front, server: SglangServer, at_once: int) -> list[str]:
    """Whose first token came when, after one place was given up; none if somebody began before that."""
    asks = {"late": {"x-slo-ttft-ms": "28000"}, "unpromised": {}, "soon": TIGHT}
    tokens = {"smollm2": 8, "tiny": 60}[server.model]
    waiting: dict[str, Stream] = {}

    def begun() -> bool:
        return any(stream.first.is_set() for stream in waiting.values())

    wait_until(lambda: server.requests() == (0, 0), SURELY_S, "the engine is idle")
    with ExitStack() as stack:
        held = [half_done(front.target, PATH, asked(server, HOLD_TOKENS), TIGHTEST) for _ in range(at_once)]
        holders = [stack.enter_context(one) for one in held]
        wait_until(lambda: server.requests() == (at_once, 0), SURELY_S, "its places are taken")
        for name, headers in asks.items():
            waiting[name] = Stream(front.target, PATH, asked(server, tokens, name), headers)
            wait_until(lambda: server.requests() == (at_once, len(waiting)) or begun(), SURELY_S, "it waits")
        early = begun()
        holders[0].close()
        assert all(said(stream.result())[1] == tokens for stream in waiting.values())
    return [] if early else sorted(waiting, key=lambda name: waiting[name].first_s)


def test_whoever_must_start_first_runs_first(behind: tuple[Front, SglangServer, int]) -> None:
    """All places are held by requests whose turn was before theirs; one becomes free for all who wait. Once more, where those
    that held them were over too soon."""
    front, server, at_once = behind
    orders: list[list[str]] = []
    while len(orders) < TRIES and not any(orders):
        orders.append(order_of_those_who_wait(front, server, at_once))
    assert orders[-1] == ["soon", "late", "unpromised"]


def test_the_urgent_one_takes_the_place_of_a_running_one(behind: tuple[Front, SglangServer, int]) -> None:
    """Whose work is computed anew, and whose client gets the same text. Once more, where that was over too soon."""
    front, server, at_once = behind
    wait_until(lambda: server.requests() == (0, 0), SURELY_S, "the engine is idle")
    undisturbed = said(Stream(front.target, PATH, asked(server, TOKENS[server.model])).result())
    for _ in range(TRIES):
        running = [Stream(front.target, PATH, asked(server, TOKENS[server.model])) for _ in range(at_once)]
        assert all(stream.first.wait(SURELY_S) for stream in running)
        urgent = Stream(front.target, PATH, asked(server, 8, "Now"), TIGHT)
        assert said(urgent.result())[1] == 8
        passed = all(stream.is_alive() for stream in running)
        ends = [said(stream.result()) for stream in running]
        assert [count for _, count in ends] == [undisturbed[1]] * at_once
        if server.model == "smollm2":  # random weights are sure of nothing
            assert [text[:SAME_CHARACTERS] for text, _ in ends] == [undisturbed[0][:SAME_CHARACTERS]] * at_once
        if passed:
            return
    raise AssertionError("it waited until somebody was done")
