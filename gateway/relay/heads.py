"""Heads that the gateway writes: the request's towards a backend, the response's towards a client. Pure.

One header policy for all routes: hop-by-hop fields cross in neither direction, the client's credentials never reach a
backend, and the framing of each hop is our own.
"""

from gateway.relay.http1 import HOP_BY_HOP, forwardable
from gateway.relay.requests import RequestHead
from gateway.relay.responses import ResponseHead

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
_PRIORITY = frozenset((b"x-vllm-priority", b"x-override-priority"))
_TO_CLIENT_DROP = HOP_BY_HOP | {b"content-length", b"x-request-id", b"x-leeway-backend", b"server-timing"}
_KEEP_ALIVE_10 = b"connection: keep-alive\r\n"
_CLOSE = b"connection: close\r\n"


def request_lines(head: RequestHead, identity: bool, priority_stays: bool = True) -> bytes:
    """What of a request's head goes on as it is: the target and the forwardable fields. `identity` drops
    Accept-Encoding, for answers that we mean to edit; without `priority_stays` no client says what its place in an
    engine's queue is."""
    drop = _TO_BACKEND_DROP | {b"accept-encoding"} if identity else _TO_BACKEND_DROP
    if not priority_stays:
        drop = drop | _PRIORITY
    lines = [head.path, head.query, b" HTTP/1.1\r\n"]
    for name, value in forwardable(head.headers, head.values, drop):
        lines += (name, b": ", value, b"\r\n")
    return b"".join(lines)


def request_head(
    method: bytes, lines: bytes, prefix: bytes, hop_lines: bytes, body_bytes: int, request_id: bytes, as_session: bool = False
) -> bytes:
    """The head of a request to a backend: `prefix` of its base URL, `request_lines`, and the hop's own fields.

    With `as_session` the request's id is also the session of a request that brings none, so that the engine's KV events
    name it. Of two such lines engines take the first, which is the client's."""
    if as_session:
        request_id = b"%b\r\nx-session-id: %b" % (request_id, request_id)
    if body_bytes == 0 and method == b"GET":
        return b"%b %b%b%bx-request-id: %b\r\n\r\n" % (method, prefix, lines, hop_lines, request_id)
    return b"%b %b%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
        method,
        prefix,
        lines,
        hop_lines,
        request_id,
        body_bytes,
    )


def hop_lines(authority: bytes, api_key: str, mark: bytes = b"") -> bytes:
    """The fields of every request to one backend. `mark` is how a gateway behind it knows that the request came through us."""
    key = b"authorization: Bearer %b\r\n" % api_key.encode() if api_key else b""
    via = b"via: 1.1 %b\r\n" % mark if mark else b""
    return b"host: %b\r\n%b%b" % (authority, key, via)


def response_lines(response: ResponseHead) -> bytes:
    """The status line and the forwardable fields of a response; the same for equal heads, so kept with them."""
    kept = response.derived
    if type(kept) is bytes:
        return kept
    lines = [b"HTTP/1.1 %d %b\r\n" % (response.status, response.reason)]
    for name, value in forwardable(response.headers, response.values, _TO_CLIENT_DROP):
        lines += (name, b": ", value, b"\r\n")
    made = response.derived = b"".join(lines)
    return made


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
    415: b"Unsupported Media Type",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
    508: b"Loop Detected",
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
