"""Failure cases, section 8: usage, tool calls, media."""

import asyncio
import json

import pytest

from tests.wire.kit import CANARY, Rig, chat, metric, run
from tests.wire.scripted import DONE, FINISH, Call, ScriptedBackend, event

COUNTS = b'{"prompt_tokens":11,"total_tokens":211,"completion_tokens":200}'


def with_usage(text: str, usage: bytes, choices: bytes | None = None) -> bytes:
    """A content event that carries a usage member."""
    made = event(text)
    if choices is not None:
        made = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":' + choices + b"}\n\n"
    return made[:-3] + b',"usage":' + usage + b"}\n\n"


ZERO = b'{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}'


@pytest.mark.parametrize("early", [b"null", ZERO, b"{}"], ids=["null", "zero", "empty"])
@pytest.mark.parametrize("asks", [True, False], ids=["asks", "does not ask"])
@pytest.mark.parametrize("last", ["own chunk", "with finish_reason"])
def test_case_8_1_the_last_usage_counts(early: bytes, asks: bool, last: str) -> None:
    """8.1: every chunk carries a null, zero or empty usage, the real one comes last: that one is recorded."""
    content = [with_usage(f"part {i}", early) for i in range(3)]
    finish = b'[{"index":0,"delta":{},"finish_reason":"stop"}]'
    if last == "own chunk":
        tail = [with_usage("", early, finish), with_usage("", COUNTS, b"[]")]
    else:
        tail = [with_usage("", COUNTS, finish)]

    def play(call: Call) -> None:
        assert call.json["stream_options"] == {"include_usage": True}
        call.start_events()
        call.events(*content, *tail)
        call.end_events(DONE)

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        peer = await rig.connect()
        options = {"stream_options": {"include_usage": True}} if asks else {}
        request_id = peer.ask(chat(stream=True, **options))
        answer = await peer.answer()
        stripped = not asks and last == "own chunk"
        assert answer.body == b"".join((*content, *(tail[:-1] if stripped else tail), DONE))
        line = await rig.access(request_id)
        assert (line["tokens_in"], line["tokens_out"], line["end"]) == (11, 200, "complete")
        metrics = await rig.metrics()
        assert metric(metrics, "leeway_output_tokens_total") >= 200

    run(case)


def test_case_8_2_a_client_that_leaves_is_counted_so_far() -> None:
    """8.2: the client leaves after 50 of 200 tokens: the part that it got is recorded, and marked."""

    async def play(call: Call) -> None:
        call.start_events()
        call.events(*(event(f"{i} ") for i in range(50)))
        await call.gone.wait()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        peer = await rig.connect()
        request_id = peer.ask(chat(stream=True))
        await peer.seen(b'"49 "')
        peer.close()
        line = await rig.access(request_id)
        assert (line["end"], line["events"], line["status"]) == ("client_gone", 50, 200)
        assert metric(await rig.metrics(), "leeway_stream_events_total") >= 50

    run(case)


TOOL_DELTAS = [
    [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":'}}],
    [{"index": 0, "id": "b", "function": {"name": "g", "arguments": '{"y":'}}],
    [{"index": 0, "id": "a", "function": {"arguments": "1}"}}],
    [{"id": "b", "function": {"arguments": "2}"}}],
    [{"function": {"arguments": ""}}],
    [{"index": None, "id": "a", "function": {"arguments": ' \\" [DONE]'}}],
]


def test_case_8_3_odd_tool_call_deltas_pass_untouched() -> None:
    """8.3: the same index for two ids, no index, null: each delta passes byte for byte."""
    parts = [
        b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": delta}}]}).encode() + b"\n\n"
        for delta in TOOL_DELTAS
    ]

    def play(call: Call) -> None:
        call.start_events()
        for part in parts:
            call.events(part)
        call.end_events(FINISH, DONE)

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        answer = await rig.ask(chat(stream=True))
        assert answer.whole
        assert answer.events == [*parts, FINISH, DONE]

    run(case)


def test_case_8_4_no_url_of_a_client_is_fetched() -> None:
    """8.4: URLs of images, files and tools in a body: nothing on loopback hears from the gateway; the body goes on."""

    async def case(rig: Rig) -> None:
        listener = ScriptedBackend("canary listener")
        await listener.start()
        own = f"http://127.0.0.1:{listener.port}/{CANARY}"
        urls = [own, f"http://allowed\\@127.0.0.1:{listener.port}/", "file:///etc/passwd"]
        urls += [f"http://127.0.0.1:{rig.app.control_port}/admin/config", f"http://localhost:{listener.port}/x.png"]
        for url in urls:
            parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "input_file", "file_url": url}]
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": parts}],
                "tools": [{"type": "mcp", "server_url": url}],
            }
            body |= {"api_base": url, "base_url": url, "callback_url": url}
            sent = json.dumps(body).encode()
            for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/audio/speech"):
                answer = await rig.ask(sent, path, headers={"x-forwarded-host": f"127.0.0.1:{listener.port}", "referer": own})
                assert answer.status == 200
                assert rig.backend.calls[-1].body == sent
        await asyncio.sleep(0)
        assert listener.connected == 0
        await listener.close()

    run(case)
