"""Failure cases, section 7: encodings, compression, odd JSON."""

import gzip
import json
import zlib

import pytest

from tests.wire.kit import CANARY, INSTANT, Rig, chat, quick, run
from tests.wire.scripted import ANSWER, DONE, FINISH, STREAM, Call

WHOLE_STREAM = b"".join((*STREAM, DONE))
ODD_LIMIT_S = 0.05


@pytest.mark.parametrize(
    "text",
    ["\\ud800", "\\udfff\\ud800", "\\ud83d\\ude00", "\\u0000", "\\ud800 " + "x" * 300_000],
    ids=["lone high", "swapped pair", "pair", "nul", "large"],
)
def test_case_7_1_lone_surrogates_pass_unchanged(text: str) -> None:
    """7.1: escapes that JSON allows and no text can hold reach the backend as they were written."""
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "{text}"}}], "n": 1}}'.encode()

    async def case(rig: Rig) -> None:
        assert (await rig.ask(body)).status == 200
        assert rig.backend.calls[0].body == body

    run(case)


def test_case_7_2_a_prompt_is_never_cut_for_the_log() -> None:
    """7.2: 999 ASCII bytes, then CJK: served; nothing of a prompt is in the log at all (the canary is checked after)."""

    async def case(rig: Rig) -> None:
        for count in range(995, 1005):
            assert (await rig.ask(chat("a" * count + "\u6f22\u5b57" * 100 + CANARY))).status == 200
        assert rig.backend.calls[-1].json["messages"][0]["content"].endswith(CANARY)

    run(case)


def squeezed(body: bytes, coding: str) -> bytes:
    """`body` in a content coding; for br any bytes do, since nobody here may look into them."""
    return gzip.compress(body) if coding == "gzip" else zlib.compress(body)


@pytest.mark.parametrize("coding", ["gzip", "br"])
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "not asked"])
@pytest.mark.parametrize(
    ("path", "plain", "status", "stream"),
    [
        ("/v1/chat/completions", ANSWER, 200, False),
        ("/v1/chat/completions", WHOLE_STREAM, 200, True),
        ("/v1/embeddings", b'{"object":"list","data":[]}', 200, False),
        ("/v1/chat/completions", b'{"error":{"message":"no","type":"t","code":400}}', 400, False),
        ("/v1/chat/completions", b'{"error":{"message":"no","type":"t","code":500}}', 500, True),
        ("/v1/messages", b'{"type":"error"}', 400, False),
    ],
    ids=["json", "sse", "embeddings", "error", "stream error", "messages"],
)
def test_case_7_3_7_4_header_and_bytes_agree(
    path: str, plain: bytes, status: int, stream: bool, asked: bool, coding: str
) -> None:
    """7.3, 7.4: a compressed answer, asked for or not, passes as it is, with its header, errors and streams too."""
    packed = squeezed(plain, coding)

    def play(call: Call) -> None:
        kind = b"text/event-stream" if stream and status == 200 else b"application/json"
        call.answer(packed, status, b"content-encoding: " + coding.encode(), b"vary: accept-encoding", kind=kind)

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        headers = {"accept-encoding": "gzip, br"} if asked else {}
        answer = await rig.ask({**chat(), "stream": stream}, path, headers=headers)
        assert answer.status == status
        assert answer.headers[b"content-encoding"] == coding.encode()
        assert answer.headers[b"vary"] == b"accept-encoding"
        assert answer.body == packed
        assert answer.whole

    run(case)


def test_case_7_3_an_edited_stream_is_not_asked_for_compressed() -> None:
    """7.3: where the gateway means to take the usage chunk out, it does not pass Accept-Encoding on; else it does."""
    usage = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'

    def play(call: Call) -> None:
        if not call.stream:
            call.answer(ANSWER)
            return
        call.start_events()
        call.end_events(*STREAM, usage, DONE)

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        coding = {"accept-encoding": "gzip"}
        assert (await rig.ask(chat(stream=True), headers=coding)).body == WHOLE_STREAM
        assert b"accept-encoding" not in rig.backend.calls[-1].headers
        asks = chat(stream=True, stream_options={"include_usage": True})
        assert (await rig.ask(asks, headers=coding)).body == b"".join((*STREAM, usage, DONE))
        assert rig.backend.calls[-1].headers[b"accept-encoding"] == b"gzip"
        assert (await rig.ask(chat(), headers=coding)).status == 200
        assert rig.backend.calls[-1].headers[b"accept-encoding"] == b"gzip"

    run(case)


@pytest.mark.parametrize("coding", ["gzip", "zstd", "GZIP, identity", "x"])
def test_case_7_5_a_compressed_body_is_refused_by_its_head(coding: str) -> None:
    """7.5: whether it is what it says or not: engines differ in what they make of it, and 500 would be held against them."""

    async def case(rig: Rig) -> None:
        for body in (gzip.compress(b'{"model":"m"}'), b'{"model":"m"}'):
            answer = await rig.ask(body, headers={"content-encoding": coding})
            assert (answer.status, answer.error["code"]) == (415, "content_encoding")
        assert rig.calls == 0
        assert (await rig.ask(chat(), headers={"content-encoding": "Identity"})).status == 200

    run(case)


DEEP = '{"model":"m","x":%s}'
NO_OBJECT = {
    "empty": b"",
    "array": b"[]",
    "null": b"null",
    "number": b"1",
    "string": b'"x"',
    "two values": b'{"model":"m"}{"model":"m"}',
    "value and rubbish": b'{"model":"m"} x',
    "bom": b'\xef\xbb\xbf{"model":"m"}',
    "utf-16": '{"model":"m"}'.encode("utf-16"),
    "utf-16-le": '{"model":"m"}'.encode("utf-16-le"),
    "utf-32": '{"model":"m"}'.encode("utf-32"),
    "cut": b'{"model":"m","messages":[{"role":"us',
    "cut in an escape": b'{"model":"m","x":"\\',
    "unbalanced": b'{"model":"m","x":[}]}',
    "1,030 deep": (DEEP % ("[" * 1030 + "]" * 1030)).encode(),
    "100,000 deep": (DEEP % ("[" * 100_000 + "]" * 100_000)).encode(),
    "100,000 deep, open": (DEEP % ("[" * 100_000)).encode(),
    "objects, 100,000 deep": (DEEP % ('{"a":' * 100_000 + "1" + "}" * 100_000)).encode(),
}


@pytest.mark.parametrize("name", NO_OBJECT)
def test_case_7_5_what_is_no_json_object(name: str) -> None:
    """7.5: odd JSON is 400 in OpenAI's form within 50 ms, and never reaches a backend."""

    async def case(rig: Rig) -> None:
        async def refused() -> None:
            answer = await rig.ask(NO_OBJECT[name])
            assert answer.status == 400
            assert answer.error["type"] == "invalid_request_error"

        await quick(refused, ODD_LIMIT_S)
        assert rig.calls == 0

    run(case)


@pytest.mark.parametrize(
    "body",
    [
        (DEEP % ("[" * 1000 + "]" * 1000)).encode(),
        b'{"model":"m","x":NaN}',
        b'{"model":"m","x":-Infinity}',
        b'{"model":"m","seed":123456789012345678901234567890}',
        b'{"model":"m","model":"m"}',
        b' \r\n\t{"model":"m"}\n',
    ],
    ids=["1,000 deep", "nan", "infinity", "huge integer", "twice", "space around"],
)
def test_case_7_5_what_the_engine_may_judge(body: bytes) -> None:
    """7.5: what some parsers take goes on byte for byte, and the engine's word on it comes back."""

    def play(call: Call) -> None:
        call.error(422)

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        assert (await rig.ask(body)).status == 422
        assert rig.backend.calls[0].body == body

    run(case)


def test_case_7_5_odd_json_before_a_real_engine_model() -> None:
    """7.5: the same bodies before a simulated engine: every answer is a 4xx, or a plain 200; none is a 5xx."""

    async def case(rig: Rig) -> None:
        for name, body in NO_OBJECT.items():
            answer = await rig.ask(body.replace(b'"m"', b'"demo"'))
            assert 400 <= answer.status < 500, name
        for value in ("NaN", "1e999", '"\\ud800"', "[" * 900 + "]" * 900):
            said = json.dumps({**chat("hi"), "model": "demo", "max_tokens": 1})
            answer = await rig.ask(f'{said[:-1]},"x":{value}}}'.encode())
            assert answer.status < 500, (value, answer)

    run(case, backends=0, engines=(INSTANT,))


def test_case_7_5_a_finished_stream_follows_odd_json() -> None:
    """7.5: on one connection, odd JSON and good requests in turn: each gets its own answer."""

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        for name in ("empty", "null", "cut", "two values"):
            peer.ask(NO_OBJECT[name])
            assert (await peer.answer()).status == 400
            peer.ask(chat(stream=True))
            assert (await peer.answer()).body.endswith(FINISH + DONE)

    run(case)
