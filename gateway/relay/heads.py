"""Heads that the gateway writes: the request's towards a backend, the response's towards a client. Pure.

One header policy for all routes: hop-by-hop fields cross in neither direction, the client's credentials never reach a
backend, and the framing of each hop is our own.
"""

from gateway.relay.http1 import HOP_BY_HOP, RequestHead, ResponseHead, forwardable

_TO_BACKEND_DROP = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"authorization",
    b"x-api-key",
    b"api-key",
    b"cookie",
    b"x-request-id",
}
_TO_CLIENT_DROP = HOP_BY_HOP | {b"content-length", b"x-request-id", b"x-leeway-backend", b"server-timing"}
_KEEP_ALIVE_10 = b"connection: keep-alive\r\n"
_CLOSE = b"connection: close\r\n"


def request_head(
    head: RequestHead, prefix: bytes, authority: bytes, body_bytes: int, request_id: bytes, api_key: bytes, identity: bool
) -> bytes:
    """The head of a request to a backend. `identity` asks for an uncompressed answer, which we mean to edit."""
    lines = [head.method, b" ", prefix, head.path, head.query, b" HTTP/1.1\r\nhost: ", authority]
    for name, value in forwardable(head.headers, head.values, _TO_BACKEND_DROP):
        if identity and name == b"accept-encoding":
            continue
        lines += (b"\r\n", name, b": ", value)
    lines += (b"\r\nx-request-id: ", request_id)
    if api_key:
        lines += (b"\r\nauthorization: Bearer ", api_key)
    if body_bytes or head.method != b"GET":
        lines += (b"\r\ncontent-length: ", b"%d" % body_bytes)
    lines.append(b"\r\n\r\n")
    return b"".join(lines)


def response_head(response: ResponseHead, extra: bytes, framing: bytes, keep_alive: bool, old_client: bool) -> bytes:
    """The head of a backend's response towards the client. `extra` and `framing` are whole header lines."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (response.status, response.reason)]
    for name, value in forwardable(response.headers, response.values, _TO_CLIENT_DROP):
        lines += (name, b": ", value, b"\r\n")
    lines += (extra, framing, connection_line(keep_alive, old_client), b"\r\n")
    return b"".join(lines)


def connection_line(keep_alive: bool, old_client: bool) -> bytes:
    """The Connection header line, where one is needed."""
    if not keep_alive:
        return _CLOSE
    return _KEEP_ALIVE_10 if old_client else b""


_REASONS = {
    200: b"OK",
    204: b"No Content",
    400: b"Bad Request",
    401: b"Unauthorized",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    414: b"URI Too Long",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}


def own_answer(
    status: int,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    *,
    keep_alive: bool,
    old_client: bool = False,
    bodiless: bool = False,
) -> bytes:
    """A whole answer of ours. `bodiless`: to a HEAD request."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Status"))]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    if status != 204:
        lines.append(b"content-length: %d\r\n" % len(body))
    lines += (connection_line(keep_alive, old_client), b"\r\n")
    if not bodiless:
        lines.append(body)
    return b"".join(lines)
