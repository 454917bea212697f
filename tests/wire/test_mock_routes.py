"""The simulated engine's routes, refusals, pooling face, metrics and manners under load."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import aiohttp
import pytest

from backends.mock import MockConfig, MockEngine, serve_mock
from predictor.profile import EngineLimits, StepProfile, preset

INSTANT = MockConfig(name="sim-a", models=("demo", "alias"), profile=preset("instant").profile, limits=preset("instant").limits)
SMALL = replace(INSTANT, limits=EngineLimits(64, 16, 8, 256, 1000))
POOLING = replace(INSTANT, pooling=True)
CHAT = "/v1/chat/completions"
HELLO = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}

Use = Callable[[aiohttp.ClientSession, MockEngine], Awaitable[None]]


def with_engine(use: Use, config: MockConfig = INSTANT) -> None:
    """Run a test body with a client of a fresh engine."""

    async def run() -> None:
        async with MockEngine(config) as engine, aiohttp.ClientSession(engine.url) as client:
            await asyncio.wait_for(use(client, engine), 120)

    asyncio.run(run())


async def call(client: aiohttp.ClientSession, path: str, body: object = None, **kwargs: object) -> tuple[int, object]:
    """POST a body, or GET without one; the status and the JSON answer, if it is JSON."""
    method = "GET" if body is None else "POST"
    async with client.request(method, path, json=body, **kwargs) as response:  # type: ignore[arg-type]
        is_json = response.content_type == "application/json"
        return response.status, await response.json() if is_json else await response.text()


@pytest.mark.parametrize(
    ("path", "status", "answer"),
    [
        ("/health", 200, ""),
        ("/ping", 200, ""),
        ("/version", 200, {"version": "0.32.0"}),
        ("/load", 200, {"server_load": 0}),
        ("/is_sleeping", 200, {"is_sleeping": False}),
        ("/is_paused", 200, {"is_paused": False}),
        ("/nowhere", 404, {"error": {"message": "Not Found", "type": "Not Found", "param": None, "code": 404}}),
        ("/score", 404, {"error": {"message": "Not Found", "type": "Not Found", "param": None, "code": 404}}),
    ],
)
def test_plain_routes(path: str, status: int, answer: object) -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        assert await call(client, path) == (status, answer)

    with_engine(use)


def test_every_name_is_listed_and_served() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        _, models = await call(client, "/v1/models")
        assert [(model["id"], model["root"]) for model in models["data"]] == [("demo", "demo"), ("alias", "demo")]
        _, answer = await call(client, CHAT, {**HELLO, "model": "alias", "max_tokens": 1})
        assert answer["model"] == "alias"
        _, info = await call(client, "/server_info")
        assert info["vllm_config"]["scheduler_config"]["max_num_batched_tokens"] == 8192

    with_engine(use)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param"),
    [
        (CHAT, {**HELLO, "model": "other"}, 404, "NotFoundError", "model"),
        (CHAT, {**HELLO, "max_tokens": 1000}, 400, "BadRequestError", "input_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 4000}]}, 400, "BadRequestError", "input_tokens"),
        (CHAT, {**HELLO, "max_tokens": "many"}, 400, "Bad Request", "max_tokens"),
        (CHAT, {**HELLO, "max_tokens": 0}, 400, "Bad Request", "max_tokens"),
        (CHAT, {**HELLO, "stream": "yes"}, 400, "Bad Request", "stream"),
        (CHAT, {**HELLO, "messages": []}, 400, "Bad Request", "messages"),
        (CHAT, {**HELLO, "messages": [{"content": "x"}]}, 400, "Bad Request", "messages[0].role"),
        (CHAT, {**HELLO, "messages": ["x"]}, 400, "Bad Request", "messages"),
        (CHAT, {**HELLO, "messages": [{"role": "user", "content": 5}]}, 400, "Bad Request", "messages[0].content"),
        (CHAT, {**HELLO, "tool_choice": "required"}, 400, "BadRequestError", "tool_choice"),
        (CHAT, {**HELLO, "vllm_xargs": {"a": {"b": 1}}}, 400, "Bad Request", "vllm_xargs"),
        (CHAT, {**HELLO, "n": 500}, 400, "BadRequestError", "n"),
        (CHAT, {**HELLO, "min_tokens": 9, "max_tokens": 8}, 400, "BadRequestError", "min_tokens"),
        ("/v1/completions", {"model": "demo"}, 400, "Bad Request", "prompt"),
        ("/v1/completions", {"prompt": [[]]}, 400, "Bad Request", "prompt"),
        ("/v1/responses", {"input": 5}, 400, "Bad Request", "input"),
        ("/v1/responses", {"input": "x", "previous_response_id": "resp_0"}, 404, "NotFoundError", "response_id"),
        ("/tokenize", {"model": "demo"}, 400, "Bad Request", "prompt"),
        ("/pause?mode=perhaps", {}, 400, "BadRequestError", "mode"),
    ],
)
def test_refusals(path: str, body: object, status: int, kind: str, param: str) -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        got, answer = await call(client, path, body)
        error = answer["error"]
        assert (got, error["type"], error["param"], error["code"]) == (status, kind, param, status), error
        assert engine.in_flight == 0
        assert engine.finished == 0

    with_engine(use, SMALL)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"nope", b"[" * 100_000, b'{"a": "\xff"}'])
def test_bodies_that_are_no_json_object(data: bytes) -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        async with client.post(CHAT, data=data) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "Bad Request"

    with_engine(use)


def test_json_that_only_lenient_parsers_take_is_served() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        data = b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 2, "big": 1' + b"0" * 400 + b"}"
        async with client.post(CHAT, data=data) as response:
            assert response.status == 200
        async with client.post(CHAT, data=data.replace(b'"big"', b'"model": "\\ud800", "big"')) as response:
            assert response.status == 404
            assert "\ud800" in (await response.json())["error"]["message"]

    with_engine(use)


def test_the_key_guards_v1_only() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        assert await call(client, "/v1/models") == (401, {"error": "Unauthorized"})
        wrong = {"Authorization": "Bearer other"}
        assert (await call(client, "/v1/models", headers=wrong))[0] == 401
        assert (await call(client, "/v1/models", headers={"Authorization": "Bearer key-1"}))[0] == 200
        assert (await call(client, "/health"))[0] == 200
        assert "key-1" not in repr(engine.config)

    with_engine(use, replace(INSTANT, api_key="key-1"))


def test_what_a_gateway_attaches_is_recorded() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        extra = {"vllm_xargs": {"leeway_v": 1, "tags": ["a", 2]}, "kv_transfer_params": {"x": {"y": 1}}, "priority": 5}
        headers = {"X-Request-Id": "abc", "X-Vllm-Priority": "-1795962961000", "X-Other": "o"}
        _, answer = await call(client, CHAT, {**HELLO, **extra, "max_tokens": 3}, headers=headers)
        assert answer["id"] == "chatcmpl-abc"
        seen = engine.recent[-1]
        assert (seen.path, seen.request_id, seen.model, seen.max_tokens, seen.stream) == (CHAT, "abc", "demo", 3, False)
        assert (seen.priority, seen.vllm_xargs) == (-1795962961000, extra["vllm_xargs"])
        assert seen.kv_transfer_params == extra["kv_transfer_params"]
        assert seen.headers["x-other"] == "o"
        await call(client, CHAT, {**HELLO, "priority": 7})
        assert engine.recent[-1].priority == 7
        for _ in range(3):
            await call(client, CHAT, {**HELLO, "max_tokens": 1})
        assert len(engine.recent) == 4
        assert engine.requests_seen == 5

    with_engine(use, replace(INSTANT, recent_requests_max=4))


def test_replicas_say_the_same_but_not_equally_much() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        async with (
            MockEngine(replace(INSTANT, name="sim-b", seed=1)) as other,
            aiohttp.ClientSession(other.url) as there,
        ):
            answers = [(await call(session, CHAT, HELLO))[1] for session in (client, there, client)]
        texts = [answer["choices"][0]["message"]["content"] for answer in answers]
        assert texts[0] == texts[2] != texts[1]
        shorter, longer = sorted(texts[:2], key=len)
        assert longer.startswith(shorter)

    with_engine(use)


def test_tokens_there_and_back() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        _, there = await call(client, "/tokenize", {"model": "demo", "prompt": "Grüße 😀"})
        assert there["count"] == len(there["tokens"]) == 3
        assert there["max_model_len"] == 131072
        assert (await call(client, "/detokenize", {"tokens": there["tokens"]}))[1] == {"prompt": "Grüße 😀"}
        _, counted = await call(client, "/tokenize", HELLO)
        _, answer = await call(client, CHAT, {**HELLO, "max_tokens": 1})
        assert counted["count"] == answer["usage"]["prompt_tokens"]

    with_engine(use)


def test_abort_by_id() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        await call(client, "/pause?mode=keep", {})
        tasks = [asyncio.create_task(call(client, CHAT, HELLO, headers={"X-Request-Id": name})) for name in ("one", "one-1")]
        while engine.in_flight < 2:
            await asyncio.sleep(0)
        await call(client, "/abort_requests", {"request_ids": ["chatcmpl-one"]})
        _, answer = await tasks[0]
        assert answer["choices"][0]["finish_reason"] == "abort"
        assert not tasks[1].done()
        await call(client, "/resume", {})
        assert (await tasks[1])[1]["choices"][0]["finish_reason"] == "stop"

    with_engine(use)


def test_pooling_server() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        documents = ["the cat sat", "a dog ran", "cat food for the cat"]
        _, ranked = await call(client, "/v1/rerank", {"query": "cat food", "documents": documents, "top_n": 2})
        assert [result["index"] for result in ranked["results"]] == [2, 0]
        _, scored = await call(client, "/score", {"text_1": "cat food", "text_2": documents})
        assert ranked["results"][0]["relevance_score"] == scored["data"][2]["score"]
        assert (await call(client, "/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}))[0] == 400
        _, classes = await call(client, "/classify", {"input": ["x", "y"]})
        assert [sum(row["probs"]) for row in classes["data"]] == [1.0, 1.0]
        _, pooled = await call(client, "/pooling", {"input": "x"})
        _, embedded = await call(client, "/v1/embeddings", {"input": "x", "model": "demo", "dimensions": 8})
        assert len(pooled["data"][0]["data"]) == 64
        assert len(embedded["data"][0]["embedding"]) == 8
        assert embedded["usage"] == {**embedded["usage"], "prompt_tokens": 1, "total_tokens": 1}
        for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages"):
            assert (await call(client, path, HELLO))[0] == 404
        assert engine.finished == 5

    with_engine(use, POOLING)


def test_metrics_have_the_names_of_vllm() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        await call(client, CHAT, {**HELLO, "max_tokens": 4, "ignore_eos": True})
        _, text = await call(client, "/metrics")
        assert isinstance(text, str)
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert f'vllm:{name}{{engine="0",model_name="demo"}} 0.0' in text
        for name in ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens"):
            assert re.search(rf'^vllm:{name}_total{{engine="0",model_name="demo"}} \d', text, re.MULTILINE), name
        assert 'vllm:request_success_total{engine="0",finished_reason="length",model_name="demo"} 1.0' in text
        assert 'num_gpu_blocks="65536"' in text
        histograms = ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time")
        for name in histograms:
            assert f'vllm:{name}_seconds_bucket{{engine="0",le="10.0",model_name="demo"}}' in text

    with_engine(use)


def test_without_dev_mode_there_are_no_dev_routes() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        assert (await call(client, "/sleep", {}))[0] == (await call(client, "/server_info"))[0] == 404

    with_engine(use, replace(INSTANT, dev_mode=False))


def test_a_thousand_streams_and_one_that_does_not_read() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        body = {"model": "demo", "prompt": "go", "max_tokens": 20, "ignore_eos": True, "stream": True}
        lazy = await client.post("/v1/completions", json={**body, "max_tokens": 100_000})

        async def count() -> int:
            async with client.post("/v1/completions", json=body) as response:
                return (await response.content.read()).count(b'"text":" ')

        assert await asyncio.gather(*[count() for _ in range(1000)]) == [20] * 1000
        assert engine.finished == 1000
        assert engine.in_flight == 1
        lazy.close()
        while engine.in_flight:
            await asyncio.sleep(0)

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with MockEngine(INSTANT) as engine, aiohttp.ClientSession(engine.url, connector=connector) as client:
            await asyncio.wait_for(use(client, engine), 120)

    asyncio.run(run())


def test_serve_mock_says_where_and_stops_when_cancelled() -> None:
    async def run() -> None:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_mock(INSTANT, ready.set_result))
        url = await asyncio.wait_for(ready, 60)
        async with aiohttp.ClientSession() as client:
            assert (await call(client, f"{url}/health"))[0] == 200
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.get(f"{url}/health")
        with pytest.raises(OSError, match="in use"):
            async with MockEngine(INSTANT) as first, MockEngine(replace(INSTANT, port=int(first.url[-5:]))):
                raise AssertionError("two engines on one port")

    asyncio.run(run())


class Broken(StepProfile):
    """A profile that cannot price a decoding step."""

    __slots__ = ()

    def step_s(self, prefill_tokens: int, decode_seqs: int, kv_tokens: float, pairs: float = 0.0) -> float:
        assert not decode_seqs, "broken on purpose"
        return 0.0


def test_a_failure_of_the_model_is_an_error_for_all_and_ill_health() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        reports: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["exception"]))
        await call(client, "/pause?mode=keep", {})
        tasks = [asyncio.create_task(call(client, CHAT, {**HELLO, "stream": stream})) for stream in (False, True)]
        while engine.in_flight < 2:
            await asyncio.sleep(0)
        await call(client, "/resume", {})
        (status, plain), (_, streamed) = await asyncio.gather(*tasks)
        assert (status, plain["error"]["type"]) == (500, "InternalServerError")
        assert isinstance(streamed, str)
        assert '"code":500' in streamed
        assert streamed.endswith("data: [DONE]\n\n")
        assert [type(report) for report in reports] == [AssertionError]
        assert (await call(client, "/health"))[0] == 503
        assert (await call(client, CHAT, HELLO))[0] == 500
        assert engine.in_flight == 0

    with_engine(use, replace(INSTANT, profile=Broken(0, 0, 0, 0)))


@pytest.mark.parametrize("change", [{"models": ()}, {"output_tokens_mean": 0.5}, {"max_queued": -1}])
def test_settings_that_cannot_work(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(INSTANT, **change)  # type: ignore[arg-type]


def test_stream_framing_is_bare_events() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        body = {**HELLO, "max_tokens": 2, "ignore_eos": True, "stream": True}
        async with client.post(CHAT, json=body) as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            events = (await response.read()).split(b"\n\n")
        assert events[-2:] == [b"data: [DONE]", b""]
        chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]
        deltas = [set(chunk["choices"][0]["delta"]) for chunk in chunks]
        assert deltas == [{"role", "content"}, {"content"}, {"content"}, set()]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]

    with_engine(use)
