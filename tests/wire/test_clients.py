"""The official SDKs, sync and async, through the gateway to simulated engines: what works without it works with it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256

import anthropic
import openai
import pytest
from pydantic import BaseModel

from gateway.config import KeySpec, ModelSpec
from tests.wire.kit import CANARY, CONFIG, INSTANT, Rig, run

ODD_ID = "org/model-7b:q4"
KEY = "key-of-a-client"
GENERATE = replace(INSTANT, name="gen", models=("demo", ODD_ID), output_tokens_mean=20)
POOLING = replace(INSTANT, name="pool", models=("embed",), pooling=True)
KEYED = replace(
    CONFIG,
    keys=(KeySpec(sha256(KEY.encode()).hexdigest(), "k"),),
    models=(ModelSpec("demo", aliases=("gpt:4/o",)),),
)
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": f"How do you do? {CANARY}"}]
SAID: list[anthropic.types.MessageParam] = [{"role": "user", "content": f"How do you do? {CANARY}"}]
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city", "days"],
    },
}
TOOLS = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"}


class Trip(BaseModel):
    """A structured answer."""

    city: str
    nights: int


def with_openai(use: Callable[[openai.AsyncOpenAI, Rig], Awaitable[None]]) -> None:
    """Run a test body with an async client of a gateway with keys."""

    async def case(rig: Rig) -> None:
        async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=KEY, max_retries=0) as client:
            await use(client, rig)

    run(case, KEYED, backends=0, engines=(GENERATE, POOLING), key=KEY)


def with_sync_openai(use: Callable[[openai.OpenAI], None]) -> None:
    """The same with the sync client, in a thread."""

    async def case(rig: Rig) -> None:
        with openai.OpenAI(base_url=f"{rig.url}/v1", api_key=KEY, max_retries=0) as client:
            await asyncio.to_thread(use, client)

    run(case, KEYED, backends=0, engines=(GENERATE, POOLING), key=KEY)


def with_anthropic(use: Callable[[anthropic.AsyncAnthropic, Rig], Awaitable[None]], bearer: bool = False) -> None:
    """The same with the other SDK. It sends the key as x-api-key, or as a bearer token."""

    async def case(rig: Rig) -> None:
        keys = {"api_key": None, "auth_token": KEY} if bearer else {"api_key": KEY, "auth_token": None}
        headers = {} if bearer else {"x-api-key": KEY, "authorization": anthropic.omit}
        async with anthropic.AsyncAnthropic(base_url=rig.url, max_retries=0, default_headers=headers, **keys) as client:
            await use(client, rig)

    run(case, KEYED, backends=0, engines=(GENERATE, POOLING), key=KEY)


def test_openai_chat_plain_and_streamed() -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        plain = await client.chat.completions.create(model="demo", messages=HELLO)
        text = plain.choices[0].message.content
        assert plain.usage is not None
        assert plain._request_id
        assert (await rig.access(plain._request_id))["tokens_out"] == plain.usage.completion_tokens
        chunks = [chunk async for chunk in await client.chat.completions.create(model="demo", messages=HELLO, stream=True)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert all(chunk.choices and chunk.usage is None for chunk in chunks), "usage comes only when asked for"
        asked = await client.chat.completions.create(
            model="demo", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        assert [chunk.usage async for chunk in asked][-1] == plain.usage
        async with client.chat.completions.stream(model="demo", messages=HELLO) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == text

    with_openai(use)


def test_openai_sync_chat_helpers() -> None:
    def use(client: openai.OpenAI) -> None:
        plain = client.chat.completions.create(model="demo", messages=HELLO)
        with client.chat.completions.stream(model="demo", messages=HELLO) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
        assert "".join(deltas) == final.choices[0].message.content == plain.choices[0].message.content
        parsed = client.chat.completions.parse(model="demo", messages=HELLO, response_format=Trip)
        assert isinstance(parsed.choices[0].message.parsed, Trip)
        assert {model.id for model in client.models.list()} == {"demo", ODD_ID, "embed", "gpt:4/o"}
        packed = client.embeddings.create(model="embed", input=["sun", "moon"])  # the SDK asks for base64
        floats = client.embeddings.create(model="embed", input="moon", encoding_format="float")
        assert packed.data[1].embedding == pytest.approx(floats.data[0].embedding, abs=1e-6)

    with_sync_openai(use)


def test_openai_tools_and_structure() -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        plain = await client.chat.completions.create(model="demo", messages=HELLO, extra_body=TOOLS)
        (call,) = plain.choices[0].message.tool_calls or []
        assert call.type == "function"
        async with client.chat.completions.stream(model="demo", messages=HELLO, extra_body=TOOLS) as stream:
            final = await stream.get_final_completion()
        (streamed,) = final.choices[0].message.tool_calls or []
        assert json.loads(streamed.function.arguments) == json.loads(call.function.arguments)
        assert final.choices[0].finish_reason == "tool_calls"
        parsed = await client.chat.completions.parse(model="demo", messages=HELLO, response_format=Trip)
        assert isinstance(parsed.choices[0].message.parsed, Trip)

    with_openai(use)


@pytest.mark.parametrize("model", ["demo", ODD_ID, "gpt:4/o"])
def test_openai_model_ids(model: str) -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        assert (await client.models.retrieve(model)).id == model
        assert model in {card.id async for card in client.models.list()}
        plain = await client.chat.completions.create(model=model, messages=HELLO, max_tokens=3)
        assert plain.choices[0].finish_reason == "length"
        text = await client.completions.create(model=model, prompt="one", max_tokens=2)
        assert len(text.choices[0].text.split()) == 2

    with_openai(use)


def test_openai_responses() -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        plain = await client.responses.create(model="demo", input="How are you?")
        stream = await client.responses.create(model="demo", input="How are you?", stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == plain.output_text
        assert (await client.responses.retrieve(plain.id)).output_text == plain.output_text
        follow = await client.responses.create(model="demo", input="And now?", previous_response_id=plain.id)
        assert follow.usage is not None
        assert plain.usage is not None
        assert follow.usage.input_tokens > plain.usage.total_tokens
        async with client.responses.stream(model="demo", input="Where?", text_format=Trip) as parsed:
            assert isinstance((await parsed.get_final_response()).output_parsed, Trip)
        await client.responses.delete(plain.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(plain.id)

    with_openai(use)


def test_openai_embeddings_in_both_encodings() -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        packed = await client.embeddings.create(model="embed", input=["sun", "moon"])
        floats = await client.embeddings.create(model="embed", input="moon", encoding_format="float")
        assert packed.data[1].embedding == pytest.approx(floats.data[0].embedding, abs=1e-6)

    with_openai(use)


def test_openai_a_stream_that_is_closed_ends_the_engines_work() -> None:
    async def use(client: openai.AsyncOpenAI, rig: Rig) -> None:
        stream = await client.chat.completions.create(
            model="demo", messages=HELLO, stream=True, extra_body={"ignore_eos": True, "max_tokens": 100_000}
        )
        async for _ in stream:
            break
        await stream.close()
        engine = rig.engines[0]
        while engine.aborted == 0:
            await rig.ask(path="/livez", method="GET")
        assert engine.in_flight == 0

    with_openai(use)


@pytest.mark.parametrize("bearer", [False, True], ids=["x-api-key", "bearer"])
def test_anthropic_messages(bearer: bool) -> None:
    async def use(client: anthropic.AsyncAnthropic, rig: Rig) -> None:
        plain = await client.messages.create(model="demo", messages=SAID, max_tokens=200, system="Be kind.")
        counted = await client.messages.count_tokens(model="demo", messages=SAID, system="Be kind.")
        assert counted.input_tokens == plain.usage.input_tokens
        async with client.messages.stream(model="demo", messages=SAID, max_tokens=200, system="Be kind.") as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        assert plain.content[0].type == "text"
        assert text == plain.content[0].text
        assert final.usage.output_tokens == plain.usage.output_tokens
        assert final.stop_reason == "end_turn"

    with_anthropic(use, bearer)


def test_anthropic_tools() -> None:
    async def use(client: anthropic.AsyncAnthropic, rig: Rig) -> None:
        asked = {
            "tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}],
            "tool_choice": {"type": "tool", "name": "weather"},
        }
        plain = await client.messages.create(model="demo", messages=SAID, max_tokens=500, extra_body=asked)
        async with client.messages.stream(model="demo", messages=SAID, max_tokens=500, extra_body=asked) as stream:
            final = await stream.get_final_message()
        assert final.content[0].type == "tool_use"
        assert plain.content[0].type == "tool_use"
        assert final.content[0].input == plain.content[0].input

    with_anthropic(use)


def test_anthropic_sync() -> None:
    async def case(rig: Rig) -> None:
        def use() -> str:
            with anthropic.Anthropic(base_url=rig.url, api_key=KEY, max_retries=0) as client:
                plain = client.messages.create(model=ODD_ID, messages=SAID, max_tokens=1)
                assert plain.stop_reason == "max_tokens"
                with client.messages.stream(model=ODD_ID, messages=SAID, max_tokens=1) as stream:
                    return stream.get_final_text()

        assert len((await asyncio.to_thread(use)).split()) == 1

    run(case, KEYED, backends=0, engines=(GENERATE,), key=KEY)
