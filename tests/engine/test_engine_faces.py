"""The other faces through the gateway: Anthropic's messages, OpenAI's responses, embeddings from a pooling server."""

import anthropic
import openai
import pytest

from tests.engine.engine_http import Json, Target, ask

QUESTION = "What is the capital of France? Answer briefly."
ANSWER = "The capital of France is Paris."


def test_messages_plain(claude_sdk: anthropic.Anthropic) -> None:
    message = claude_sdk.messages.create(
        model="smollm2", max_tokens=24, messages=[{"role": "user", "content": QUESTION}], extra_body={"temperature": 0}
    )
    assert message.content[0].type == "text"
    assert message.content[0].text == ANSWER
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == 8


def test_messages_streamed(claude_sdk: anthropic.Anthropic) -> None:
    with claude_sdk.messages.stream(
        model="smollm2", max_tokens=24, messages=[{"role": "user", "content": QUESTION}], extra_body={"temperature": 0}
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == ANSWER
    assert final.stop_reason == "end_turn"


def test_messages_token_count_is_the_prompts(claude_sdk: anthropic.Anthropic, direct: Target) -> None:
    counted = claude_sdk.messages.count_tokens(model="smollm2", messages=[{"role": "user", "content": QUESTION}])
    body: Json = {"model": "smollm2", "messages": [{"role": "user", "content": QUESTION}]}
    assert counted.input_tokens == ask(direct, "POST", "/tokenize", body).json()["count"]


def test_responses_are_found_again_where_they_were_made(sdk: openai.OpenAI) -> None:
    # Enough of them that both servers hold some: each is only to be had from the one that made it.
    made = [
        sdk.responses.create(model="smollm2", input=f"{QUESTION} ({i})", temperature=0, max_output_tokens=8) for i in range(6)
    ]
    for response in made:
        again = sdk.responses.retrieve(response.id)
        assert again.id == response.id
        assert again.output_text == response.output_text != ""


def test_streamed_response_is_found_again(sdk: openai.OpenAI) -> None:
    with sdk.responses.stream(model="smollm2", input=QUESTION, temperature=0, max_output_tokens=24) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == ANSWER == final.output_text
    assert sdk.responses.retrieve(final.id).output_text == ANSWER


def test_response_continues_an_earlier_one(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(model="smollm2", input="My name is Ada.", temperature=0, max_output_tokens=16)
    second = sdk.responses.create(
        model="smollm2", input=QUESTION, temperature=0, max_output_tokens=16, previous_response_id=first.id
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def test_embeddings_come_from_the_pooling_server(sdk: openai.OpenAI) -> None:
    answer = sdk.embeddings.create(model="tiny-embed", input=["Hello world", "Hello world", "another text"])
    first, second, third = (item.embedding for item in answer.data)
    assert len(first) == 128
    assert first == pytest.approx(second, abs=1e-3)
    assert first != pytest.approx(third, abs=1e-3)
    assert sum(x * x for x in first) == pytest.approx(1.0, abs=1e-2)


def test_chat_with_an_embedding_model_is_the_clients_mistake(through: Target) -> None:
    body: Json = {"model": "tiny-embed", "messages": [{"role": "user", "content": "hi"}]}
    answer = ask(through, "POST", "/v1/chat/completions", body)
    assert 400 <= answer.status < 500
    assert "error" in answer.json()
    # And it has not cost the server its place.
    assert ask(through, "POST", "/v1/embeddings", {"model": "tiny-embed", "input": "still there"}).status == 200
