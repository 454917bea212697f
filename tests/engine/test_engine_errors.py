"""Errors: the engine's own pass through unchanged, the gateway's name what would have worked."""

import openai
import pytest

from tests.engine.engine_http import Json, Target, ask

HI: Json = {"model": "smollm2", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", {"model": "smollm2", "prompt": "a " * 4000}, id="too_long"),
        pytest.param("/v1/completions", {"model": "smollm2", "prompt": "a " * 4000, "stream": True}, id="stream"),
        pytest.param("/v1/chat/completions", {**HI, "temperature": -1}, id="bad_value"),
        pytest.param("/v1/chat/completions", {"model": "smollm2"}, id="missing_field"),
        pytest.param("/v1/messages", {"model": "smollm2", "max_tokens": 1}, id="anthropic_missing_field"),
    ],
)
def test_engines_error_passes_unchanged(through: Target, direct: Target, path: str, body: Json) -> None:
    ours, theirs = ask(through, "POST", path, body), ask(direct, "POST", path, body)
    assert ours.status == theirs.status
    assert 400 <= ours.status < 500
    assert ours.body == theirs.body
    assert ours.headers["content-type"] == theirs.headers["content-type"]


def test_many_bad_requests_cost_nobody_else_anything(through: Target) -> None:
    bad: Json = {**HI, "temperature": -1}
    assert {ask(through, "POST", "/v1/chat/completions", bad).status for _ in range(40)} == {400}
    assert ask(through, "POST", "/v1/chat/completions", HI).status == 200


def test_unknown_model_is_told_the_known_ones(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(model="smollm3", messages=[{"role": "user", "content": "hi"}])
    assert "smollm2" in caught.value.message
    assert "tiny-embed" in caught.value.message


def test_wrong_key_never_reaches_an_engine(through: Target) -> None:
    answer = ask(Target(through.url, "no-such-key"), "POST", "/v1/chat/completions", HI)
    assert answer.status == 401
    assert "no-such-key" not in answer.body.decode()
