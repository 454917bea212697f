"""SGLang's own server behind the gateway: what it is, answers of all its faces, errors, clients that leave.

HTTP server, scheduler, cache and detokenizer are SGLang's; its kernels are its own plain torch code (tests/engine/sglang_cpu).
"""

import asyncio
import math
from collections.abc import Iterator

import anthropic
import openai
import pytest

from backends.base import Sizes
from backends.registry import adapter_for
from gateway.config import Admin, BackendSpec, GatewayConfig, Listen, ModelSpec
from predictor.profile import EngineLimits
from tests.engine.engine_http import STREAM_TIMEOUT_S, SURELY_S, Json, Stream, ask, half_done, wait_until, without_ids
from tests.engine.engine_run import Portal
from tests.engine.sglang_server import Front, Sglangs, SglangServer
from tests.wire.mover_kit import control_of

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
CHAT: Json = {"model": "smollm2", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
PLAIN = [
    pytest.param("/v1/chat/completions", CHAT, b"Paris", id="chat"),
    pytest.param(
        "/v1/completions",
        {"model": "smollm2", "prompt": "1, 2, 3, 4, 5, 6,", "max_tokens": 8, "temperature": 0},
        b" 7, 8",
        id="completions",
    ),
    pytest.param("/v1/messages", CHAT, b"Paris", id="messages"),
]
LONG: Json = {"model": "smollm2", "max_tokens": 1900, "ignore_eos": True}
LEAVING = [
    pytest.param("/v1/chat/completions", {**LONG, "messages": MESSAGES}, id="chat"),
    pytest.param("/v1/completions", {**LONG, "prompt": "Once upon a time"}, id="completions"),
]
TRIES = 8


def config(servers: Sglangs, *models: ModelSpec) -> GatewayConfig:
    return GatewayConfig(
        listen=Listen("127.0.0.1:0", "127.0.0.1:0"),
        backends=tuple(BackendSpec(server.model, server.url) for server in (servers.smol, servers.tiny)),
        models=models,
        admin=Admin(key="k"),
    )


@pytest.fixture(scope="module")
def front(portal: Portal, sglangs: Sglangs) -> Iterator[Front]:
    with Front(portal, config(sglangs, ModelSpec("smollm2", aliases=("alias",)))) as made:
        yield made


@pytest.fixture
def sdk(front: Front) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front.target.url}/v1", api_key="none", max_retries=0, timeout=STREAM_TIMEOUT_S) as client:
        yield client


def test_it_is_recognised_and_says_its_sizes_and_its_order(front: Front) -> None:
    found = {replica.name: replica.identity for replica in front.replicas}
    assert {(one.engine, one.version, one.kind, one.max_model_len) for one in found.values()} == {
        ("sglang", "0.5.23", "generate", 2048)
    }
    assert (found["smollm2"].models, found["tiny"].models) == (("smollm2",), ("tiny",))
    assert found["smollm2"].sizes == Sizes(768, 16, 2, 512)
    assert found["tiny"].sizes == Sizes(12288, 1, 1, 512)
    assert [replica.scheduling for replica in front.replicas] == ["priority-low-first", "priority"]
    assert all(one.body_session for one in found.values())
    smol = next(replica for replica in front.replicas if replica.name == "smollm2")
    assert front.call(lambda: front.app.plane.desks.engines.mirror(smol).limits) == EngineLimits(768, 16, 2, 512, 2048)


@pytest.mark.parametrize(("path", "body", "text"), PLAIN)
def test_plain_answer_is_the_engines(front: Front, sglangs: Sglangs, path: str, body: Json, text: bytes) -> None:
    ours, theirs = ask(front.target, "POST", path, body), ask(sglangs.smol.target, "POST", path, body)
    assert (ours.status, theirs.status) == (200, 200)
    assert text in ours.body
    assert without_ids(ours.body) == without_ids(theirs.body)


def test_openai_client_streams_with_usage_if_asked_for(sdk: openai.OpenAI) -> None:
    plain = sdk.chat.completions.create(model="alias", temperature=0, max_tokens=24, messages=MESSAGES)  # type: ignore[arg-type]
    assert plain.choices[0].message.content == "The capital of France is Paris."
    assert plain.usage is not None
    made = {"model": "smollm2", "temperature": 0, "max_tokens": 24, "messages": MESSAGES, "stream": True}
    unasked = list(sdk.chat.completions.create(**made))  # type: ignore[call-overload]
    asked = list(sdk.chat.completions.create(**made, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    for chunks in (unasked, asked):
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == plain.choices[0].message.content
    assert all(chunk.choices for chunk in unasked), "the usage chunk was ours, not the client's"
    assert asked[-1].usage == plain.usage


def test_anthropic_client_streams(front: Front) -> None:
    with (
        anthropic.Anthropic(base_url=front.target.url, api_key="none", max_retries=0, timeout=STREAM_TIMEOUT_S) as client,
        client.messages.stream(model="smollm2", max_tokens=24, messages=MESSAGES, extra_body={"temperature": 0}) as stream,  # type: ignore[arg-type]
    ):
        assert stream.get_final_text() == "The capital of France is Paris."
        assert stream.get_final_message().usage.output_tokens > 0


def test_a_stored_response_is_found_again(sdk: openai.OpenAI) -> None:
    made = sdk.responses.create(model="smollm2", input=QUESTION, temperature=0, max_output_tokens=24)
    assert "Paris" in made.output_text
    assert sdk.responses.retrieve(made.id).output_text == made.output_text


def test_tokenize_and_back(front: Front, sglangs: Sglangs) -> None:
    text: Json = {"model": "smollm2", "prompt": "Grüße, 世界"}
    ours = ask(front.target, "POST", "/tokenize", text)
    assert ours.body == ask(sglangs.smol.target, "POST", "/tokenize", text).body
    back = ask(front.target, "POST", "/detokenize", {"model": "smollm2", "tokens": ours.json()["tokens"]})
    assert "Grüße, 世界" in str(back.json())


BAD = [
    pytest.param({**CHAT, "messages": 3}, id="no messages"),
    pytest.param({**CHAT, "temperature": -1}, id="temperature"),
    pytest.param({**CHAT, "messages": [{"role": "user", "content": "word " * 4000}]}, id="too long"),
]


@pytest.mark.parametrize("body", BAD)
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
def test_errors_are_the_engines(front: Front, sglangs: Sglangs, body: Json, streamed: bool) -> None:
    asked = {**body, "stream": streamed}
    path = "/v1/chat/completions"
    failed_before = [replica.failed_total for replica in front.replicas]
    ours, theirs = ask(front.target, "POST", path, asked), ask(sglangs.smol.target, "POST", path, asked)
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    assert ours.status == 400
    assert [replica.failed_total for replica in front.replicas] == failed_before, "requests; a probe may be late"


@pytest.mark.parametrize(("path", "body"), LEAVING)
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "plain"])
def test_engine_drops_whoever_left(front: Front, sglangs: Sglangs, path: str, body: Json, streamed: bool) -> None:
    """The gateway tells it: by itself it looks 4 s after it began a plain one, and waits for 2 s on streams."""
    told = b'"POST /abort_request HTTP/1.1" 200'
    smol = sglangs.smol
    wait_until(lambda: smol.requests() == (0, 0), SURELY_S, "the engine is idle")
    told_before = smol.log_path.read_bytes().count(told)
    with half_done(front.target, path, {**body, "stream": streamed}) as connection:
        if streamed:
            assert connection.getresponse().read1(65536) != b""
        wait_until(lambda: smol.requests() == (1, 0), SURELY_S, "the request runs")
    wait_until(lambda: smol.log_path.read_bytes().count(told) > told_before, SURELY_S, "it was told")
    wait_until(lambda: smol.requests() == (0, 0), SURELY_S, "the engine has dropped it")


def checks_s(front: Front, smol: SglangServer) -> list[float]:
    """How long probes took while it computed a long prompt; none if that was over before it was seen."""
    long: Json = {**CHAT, "messages": [{"role": "user", "content": "word " * 1900}], "max_tokens": 1}

    async def looks() -> list[float]:
        async with control_of(smol.url, SURELY_S) as http:
            adapter = await adapter_for("auto", http)
            loop = asyncio.get_running_loop()
            took = []
            for _ in range(20):
                began_s = loop.time()
                await adapter.check(http)
                took.append(loop.time() - began_s)
        return took

    def between_chunks() -> bool:
        return smol.load()["num_waiting_uncached_tokens"] > 0  # type: ignore[operator]

    wait_until(lambda: smol.requests() == (0, 0), SURELY_S, "the engine is idle")
    assert ask(smol.target, "POST", "/flush_cache").status == 200
    stream = Stream(front.target, "/v1/chat/completions", long)
    wait_until(lambda: between_chunks() or not stream.is_alive(), SURELY_S, "it is between two chunks")
    took = front.run(looks()) if stream.is_alive() else []
    assert stream.result().json()["usage"]["prompt_tokens"] > 1900  # type: ignore[index]
    return took


def test_health_is_told_at_once_while_it_computes_a_long_prompt(front: Front, sglangs: Sglangs) -> None:
    """Its /health waits for tokens; a probe of ours may not. A machine that kept its server from answering is asked again."""
    slowest: list[float] = []
    while len(slowest) < TRIES and not any(seconds < 1.0 for seconds in slowest):
        slowest.append(max(checks_s(front, sglangs.smol), default=math.inf))
    assert min(slowest) < 1.0, slowest
