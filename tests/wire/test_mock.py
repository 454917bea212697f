"""The simulated engine as the official SDKs see it."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import anthropic
import openai
import pytest
from pydantic import BaseModel

from backends.mock import MockConfig, MockEngine
from backends.mock_text import count_tokens
from predictor.profile import preset

INSTANT = MockConfig(profile=preset("instant").profile, limits=preset("instant").limits, output_tokens_mean=20)
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city", "days"],
    },
}
HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "How do you do?"}]
HELLO_TOKENS = count_tokens(["How do you do?"], messages=1)


class Trip(BaseModel):
    """A structured answer."""

    city: str
    nights: int
    rated: bool
    tags: list[str]


def with_openai(use: Callable[[openai.AsyncOpenAI, MockEngine], Awaitable[None]], config: MockConfig = INSTANT) -> None:
    """Run a test body with a client of a fresh engine."""

    async def run() -> None:
        async with (
            MockEngine(config) as engine,
            openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client,
        ):
            await use(client, engine)

    asyncio.run(run())


def with_anthropic(use: Callable[[anthropic.AsyncAnthropic], Awaitable[None]]) -> None:
    """The same for the other SDK."""

    async def run() -> None:
        async with (
            MockEngine(INSTANT) as engine,
            anthropic.AsyncAnthropic(base_url=engine.url, api_key="none", max_retries=0) as client,
        ):
            await use(client)

    asyncio.run(run())


def test_models_are_listed() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        models = (await client.models.list()).data
        assert [(model.id, model.object, model.owned_by) for model in models] == [("demo", "model", "vllm")]
        assert models[0].to_dict()["max_model_len"] == engine.config.limits.max_model_len

    with_openai(use)


def test_chat_plain_and_streamed_say_the_same() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        plain = await client.chat.completions.create(model="demo", messages=HELLO)
        assert plain.usage is not None
        assert plain.usage.prompt_tokens == HELLO_TOKENS
        assert plain.choices[0].finish_reason == "stop"
        text = plain.choices[0].message.content
        assert text is not None
        assert len(text.split()) == plain.usage.completion_tokens
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="demo", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
        ]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[0].choices[0].delta.content == ""
        assert all(len((chunk.choices[0].delta.content or "").split()) == 1 for chunk in chunks[1:-2])
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage == plain.usage
        assert engine.finished == 2
        assert engine.requests_seen == 2
        assert engine.aborted == 0

    with_openai(use)


def test_chat_usage_comes_only_when_asked() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        stream = await client.chat.completions.create(model="demo", messages=HELLO, stream=True)
        chunks = [chunk async for chunk in stream]
        assert all(chunk.choices and chunk.usage is None for chunk in chunks)
        stream = await client.chat.completions.create(
            model="demo",
            messages=HELLO,
            stream=True,
            max_tokens=3,
            stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
        )
        counts = [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]
        assert counts == [0, 1, 2, 3, 3, 3]

    with_openai(use)


def test_chat_length_is_bounded_both_ways() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        async def ask(**fields: object) -> tuple[int, str]:
            answer = await client.chat.completions.create(model="demo", messages=HELLO, extra_body=fields)
            assert answer.usage is not None
            return answer.usage.completion_tokens, answer.choices[0].finish_reason

        natural, reason = await ask()
        assert reason == "stop"
        assert natural > 1
        assert await ask(max_tokens=natural) == (natural, "stop")
        assert await ask(max_completion_tokens=natural - 1) == (natural - 1, "length")
        assert await ask(min_tokens=natural + 5) == (natural + 5, "stop")
        assert await ask(max_tokens=200, ignore_eos=True) == (200, "length")

    with_openai(use)


def test_chat_choices_differ_and_come_whole() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        plain = await client.chat.completions.create(model="demo", messages=HELLO, n=3, max_tokens=8)
        texts = [choice.message.content for choice in plain.choices]
        assert len(set(texts)) == 3
        streamed = ["", "", ""]
        async for chunk in await client.chat.completions.create(model="demo", messages=HELLO, n=3, max_tokens=8, stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert streamed == texts

    with_openai(use)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_chat_forced_tool_calls(choice: object) -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        fields = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": choice}
        plain = await client.chat.completions.create(model="demo", messages=HELLO, extra_body=fields)
        assert plain.choices[0].finish_reason == "tool_calls"
        assert plain.choices[0].message.content is None
        (call,) = plain.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "weather"
        arguments = json.loads(call.function.arguments)
        assert isinstance(arguments["city"], str)
        assert 1 <= arguments["days"] <= 7
        async with client.chat.completions.stream(model="demo", messages=HELLO, extra_body=fields) as stream:
            final = await stream.get_final_completion()
        (streamed,) = final.choices[0].message.tool_calls or []
        assert streamed.function.name == "weather"
        assert json.loads(streamed.function.arguments) == arguments
        assert final.choices[0].finish_reason == "tool_calls"

    with_openai(use)


def test_chat_structured_answers_parse() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        answer = await client.chat.completions.parse(model="demo", messages=HELLO, response_format=Trip)
        assert isinstance(answer.choices[0].message.parsed, Trip)
        loose = await client.chat.completions.create(model="demo", messages=HELLO, response_format={"type": "json_object"})
        assert isinstance(json.loads(loose.choices[0].message.content or ""), dict)

    with_openai(use)


def test_completions_plain_and_streamed() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        plain = await client.completions.create(model="demo", prompt=["one", "two"], n=2)
        assert [choice.index for choice in plain.choices] == [0, 1, 2, 3]
        assert all(1 <= len(choice.text.split()) <= 16 for choice in plain.choices)
        stream = await client.completions.create(model="demo", prompt="one", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == plain.choices[0].text
        tokens = await client.completions.create(model="demo", prompt=[5, 6, 7], max_tokens=1)
        assert tokens.usage is not None
        assert tokens.usage.prompt_tokens == 3

    with_openai(use)


def test_embeddings_in_both_encodings() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        packed = await client.embeddings.create(model="demo", input=["sun", "moon"])  # the SDK asks for base64
        plain = await client.embeddings.create(model="demo", input="moon", encoding_format="float")
        assert len(packed.data) == 2
        assert packed.usage.prompt_tokens == 2
        assert packed.data[1].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
        assert sum(value * value for value in plain.data[0].embedding) == pytest.approx(1.0)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="demo", messages=HELLO)

    with_openai(use, MockConfig(profile=INSTANT.profile, limits=INSTANT.limits, pooling=True))


def test_responses_plain_streamed_and_stored() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        plain = await client.responses.create(model="demo", input="How are you?", instructions="Be brief.")
        assert plain.status == "completed"
        assert plain.output_text
        assert plain.usage is not None
        assert len(plain.output_text.split()) == plain.usage.output_tokens
        stream = await client.responses.create(model="demo", input="How are you?", instructions="Be brief.", stream=True)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type.removeprefix("response.") for event in events]
        assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert set(kinds[4:-4]) == {"output_text.delta"}
        assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == plain.output_text
        assert (await client.responses.retrieve(plain.id)).output_text == plain.output_text
        follow = await client.responses.create(model="demo", input="And now?", previous_response_id=plain.id)
        assert follow.usage is not None
        assert follow.usage.input_tokens > plain.usage.total_tokens
        await client.responses.delete(plain.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(plain.id)

    with_openai(use)


def test_responses_cancel_ends_only_background_work() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        plain = await client.responses.create(model="demo", input="Hi")
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(plain.id)
        slow = await client.responses.create(
            model="demo", input="Hi", background=True, extra_body={"ignore_eos": True, "max_output_tokens": 100_000}
        )
        assert slow.status == "queued"
        assert engine.in_flight == 1
        assert (await client.responses.cancel(slow.id)).status == "cancelled"
        assert engine.in_flight == 0
        assert engine.aborted == 1
        assert engine.instance.free_blocks == 65536

    with_openai(use)


def test_responses_cut_short_parsed_and_with_tools() -> None:
    async def use(client: openai.AsyncOpenAI, engine: MockEngine) -> None:
        cut = await client.responses.create(model="demo", input="Hi", max_output_tokens=1)
        assert cut.status == "incomplete"
        assert cut.incomplete_details is not None
        assert cut.incomplete_details.reason == "max_output_tokens"
        parsed = await client.responses.parse(model="demo", input="Hi", text_format=Trip)
        assert isinstance(parsed.output_parsed, Trip)
        fields = {"tools": [{"type": "function", "strict": True, **WEATHER}], "tool_choice": "required"}
        called = await client.responses.create(model="demo", input="Hi", extra_body=fields)
        (item,) = called.output
        assert item.type == "function_call"
        assert item.name == "weather"
        async with client.responses.stream(model="demo", input="Hi", extra_body=fields) as stream:
            (streamed,) = (await stream.get_final_response()).output
        assert streamed.type == "function_call"
        assert streamed.arguments == item.arguments

    with_openai(use)


def test_messages_plain_streamed_and_counted() -> None:
    async def use(client: anthropic.AsyncAnthropic) -> None:
        messages: list[anthropic.types.MessageParam] = [
            {"role": "user", "content": [{"type": "text", "text": "How do you do?"}]}
        ]
        plain = await client.messages.create(model="demo", messages=messages, max_tokens=500, system="Be kind.")
        assert plain.stop_reason == "end_turn"
        assert plain.content[0].type == "text"
        assert plain.usage.input_tokens == count_tokens(["Be kind.", "How do you do?"], messages=2)
        counted = await client.messages.count_tokens(model="demo", messages=messages, system="Be kind.")
        assert counted.input_tokens == plain.usage.input_tokens
        async with client.messages.stream(model="demo", messages=messages, max_tokens=500, system="Be kind.") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[-1] == "message_stop"
        assert final.content[0].type == "text"
        assert final.content[0].text == plain.content[0].text
        assert final.usage.output_tokens == plain.usage.output_tokens
        cut = await client.messages.create(model="demo", messages=messages, max_tokens=1)
        assert cut.stop_reason == "max_tokens"
        assert cut.usage.output_tokens == 1

    with_anthropic(use)


def test_messages_forced_tool_use() -> None:
    async def use(client: anthropic.AsyncAnthropic) -> None:
        asked: dict[str, object] = {
            "tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}],
            "tool_choice": {"type": "tool", "name": "weather"},
        }
        messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Rain?"}]
        plain = await client.messages.create(model="demo", messages=messages, max_tokens=500, extra_body=asked)
        assert plain.stop_reason == "tool_use"
        assert plain.content[0].type == "tool_use"
        assert 1 <= int(str(plain.content[0].input["days"])) <= 7
        async with client.messages.stream(model="demo", messages=messages, max_tokens=500, extra_body=asked) as stream:
            final = await stream.get_final_message()
        assert final.content[0].type == "tool_use"
        assert final.content[0].input == plain.content[0].input

    with_anthropic(use)


def test_messages_errors_have_their_own_shape() -> None:
    async def use(client: anthropic.AsyncAnthropic) -> None:
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.messages.create(model="else", messages=[{"role": "user", "content": "Hi"}], max_tokens=5)
        assert caught.value.body == {
            "type": "error",
            "error": {"type": "NotFoundError", "message": "The model `else` does not exist. Models served here: demo."},
        }

    with_anthropic(use)
