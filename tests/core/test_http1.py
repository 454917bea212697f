"""What crosses a hop, and the chunked coding."""

import pytest

from gateway.relay.http1 import HOP_BY_HOP, LAST_CHUNK, Headers, ProtocolError, chunk, forwardable

FOO: Headers = [(b"x-foo", b"1"), (b"x-bar", b"2")]


@pytest.mark.parametrize(
    ("headers", "crossing"),
    [
        (FOO, [b"x-foo", b"x-bar"]),
        ([(b"connection", b"close"), *FOO], [b"x-foo", b"x-bar"]),
        ([(b"connection", b"Keep-Alive"), *FOO], [b"x-foo", b"x-bar"]),
        ([(b"connection", b"X-Foo"), *FOO], [b"x-bar"]),
        ([(b"connection", b"close, x-foo"), *FOO], [b"x-bar"]),
        ([(b"connection", b" X-FOO ,\tx-bar"), *FOO], []),
        ([(b"connection", b"x-foo"), *FOO, (b"connection", b"close")], [b"x-bar"]),
        ([(b"connection", b"close"), *FOO, (b"connection", b"x-bar")], [b"x-foo"]),
        ([(b"connection", b""), *FOO], [b"x-foo", b"x-bar"]),
        ([(b"x_foo", b"1"), (b"content_length", b"0"), *FOO], [b"x-foo", b"x-bar"]),
        ([(b"x-drop", b"1"), *FOO], [b"x-foo", b"x-bar"]),
        ([(name, b"1") for name in sorted(HOP_BY_HOP)], []),
        ([(b"x-foo", b"1"), (b"x-foo", b"2")], [b"x-foo", b"x-foo"]),
    ],
)
def test_forwardable(headers: Headers, crossing: list[bytes]) -> None:
    kept = forwardable(headers, dict(headers), HOP_BY_HOP | {b"x-drop"})
    assert [name for name, _ in kept] == crossing
    assert all(field in headers for field in kept)


def test_hop_by_hop_fields_are_those_of_the_standard() -> None:
    assert {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"} <= HOP_BY_HOP
    assert {b"proxy-authorization", b"proxy-authenticate", b"proxy-connection", b"http2-settings"} <= HOP_BY_HOP


def test_chunks() -> None:
    assert chunk(b"a" * 26) == b"1a\r\n" + b"a" * 26 + b"\r\n"
    assert LAST_CHUNK == b"0\r\n\r\n"


def test_a_violation_carries_its_status() -> None:
    error = ProtocolError(431, "too long")
    assert (error.status, error.message, str(error)) == (431, "too long", "too long")
