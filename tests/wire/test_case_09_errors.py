"""Failure cases, section 9: how a failure looks to the client."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.config import Timeouts
from tests.wire.kit import CONFIG, Rig, chat, run
from tests.wire.peer import Answer
from tests.wire.scripted import Call, silent

FACES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages", "/v1/rerank")


def check_shape(rig: Rig, answer: Answer, path: str) -> None:
    """An error in the form of its face, that names nothing inside."""
    assert answer.whole
    assert answer.headers[b"content-type"] == b"application/json"
    assert b"x-request-id" in answer.headers
    if path == "/v1/messages":
        assert answer.json["type"] == "error"
        assert {"type", "message"} <= answer.json["error"].keys()
    else:
        assert {"message", "type", "code"} <= answer.error.keys()
    inside = (b"127.0.0.1", b"localhost", str(rig.backend.port).encode(), b"Traceback", b".py", b"http://")
    assert not [word for word in inside if word in answer.body]


@pytest.mark.parametrize("path", FACES)
@pytest.mark.parametrize("how", ["close", "reset", "half a head", "wrong length", "garbage", "informational flood"])
def test_case_9_1_a_backend_lost_before_its_answer(how: str, path: str) -> None:
    """9.1, 9.3: the connection breaks before an answer: 502 with a JSON error in the face's form, no address in it."""

    def play(call: Call) -> None:
        if how == "half a head":
            call.write(b"HTTP/1.1 200 OK\r\ncontent-le")
        elif how == "wrong length":
            call.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"a":1}')
        elif how == "garbage":
            call.write(b"\xff\xfe<html>no</html>\r\n\r\n")
        elif how == "informational flood":
            call.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 100)
        call.reset() if how == "reset" else call.close()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        answer = await rig.ask(chat(), path)
        assert answer.status == 502
        assert answer.headers[b"x-should-retry"] == b"false"
        check_shape(rig, answer, path)
        assert rig.calls == 1

    run(case)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("stream", [False, True])
def test_case_9_2_the_backends_headers_stay_on_errors(status: int, stream: bool) -> None:
    """9.2: Retry-After and x-ratelimit-* of a refusing backend reach the client, with its body."""
    lines = (b"retry-after: 7", b"x-ratelimit-limit-requests: 5", b"x-ratelimit-reset-tokens: 6s", b"x-should-retry: true")

    async def case(rig: Rig) -> None:
        rig.backend.play = lambda call: call.error(status, *lines)
        answer = await rig.ask(chat(stream=stream))
        assert answer.status == status
        assert answer.error["message"] == f"the engine says {status}"
        for line in lines:
            name, _, value = line.partition(b": ")
            assert answer.headers[name] == value

    run(case)


def test_case_9_3_a_malformed_body_is_400_in_the_faces_form() -> None:
    """9.3: a body that is no JSON: 400 and not 422, on every face."""

    async def case(rig: Rig) -> None:
        for path in FACES:
            answer = await rig.ask(b'{"model": "m", ', path)
            assert answer.status == 400
            check_shape(rig, answer, path)

    run(case)


@pytest.mark.parametrize(
    ("make", "path", "method", "status", "code"),
    [
        (chat, "/v1/chat/completion", "POST", 200, ""),
        (chat, "/chat/completions", "POST", 404, "unknown_route"),
        (chat, "/v1/v1/chat/completions", "POST", 200, ""),
        (lambda: None, "/v1/chat/completions", "GET", 405, "method_not_allowed"),
        (lambda: None, "/v1/models/none", "GET", 404, "model_not_found"),
        (lambda: None, "/v1/responses/resp_none", "GET", 404, "response_not_found"),
        (lambda: chat() | {"model": "none"}, "/v1/chat/completions", "POST", 404, "model_not_found"),
        (lambda: chat() | {"n": 100_000}, "/v1/chat/completions", "POST", 400, "n_too_large"),
        (lambda: chat() | {"n": 100_000.0}, "/v1/chat/completions", "POST", 400, "n_too_large"),
        (lambda: chat() | {"best_of": "100000"}, "/v1/chat/completions", "POST", 400, "n_too_large"),
        (lambda: None, "/admin/backends", "GET", 404, "unknown_route"),
        (lambda: None, "/metrics", "GET", 404, "unknown_route"),
    ],
)
def test_case_9_3_codes_as_in_the_api_reference(
    make: Callable[[], object], path: str, method: str, status: int, code: str
) -> None:
    """9.3: our own refusals: OpenAI's status, type and code; an engine's own route under /v1 is passed on."""

    async def case(rig: Rig) -> None:
        answer = await rig.ask(make(), path, method)
        assert answer.status == status
        if code:
            check_shape(rig, answer, path)
            assert answer.error["code"] == code
            assert rig.calls == 0

    run(case)


@pytest.mark.parametrize("path", FACES)
def test_case_9_3_a_timeout_names_nothing_inside(path: str) -> None:
    """9.3: 504 in the face's form."""

    async def case(rig: Rig) -> None:
        rig.backend.play = silent
        answer = await rig.ask(chat(), path)
        assert answer.status == 504
        check_shape(rig, answer, path)

    run(case, replace(CONFIG, timeouts=Timeouts(unary_s=0.1)))


@pytest.mark.parametrize(
    ("path", "first", "mark"),
    [
        ("/v1/chat/completions", b'data: {"choices":[]}\n\n', b'data: {"error":{'),
        ("/v1/messages", b'event: message_start\ndata: {"type":"message_start"}\n\n', b'event: error\ndata: {"type":"error",'),
        (
            "/v1/responses",
            b'event: response.created\ndata: {"type":"response.created"}\n\n',
            b'event: error\ndata: {"type":"error",',
        ),
    ],
)
def test_case_9_1_a_failure_inside_a_stream_has_its_faces_form(path: str, first: bytes, mark: bytes) -> None:
    """9.1: inside a stream the error is one event in the face's form, behind a whole event, and names nothing inside."""

    async def play(call: Call) -> None:
        call.start_events()
        call.events(first, first[:20])
        await call.gone.wait()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        answer = await rig.ask(chat(stream=True), path)
        assert answer.status == 200
        assert answer.body.startswith(first + mark)
        assert len(answer.events) == 2
        assert b"127.0.0.1" not in answer.body
        assert not answer.whole

    run(case, replace(CONFIG, timeouts=Timeouts(idle_s=0.1)))
