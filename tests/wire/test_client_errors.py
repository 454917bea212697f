"""How the official SDKs see the gateway's errors: the right exception class, retries only where nothing can have run."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import anthropic
import looptime
import openai
import pytest

from gateway.config import Health, KeyLimits, KeySpec, Queue, Timeouts
from tests.wire.kit import CONFIG, Rig, run
from tests.wire.scripted import Call, event, silent, well

KEY = "key-of-a-client"
KEYED = replace(CONFIG, keys=(KeySpec(sha256(KEY.encode()).hexdigest(), "k"),))
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "How do you do?"}]
SAID: list[anthropic.types.MessageParam] = [{"role": "user", "content": "How do you do?"}]

UseOpenai = Callable[[openai.AsyncOpenAI, Rig], Awaitable[None]]
UseAnthropic = Callable[[anthropic.AsyncAnthropic, Rig], Awaitable[None]]


def with_openai(use: UseOpenai, config=KEYED, key: str = KEY, retries: int = 0, **settings) -> None:  # type: ignore[no-untyped-def]
    """Run a test body with an OpenAI client of a gateway before a scripted backend."""

    async def case(rig: Rig) -> None:
        async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=key, max_retries=retries) as client:
            await use(client, rig)

    run(case, config, key=KEY, **settings)


def with_anthropic(use: UseAnthropic, config=KEYED, key: str = KEY, retries: int = 0, **settings) -> None:  # type: ignore[no-untyped-def]
    """The same with the other SDK."""

    async def case(rig: Rig) -> None:
        async with anthropic.AsyncAnthropic(base_url=rig.url, api_key=key, max_retries=retries) as client:
            await use(client, rig)

    run(case, config, key=KEY, **settings)


async def chat(client: openai.AsyncOpenAI, model: str = "m") -> None:
    await client.chat.completions.create(model=model, messages=HELLO)


async def message(client: anthropic.AsyncAnthropic, model: str = "m") -> None:
    await client.messages.create(model=model, messages=SAID, max_tokens=5)


def test_a_wrong_key_is_an_authentication_error() -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        with pytest.raises(openai.AuthenticationError) as caught:
            await chat(client)
        assert caught.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()

    async def use_other(client: anthropic.AsyncAnthropic, rig: Rig) -> None:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            await message(client)
        assert caught.value.type == "authentication_error"

    with_openai(use, key="wrong", retries=2)
    with_anthropic(use_other, key="wrong", retries=2)


def test_an_unknown_model_or_route_is_not_found() -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            await chat(client, "nobody/serves:this")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        assert "Known models: m" in caught.value.message
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nobody/serves:this")
        with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
            await client.with_options(base_url=rig.url).chat.completions.create(model="m", messages=HELLO)

    async def use_other(client: anthropic.AsyncAnthropic, rig: Rig) -> None:
        with pytest.raises(anthropic.NotFoundError) as caught:
            await message(client, "nobody/serves:this")
        assert caught.value.type == "not_found_error"

    with_openai(use, retries=2)
    with_anthropic(use_other, retries=2)


def test_a_full_line_is_a_rate_limit_with_its_wait() -> None:
    async def occupy(rig: Rig) -> None:
        rig.backend.play = silent
        holder = await rig.connect()
        holder.ask({"model": "m", "messages": []})
        await rig.backend.called(1)

    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        await occupy(rig)
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(client)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert "x-should-retry" not in caught.value.response.headers

    async def use_other(client: anthropic.AsyncAnthropic, rig: Rig) -> None:
        await occupy(rig)
        with pytest.raises(anthropic.RateLimitError) as caught:
            await message(client)
        assert int(caught.value.response.headers["retry-after"]) >= 1

    config = replace(KEYED, queue=Queue(size=0))
    with_openai(use, config, spec=lambda spec: replace(spec, max_in_flight=1))
    with_anthropic(use_other, config, spec=lambda spec: replace(spec, max_in_flight=1))


def test_a_keys_own_limit_is_a_rate_limit() -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        rig.backend.play = silent
        first = asyncio.create_task(chat(client))
        await rig.backend.called(1)
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(client)
        assert caught.value.code == "concurrency_limit"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await rig.backend.calls[0].gone.wait()
        rig.backend.play = well
        await chat(client)

    keys = (KeySpec(sha256(KEY.encode()).hexdigest(), "k", limits=KeyLimits(concurrent=1)),)
    with_openai(use, replace(CONFIG, keys=keys))


def test_a_retry_waits_as_long_as_it_is_told() -> None:
    """The SDK obeys Retry-After, and the gateway has kept the backend free of calls meanwhile (virtual time)."""

    def play(call: Call) -> None:
        rig_calls.append(call)
        call.error(429, b"retry-after: 5") if len(rig_calls) == 1 else well(call)

    rig_calls: list[Call] = []

    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        rig.backend.play = play
        started_s = asyncio.get_running_loop().time()
        await chat(client)
        assert 5.0 <= asyncio.get_running_loop().time() - started_s <= 6.0
        assert rig.calls == 2

    config = replace(KEYED, health=Health(interval_s=5.0))
    with_openai(use, config, retries=2, on=looptime.new_event_loop, limit_s=100)


@pytest.mark.parametrize("retries", [0, 2])
def test_what_may_have_run_is_not_retried(retries: int) -> None:
    """SDK retries and the gateway's do not multiply: one call, whatever the SDK would like."""

    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        rig.backend.play = lambda call: call.close()
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(client)
        assert (caught.value.status_code, caught.value.code) == (502, "backend_lost")
        rig.backend.play = silent
        with pytest.raises(openai.InternalServerError) as caught:
            await chat(client)
        assert (caught.value.status_code, caught.value.code) == (504, "first_byte_timeout")
        assert rig.calls == 2

    async def use_other(client: anthropic.AsyncAnthropic, rig: Rig) -> None:
        rig.backend.play = lambda call: call.close()
        with pytest.raises(anthropic.InternalServerError) as caught:
            await message(client)
        assert caught.value.status_code == 502
        assert rig.calls == 1

    config = replace(KEYED, timeouts=Timeouts(unary_s=0.1))
    with_openai(use, config, retries=retries, on=looptime.new_event_loop)
    with_anthropic(use_other, config, retries=retries, on=looptime.new_event_loop)


async def collect(stream: AsyncIterator[Any], text: Callable[[Any], str], got: list[str], read: asyncio.Event) -> None:
    """Read a stream into `got`, and say that its beginning was read."""
    async for part in stream:
        got.append(text(part))
        if "".join(got) == "hello":
            read.set()


@pytest.mark.parametrize("cut", ["reset", "end", "silence"])
def test_a_failure_inside_a_stream_raises(cut: str) -> None:
    """What came before the failure is delivered, then the SDK raises; nothing looks like an end."""

    async def play(call: Call) -> None:
        call.start_events()
        call.events(*starts[call.target.split(b"?")[0]])
        await read.wait()
        if cut == "reset":
            call.reset()
        elif cut == "end":
            call.end_events()
        else:
            await call.gone.wait()

    read = asyncio.Event()
    starts = {
        b"/v1/chat/completions": (event("hel"), event("lo")),
        b"/v1/responses": (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hello",'
            b'"item_id":"i","output_index":0,"content_index":0,"sequence_number":1,"logprobs":[]}\n\n',
        ),
        b"/v1/messages": (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
            b'"delta":{"type":"text_delta","text":"hello"}}\n\n',
        ),
    }

    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        rig.backend.play = play
        got: list[str] = []
        chunks = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError) as caught:
            await collect(chunks, lambda chunk: chunk.choices[0].delta.content, got, read)
        assert "".join(got) == "hello"
        assert caught.value.code in ("backend_lost", "stream_cut", "idle_timeout")
        got.clear()
        events = await client.responses.create(model="m", input="hi", stream=True)
        with pytest.raises(openai.APIError):
            await collect(events, lambda said: said.delta, got, read)
        assert got == ["hello"]

    async def use_other(client: anthropic.AsyncAnthropic, rig: Rig) -> None:
        rig.backend.play = play
        got: list[str] = []
        events = await client.messages.create(model="m", messages=SAID, max_tokens=9, stream=True)
        with pytest.raises(anthropic.APIError):
            await collect(events, lambda said: said.delta.text, got, read)
        assert got == ["hello"]

    config = replace(KEYED, timeouts=Timeouts(idle_s=0.1))
    with_openai(use, config)
    with_anthropic(use_other, config)
