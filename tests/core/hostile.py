"""Hostile and odd requests as raw bytes, each with what must become of it. Data only: the core tests feed them to the
reader, a wire test can send them through sockets.

A payload is refused with `status` (and the connection ends), or read as exactly `requests`; never as more. `answer` is
what an open gateway with one working backend says first; 0 = nothing before its time limit, since the request never
ends. `any_cut` is False where the outcome is that of one read, and other cuts may let the last request through.
"""

from dataclasses import dataclass

BODY = b'{"model":"m"}'
LENGTH = b"Content-Length: 13"
CHUNKED = b"Transfer-Encoding: chunked"
TARGET = b"/v1/chat/completions"
CHUNKS = b"d\r\n" + BODY + b"\r\n0\r\n\r\n"
HIDDEN = b"POST /v1/completions HTTP/1.1\r\nHost: hidden\r\nContent-Length: 13\r\n\r\n" + BODY


@dataclass(frozen=True, slots=True)
class Accepted:
    """One request that a payload holds."""

    method: bytes = b"POST"
    target: bytes = TARGET
    body: bytes = BODY


@dataclass(frozen=True, slots=True)
class Payload:
    """See the module's words. `status` is None when the bytes break no rule of HTTP."""

    name: str
    raw: bytes
    status: int | None = 400
    requests: tuple[Accepted, ...] = ()
    answer: int = 400
    any_cut: bool = True


def post(
    *lines: bytes, body: bytes = BODY, target: bytes = TARGET, version: bytes = b"HTTP/1.1", host: bytes = b"leeway"
) -> bytes:
    """A POST with a Host and these header lines."""
    return b"\r\n".join((b"POST " + target + b" " + version, b"Host: " + host, *lines, b"", body))


def get(target: bytes, *lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    """A GET with a Host and these header lines."""
    return b"\r\n".join((b"GET " + target + b" " + version, b"Host: leeway", *lines, b"", b""))


def refused(name: str, raw: bytes, status: int = 400) -> Payload:
    """Must be answered `status`; no request comes out."""
    return Payload(name, raw, status, (), status)


def accepted(name: str, raw: bytes, *requests: Accepted, answer: int = 200) -> Payload:
    """Must be read as these requests (one plain POST unless said)."""
    return Payload(name, raw, None, requests or (Accepted(),), answer)


def waits(name: str, raw: bytes) -> Payload:
    """Never ends: held until the head's or the body's time limit."""
    return Payload(name, raw, None, (), 0)


CONTENT_LENGTH = (
    refused("content-length before chunked", post(LENGTH, CHUNKED, body=b"0\r\n\r\n" + HIDDEN)),
    refused("chunked before content-length", post(CHUNKED, LENGTH, body=b"0\r\n\r\n" + HIDDEN)),
    refused("two equal content-lengths", post(LENGTH, LENGTH)),
    refused("two content-lengths", post(b"Content-Length: 0", LENGTH, body=HIDDEN)),
    refused("content-length list", post(b"Content-Length: 13, 13")),
    refused("content-length +13", post(b"Content-Length: +13")),
    refused("content-length -1", post(b"Content-Length: -1")),
    refused("content-length 0x0d", post(b"Content-Length: 0x0d")),
    refused("content-length 1_3", post(b"Content-Length: 1_3")),
    refused("content-length 1 3", post(b"Content-Length: 1 3")),
    refused("content-length 13.0", post(b"Content-Length: 13.0")),
    refused("content-length 1e1", post(b"Content-Length: 1e1")),
    refused("content-length in arabic digits", post("Content-Length: ١٣".encode())),
    refused("content-length of 20 digits", post(b"Content-Length: 18446744073709551629")),
    refused("content-length of 25 digits", post(b"Content-Length: 9999999999999999999999999")),
    refused("empty content-length", post(b"Content-Length:")),
    refused("blank content-length", post(b"Content-Length:  \t")),
    refused("space before the colon", post(b"Content-Length : 13")),
    refused("tab before the colon", post(b"Content-Length\t: 13")),
    refused("space before the field name", post(b"Accept: */*", b" Content-Length: 13")),
    refused("content-length with a vertical tab", post(b"Content-Length: \x0b13")),
    accepted("content-length with leading zeros", post(b"Content-Length: 0000000013")),
    accepted("content-length with blanks around", post(b"Content-Length: \t 13 \t")),
    accepted("content_length is another field", post(LENGTH, b"Content_Length: 0")),
    waits("content-length over the body", post(b"Content-Length: 14")),
    Payload("content-length under the body", post(b"Content-Length: 0", body=b"garbage\r\n\r\n"), 400, (Accepted(body=b""),)),
    refused("upload over the limit", post(b"Content-Length: 999999999999999999"), 413),
)
TRANSFER_CODING = (
    refused("xchunked", post(b"Transfer-Encoding: xchunked", body=CHUNKS)),
    refused("chunkedx", post(b"Transfer-Encoding: chunkedx", body=CHUNKS)),
    refused("chunked, identity", post(b"Transfer-Encoding: chunked, identity", body=CHUNKS)),
    refused("identity, chunked", post(b"Transfer-Encoding: identity, chunked", body=CHUNKS)),
    refused("gzip, chunked", post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS)),
    refused("gzip", post(b"Transfer-Encoding: gzip", body=CHUNKS)),
    refused("identity", post(b"Transfer-Encoding: identity", LENGTH)),
    refused("chunked twice in one field", post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS)),
    refused("chunked twice in two fields", post(CHUNKED, CHUNKED, body=CHUNKS)),
    refused("identity and chunked in two fields", post(b"Transfer-Encoding: identity", CHUNKED, body=CHUNKS)),
    refused("chunked and identity in two fields", post(CHUNKED, b"Transfer-Encoding: identity", body=CHUNKS)),
    refused("vertical tab before chunked", post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS)),
    refused("form feed after chunked", post(b"Transfer-Encoding: chunked\x0c", body=CHUNKS)),
    refused("quoted chunked", post(b'Transfer-Encoding: "chunked"', body=CHUNKS)),
    refused("chunked with a parameter", post(b"Transfer-Encoding: chunked;q=1", body=CHUNKS)),
    refused("empty transfer-encoding", post(b"Transfer-Encoding:", LENGTH)),
    refused("trailing comma", post(b"Transfer-Encoding: chunked,", body=CHUNKS)),
    refused("folded chunked", post(b"Transfer-Encoding:\r\n chunked", body=CHUNKS)),
    refused("space before transfer-encoding's colon", post(b"Transfer-Encoding : chunked", LENGTH, body=CHUNKS)),
    refused("chunked in HTTP/1.0", post(CHUNKED, body=CHUNKS, version=b"HTTP/1.0")),
    accepted("CHUNKED", post(b"Transfer-Encoding: CHUNKED", body=CHUNKS)),
    accepted("chunked with blanks around", post(b"Transfer-Encoding: \tchunked ", body=CHUNKS)),
    accepted("transfer_encoding is another field", post(LENGTH, b"Transfer_Encoding: chunked")),
    accepted("te: trailers", post(LENGTH, b"TE: trailers", b"Connection: TE")),
)


def _chunked(name: str, body: bytes) -> Payload:
    return refused(name, post(CHUNKED, body=body))


CHUNK_FRAMING = (
    _chunked("chunk size 0xd", b"0xd\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("chunk size +d", b"+d\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("chunk size -d", b"-d\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("space before the chunk size", b" d\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("space behind the chunk size", b"d \r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("underscore in the chunk size", b"0_d\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("chunk size of 17 digits", b"10000000000000000\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("chunk size overflows to 13", b"1000000000000000d\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("empty chunk size", b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("chunk size is no number", b"g\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("LF behind the chunk size", b"d\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("CR alone behind the chunk size", b"d\r" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("LF inside a chunk extension", b"d;a\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("LF behind the chunk's data", b"d\r\n" + BODY + b"\n0\r\n\r\n"),
    _chunked("no line end behind the chunk's data", b"d\r\n" + BODY + b"0\r\n\r\n"),
    _chunked("chunk longer than its size", b"c\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("NUL in the chunk size", b"d\0\r\n" + BODY + b"\r\n0\r\n\r\n"),
    _chunked("LF behind the last chunk", b"d\r\n" + BODY + b"\r\n0\n\n"),
    _chunked("content-length in the trailer", b"d\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\n\r\n"),
    _chunked("transfer-encoding in the trailer", b"d\r\n" + BODY + b"\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    _chunked("space in a trailer's name", b"d\r\n" + BODY + b"\r\n0\r\nX y: 5\r\n\r\n"),
    waits("chunk shorter than its size", post(CHUNKED, body=b"ff\r\n" + CHUNKS)),
    waits("no last chunk", post(CHUNKED, body=b"d\r\n" + BODY + b"\r\n")),
    accepted("chunk extension", post(CHUNKED, body=b'd;a=b;c="d"\r\n' + BODY + b"\r\n0;e\r\n\r\n")),
    accepted("chunk size with leading zeros", post(CHUNKED, body=b"000d\r\n" + BODY + b"\r\n000\r\n\r\n")),
    accepted("trailer", post(CHUNKED, body=b"d\r\n" + BODY + b"\r\n0\r\nHost: other\r\nX-Api-Key: k\r\n\r\n")),
    accepted("one byte a chunk", post(CHUNKED, body=b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n")),
)
LINES = (
    refused("LF line ends", post(LENGTH).replace(b"\r\n", b"\n")),
    refused("LF behind the request line", post(LENGTH).replace(b"\r\n", b"\n", 1)),
    refused("LF behind the head", post(LENGTH, body=b"").replace(b"\r\n\r\n", b"\n\n") + BODY),
    refused("CR line ends", post(LENGTH).replace(b"\r\n", b"\r")),
    refused("CR in a value", post(LENGTH, b"X-A: a\rContent-Length: 0")),
    refused("LF in a value", post(b"X-A: a\nContent-Length: 13")),
    refused("NUL in a value", post(LENGTH, b"X-A: a\0b")),
    refused("NUL in a name", post(LENGTH, b"X\0A: a")),
    refused("bell in a value", post(LENGTH, b"X-A: \x07")),
    refused("DEL in a value", post(LENGTH, b"X-A: \x7f")),
    refused("folded value", post(LENGTH, b"X-A: a\r\n b")),
    refused("folded value by tab", post(LENGTH, b"X-A: a\r\n\tTransfer-Encoding: chunked")),
    refused("nameless field", post(LENGTH, b": a")),
    refused("space in a name", post(LENGTH, b"X A: a")),
    refused("line without a colon", post(LENGTH, b"X-A")),
    refused("raw byte in a name", post(LENGTH, b"X-\xe9: a")),
    refused("parenthesis in a name", post(LENGTH, b"X(A): a")),
    accepted("raw bytes in a value", post(LENGTH, "X-A: é\x85".encode())),
    accepted("empty values", post(b"X-A:", LENGTH, b"X-B: ")),
    accepted("empty lines first", b"\r\n\r\n" + post(LENGTH)),
    accepted("a field's name twice", post(LENGTH, b"X-A: 1", b"x-a: 2")),
)
HOST = (
    refused("no host", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 13\r\n\r\n" + BODY),
    refused("two hosts", post(LENGTH, b"Host: other")),
    refused("two equal hosts", post(LENGTH, b"Host: leeway")),
    refused("empty host", post(LENGTH, host=b"")),
    refused("host with a path", post(LENGTH, host=b"localhost/v1/models?")),
    refused("host with a query", post(LENGTH, host=b"localhost?")),
    refused("host with a user", post(LENGTH, host=b"u@b")),
    refused("host with a fragment", post(LENGTH, host=b"a#b")),
    refused("host with a space", post(LENGTH, host=b"a b")),
    refused("host with a comma", post(LENGTH, host=b"a,b")),
    refused("host with a backslash", post(LENGTH, host=b"a\\b")),
    refused("host with a scheme", post(LENGTH, host=b"http://a")),
    refused("host with a named port", post(LENGTH, host=b"a:http")),
    refused("host with two ports", post(LENGTH, host=b"a:1:2")),
    refused("host with raw bytes", post(LENGTH, host="é".encode())),
    refused("host with an open bracket", post(LENGTH, host=b"[::1")),
    refused("content-type twice", post(LENGTH, b"Content-Type: application/json", b"Content-Type: multipart/form-data")),
    refused("authorization twice", post(LENGTH, b"Authorization: Bearer a", b"Authorization: Bearer b")),
    accepted("host with a port", post(LENGTH, host=b"leeway.example:8080")),
    accepted("IPv6 host", post(LENGTH, host=b"[2001:db8::1]:8080")),
    accepted("HTTP/1.0 without a host", b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: 13\r\n\r\n" + BODY),
)


def _other(name: str, target: bytes, path: bytes = b"") -> Payload:
    """A path that is read as it stands and leads nowhere."""
    return accepted(name, post(LENGTH, target=target), Accepted(target=path or target), answer=404)


TARGETS = (
    accepted("absolute form for another host", post(LENGTH, target=b"http://other:99/v1/chat/completions")),
    accepted("absolute form without a path", get(b"http://other"), Accepted(b"GET", b"/", b"")),
    refused("absolute form with a user", post(LENGTH, target=b"http://u@b/v1/chat/completions")),
    refused("absolute form of another scheme", post(LENGTH, target=b"file:///etc/passwd")),
    refused("absolute form with a query for a host", post(LENGTH, target=b"http://a?/v1/chat/completions")),
    refused("no leading slash", post(LENGTH, target=b"v1/chat/completions")),
    refused("authority form", b"CONNECT backend:8000 HTTP/1.1\r\nHost: backend:8000\r\n\r\n"),
    _other("doubled slash first", b"//v1/chat/completions"),
    _other("doubled slash inside", b"/v1//chat/completions"),
    _other("dot segments", b"/v1/../admin"),
    _other("dot segments to a route", b"/x/../v1/chat/completions"),
    _other("encoded dots", b"/v1/%2e%2e/admin"),
    _other("encoded slash", b"/v1%2fchat/completions"),
    _other("encoded NUL", b"/v1/chat/completions%00"),
    _other("encoded letter", b"/v1/ch%61t/completions"),
    _other("backslash", b"/v1\\chat\\completions"),
    _other("semicolon parameter", b"/v1;a/chat/completions"),
    _other("upper case", b"/V1/chat/completions"),
    refused("fragment", post(LENGTH, target=b"/v1/chat/completions#frag")),
    refused("fragment behind a query", post(LENGTH, target=b"/v1/chat/completions?a#frag")),
    refused("raw byte in the path", post(LENGTH, target=b"/v1/\xe9")),
    refused("raw byte in the query", post(LENGTH, target=b"/v1/chat/completions?\xe9")),
    refused("NUL in the path", post(LENGTH, target=b"/v1/\0")),
    refused("space in the path", post(LENGTH, target=b"/v1/chat completions")),
    accepted("query", post(LENGTH, target=TARGET + b"?a=/b/../c"), Accepted(target=TARGET + b"?a=/b/../c")),
    accepted("unknown route under /v1", post(LENGTH, target=b"/v1/new/thing"), Accepted(target=b"/v1/new/thing")),
)
VERSIONS = (
    waits("HTTP/0.9 line", b"GET /\r\n"),
    refused("HTTP/0.9 with an empty line", b"GET /\r\n\r\n", 505),
    refused("HTTP/0.9 said", get(b"/", version=b"HTTP/0.9"), 505),
    refused("HTTP/1.2", get(b"/", version=b"HTTP/1.2")),
    refused("HTTP/2.0", get(b"/", version=b"HTTP/2.0"), 505),
    refused("HTTP/11", get(b"/", version=b"HTTP/11")),
    refused("http/1.1", get(b"/", version=b"http/1.1")),
    refused("space behind the version", get(b"/", version=b"HTTP/1.1 ")),
    refused("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    refused("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)),
    refused("lower-case method", b"post" + post(LENGTH)[4:]),
    refused("unknown method", b"BREW" + post(LENGTH)[4:]),
    refused("TRACE", b"TRACE / HTTP/1.1\r\nHost: leeway\r\n\r\n", 405),
    refused("tab behind the method", b"POST\t" + post(LENGTH)[5:]),
    accepted("OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: leeway\r\n\r\n", Accepted(b"OPTIONS", b"*", b""), answer=204),
    accepted("GET with a body", get(b"/v1/models", LENGTH) + BODY, Accepted(b"GET", b"/v1/models")),
)
LIMITS = (
    refused("target over the limit", get(b"/v1/" + b"a" * 9000), 414),
    refused("129 fields", post(LENGTH, *[b"X-%d: a" % i for i in range(128)]), 431),
    refused("value over the limit", post(LENGTH, b"X-A: " + b"a" * 70000), 431),
    refused("name over the limit", post(LENGTH, b"X" * 70000 + b": a"), 431),
    refused("many fields over the limit", post(LENGTH, *[b"X-%d: " % i + b"a" * 1000 for i in range(100)]), 431),
    refused("trailer over the limit", post(CHUNKED, body=CHUNKS[:-2] + b"X-A: " + b"a" * 400_000), 431),
    refused("chunk extension over the limit", post(CHUNKED, body=b"d;" + b"a" * 400_000), 431),
    refused("empty lines over the limit", b"\r\n" * 200_000, 431),
)
UPGRADES = (
    accepted(
        "h2c offered with a POST",
        post(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk", LENGTH),
    ),
    accepted(
        "websocket offered",
        get(b"/v1/models", b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: a"),
        Accepted(b"GET", b"/v1/models", b""),
    ),
    accepted("upgrade without connection", post(b"Upgrade: h2c", LENGTH)),
    refused("CONNECT with an upgrade", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"),
)
_OFFER = post(b"Connection: Upgrade", b"Upgrade: h2c", LENGTH)
SEQUENCES = (
    accepted("two requests", post(LENGTH) * 2, Accepted(), Accepted()),
    accepted(
        "a request inside a body", post(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN), Accepted(body=HIDDEN), answer=400
    ),
    Payload("a second request behind close", post(LENGTH, b"Connection: close") + HIDDEN, 400, (Accepted(),), 200),
    Payload("a second request behind HTTP/1.0", post(LENGTH, version=b"HTTP/1.0") + HIDDEN, 400, (Accepted(),), 200),
    Payload("garbage behind a request", post(LENGTH) + b"\0\1\2", 400, (Accepted(),), 200),
    Payload("an upgrade behind a request", post(LENGTH) + _OFFER, 400, (Accepted(),), 200, any_cut=False),
    Payload("an upgrade behind a named one", post(b"Upgrade: h2c", LENGTH) + _OFFER, 400, (Accepted(),), 200, any_cut=False),
    Payload("a second upgrade", _OFFER + _OFFER, 400, (Accepted(),), 200, any_cut=False),
)
PAYLOADS: tuple[Payload, ...] = (
    CONTENT_LENGTH + TRANSFER_CODING + CHUNK_FRAMING + LINES + HOST + TARGETS + VERSIONS + LIMITS + UPGRADES + SEQUENCES
)
