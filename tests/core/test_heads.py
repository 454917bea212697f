"""Heads that the gateway writes: one policy on every route, no credential of a client towards a backend."""

import pytest

from gateway.api import ROUTES
from gateway.relay.heads import connection_line, hop_lines, own_answer, request_head, request_lines, response_lines
from gateway.relay.requests import RequestHead
from gateway.relay.responses import ResponseHead
from tests.core.readers import read_requests, read_response

CANARY = b"canary-7d1f"
CREDENTIALS = (b"Authorization", b"X-Api-Key", b"Api-Key", b"Cookie", b"Proxy-Authorization")
HOPS = (b"TE: trailers", b"Keep-Alive: timeout=5", b"Upgrade: h2c", b"Trailer: x", b"Proxy-Connection: close")


def head(*lines: bytes, target: bytes = b"/v1/chat/completions", body: bytes = b"{}") -> RequestHead:
    raw = b"\r\n".join((b"POST " + target + b" HTTP/1.1", b"Host: public", b"Content-Length: 2", *lines, b"", body))
    log, status = read_requests([raw])
    assert status is None
    return log.heads[0]


def response(*lines: bytes, status: bytes = b"200 OK") -> ResponseHead:
    return ResponseHead(int(status[:3]), status[4:], [_field(line) for line in lines], keep_alive=True)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b": ")
    return name.lower(), value


@pytest.mark.parametrize("target", [*sorted(ROUTES), b"/v1/other", b"/v1/responses/resp_1"])
def test_no_credential_and_no_hop_field_crosses_on_any_route(target: bytes) -> None:
    fields = [name + b": Bearer " + CANARY for name in CREDENTIALS]
    fields += [*HOPS, b"Connection: X-Foo", b"X-Foo: 1", b"Content_Type: x", b"Expect: 100-continue", b"X-Request-Id: mine"]
    lines = request_lines(head(*fields, b"Accept: */*", target=target), identity=False)
    assert lines == target + b" HTTP/1.1\r\naccept: */*\r\n"


def test_everything_else_crosses_as_it_was() -> None:
    fields = (b"Content-Type: application/json", b"traceparent: 00-1-2-03", b"X-A:  b ", b"x-a: c", b"Accept-Encoding: gzip")
    crossing = b"content-type: application/json\r\ntraceparent: 00-1-2-03\r\nx-a: b \r\nx-a: c\r\n"
    assert request_lines(head(*fields), identity=False) == (
        b"/v1/chat/completions HTTP/1.1\r\n" + crossing + b"accept-encoding: gzip\r\n"
    )
    assert request_lines(head(*fields), identity=True) == b"/v1/chat/completions HTTP/1.1\r\n" + crossing


def test_only_the_path_and_query_of_an_absolute_target_cross() -> None:
    lines = request_lines(head(target=b"http://internal:99/v1/chat/completions?a=b"), identity=False)
    assert lines == b"/v1/chat/completions?a=b HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("method", "body_bytes", "framing"),
    [
        (b"POST", 2, b"content-length: 2\r\n"),
        (b"POST", 0, b"content-length: 0\r\n"),
        (b"DELETE", 0, b"content-length: 0\r\n"),
        (b"GET", 0, b""),
        (b"GET", 2, b"content-length: 2\r\n"),
    ],
)
def test_a_request_towards_a_backend_has_our_framing(method: bytes, body_bytes: int, framing: bytes) -> None:
    made = request_head(method, b"/v1/x HTTP/1.1\r\na: b\r\n", b"/base", hop_lines(b"engine:8000", "k"), body_bytes, b"id-1")
    assert (
        made
        == (method + b" /base/v1/x HTTP/1.1\r\na: b\r\nhost: engine:8000\r\nauthorization: Bearer k\r\nx-request-id: id-1\r\n")
        + framing
        + b"\r\n"
    )
    log, status = read_requests([made + b"{}"[:body_bytes]])
    assert (status, log.whole()) == (None, [(method, b"/base/v1/x", b"{}"[:body_bytes])])


def test_a_backend_without_a_key_gets_none() -> None:
    assert hop_lines(b"engine:8000", "") == b"host: engine:8000\r\n"


def test_a_response_loses_its_hop_and_our_own_names() -> None:
    made = response(
        *(b"Connection: X-Foo", b"X-Foo: 1", b"Transfer-Encoding: chunked", b"Content-Length: 5", b"Keep-Alive: timeout=5"),
        *(b"X-Request-Id: theirs", b"X-Leeway-Backend: fake", b"Server-Timing: a", b"bad_name: 1"),
        *(b"Content-Type: application/json", b"Content-Encoding: gzip", b"Retry-After: 7", b"X-RateLimit-Limit: 3"),
        status=b"429 Too Many",
    )
    lines = b"content-type: application/json\r\ncontent-encoding: gzip\r\nretry-after: 7\r\nx-ratelimit-limit: 3\r\n"
    assert response_lines(made) == b"HTTP/1.1 429 Too Many\r\n" + lines
    assert response_lines(made) is response_lines(made), "kept with the head"


@pytest.mark.parametrize(
    ("keep_alive", "old", "line"),
    [
        (True, False, b""),
        (False, False, b"connection: close\r\n"),
        (True, True, b"connection: keep-alive\r\n"),
        (False, True, b"connection: close\r\n"),
    ],
)
def test_connection_line(keep_alive: bool, old: bool, line: bytes) -> None:
    assert connection_line(keep_alive, old) == line


@pytest.mark.parametrize("status", [200, 204, 400, 401, 404, 405, 408, 413, 414, 429, 431, 502, 503, 504, 505, 418])
def test_an_answer_of_ours_is_one_whole_response(status: int) -> None:
    body = b"" if status == 204 else b'{"a":1}'
    raw = own_answer(status, [(b"content-type", b"application/json")], body, keep_alive=True)
    log, reader, violation = read_response([raw], eof=False)
    assert (violation, reader.ended, reader.reusable) == ("", True, True)
    assert log.events[0][1] == status
    assert log.events[0][2], "a reason"
    assert log.events[1] == ("end", body)


def test_an_answer_to_head_has_the_length_and_no_body() -> None:
    raw = own_answer(200, [], b'{"a":1}', keep_alive=False, bodiless=True)
    assert raw == b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\n"
    assert own_answer(204, [], b"", keep_alive=True, old_client=True) == (
        b"HTTP/1.1 204 No Content\r\nconnection: keep-alive\r\n\r\n"
    )
