"""Byte-true relay of a real engine's answers: the client's bytes against the engine's of the same exchange."""

import json

import pytest

from tests.engine.engine_http import Json, Target, ask
from tests.engine.engine_record import Recorder

MESSAGES: list[Json] = [{"role": "user", "content": "Greet me in French, Chinese and Greek."}]
BASE: Json = {"model": "smollm2", "temperature": 0}
CHAT: Json = {**BASE, "max_tokens": 48, "messages": MESSAGES}
COMPLETION: Json = {**BASE, "max_tokens": 48, "prompt": "Γειά σου, 你好, "}
FACES = [
    pytest.param("/v1/chat/completions", {**CHAT, "n": 2, "logprobs": True, "temperature": 0.5}, id="chat"),
    pytest.param("/v1/completions", {**COMPLETION, "echo": True}, id="completions"),
    pytest.param("/v1/messages", CHAT, id="messages"),
    pytest.param("/v1/responses", {**BASE, "max_output_tokens": 48, "input": MESSAGES}, id="responses"),
]
USAGE = [pytest.param("/v1/chat/completions", CHAT, id="chat"), pytest.param("/v1/completions", COMPLETION, id="completions")]


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(("path", "body"), FACES)
def test_answer_is_the_engines(recorded: Target, recorder: Recorder, path: str, body: Json, streamed: bool) -> None:
    asked: Json = {**body, "stream": streamed}
    if streamed and path in {"/v1/chat/completions", "/v1/completions"}:
        asked["stream_options"] = {"include_usage": True}
    answer = ask(recorded, "POST", path, asked)
    assert answer.status == 200
    assert not answer.broken
    assert len(answer.body) > 100
    assert answer.body == recorder.said[path]
    assert json.loads(recorder.asked[path]) == asked


@pytest.mark.parametrize(("path", "body"), USAGE)
def test_usage_that_only_the_gateway_asked_for_is_all_that_is_left_out(
    recorded: Target, recorder: Recorder, path: str, body: Json
) -> None:
    asked: Json = {**body, "stream": True}
    answer = ask(recorded, "POST", path, asked)
    assert json.loads(recorder.asked[path]) == {**asked, "stream_options": {"include_usage": True}}
    said = recorder.said[path].split(b"\n\n")
    usage = [event for event in said if b'"choices":[],"usage":{' in event]
    assert len(usage) == 1
    said.remove(usage[0])
    assert answer.body == b"\n\n".join(said)
