"""HTTP/1.1 framing without sockets: requests in, responses in, heads out; every limit on what a peer may send.

llhttp (through httptools) does the parsing; what it accepts and we do not is refused here: ambiguous or HTTP/1.0
transfer coding, doubled or malformed Host, odd versions, over-long heads. Only the parsed path is ever used for
routing and authentication, never a URL rebuilt from Host. Must never read a clock or a socket.
"""

import re
from typing import Protocol

import httptools

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te")
    + (b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings")
)
_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_PATH = re.compile(rb"/[\x21-\x22\x24-\x7e]*\Z")
_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type", b"expect"))


class ProtocolError(Exception):
    """A peer broke the protocol; `status` is what a client is told, and the connection closes after it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _UpgradeOfferedError(ProtocolError):
    def __init__(self, repeated: bool) -> None:
        super().__init__(400, "protocol upgrades are not offered here")
        self.repeated = repeated


class HeadLimits(Protocol):
    """The part of config.Limits that bounds a head."""

    @property
    def head_bytes(self) -> int: ...
    @property
    def headers(self) -> int: ...
    @property
    def url_bytes(self) -> int: ...


class RequestHead:
    """One request's head. Header names are lower case; `path` is raw, without the query."""

    __slots__ = ("content_length", "expects_continue", "headers", "keep_alive", "method", "old", "path", "query", "values")

    def __init__(self, method: bytes, target: bytes, headers: Headers, version: str, keep_alive: bool) -> None:
        self.method = method
        self.headers = headers
        self.values = dict(headers)
        self.old = version == "1.0"
        self.keep_alive = keep_alive
        self.path, self.query = _split_target(target)
        self.content_length = int(self.values.get(b"content-length", b"-1"))
        self.expects_continue = self.values.get(b"expect", b"").lower() == b"100-continue" and not self.old

    def __repr__(self) -> str:
        return f"<RequestHead {self.method.decode()} {self.path.decode(errors='replace')} {len(self.headers)} headers>"

    @property
    def has_body(self) -> bool:
        return self.content_length > 0 or b"transfer-encoding" in self.values


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    if target[:1] != b"/":
        if target == b"*":
            return b"*", b""
        scheme, separator, rest = target.partition(b"://")
        if not separator or scheme.lower() not in (b"http", b"https"):
            raise ProtocolError(400, "the request target is neither a path nor an http URL")
        authority, slash, path = rest.partition(b"/")
        if not _HOST.match(authority):
            raise ProtocolError(400, "the request target names no valid host")
        target = slash + path or b"/"
    path, mark, query = target.partition(b"?")
    if not _PATH.match(path):
        raise ProtocolError(400, "the request path holds characters that a path cannot have")
    return path, mark + query


class RequestSink(Protocol):
    """What a RequestReader tells its owner, in order: head, body pieces, end."""

    def on_head(self, head: RequestHead) -> None: ...
    def on_piece(self, piece: bytes) -> None: ...
    def on_end(self) -> None: ...


class RequestReader:
    """Turns a client's bytes into heads and body pieces; raises ProtocolError on the first violation."""

    __slots__ = ("_declined", "_head_bytes", "_headers", "_in_head", "_limits", "_parser", "_seen", "_sink", "_target")

    def __init__(self, sink: RequestSink, limits: HeadLimits) -> None:
        self._sink = sink
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = False
        self._head_bytes = 0
        self._headers: Headers = []
        self._target = b""
        self._seen = False
        self._declined = False

    @property
    def in_head(self) -> bool:
        """True from a request's first byte to the end of its head."""
        return self._in_head

    def feed(self, data: bytes) -> None:
        """Parse `data`; the sink is called from inside. Raises ProtocolError."""
        if not self._seen:
            self._seen = True
            if data[:1] == b"\x16" or data[:4] == b"PRI ":
                raise ProtocolError(400, "this port speaks HTTP/1.1 without TLS")
        fresh = not self._in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ProtocolError(400, "protocol upgrades are not offered here") from None
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, _UpgradeOfferedError) and fresh and not cause.repeated:
                self._decline_upgrade(data)
            elif isinstance(cause, ProtocolError):
                raise cause from None
            else:
                raise
        except httptools.HttpParserError as error:
            raise ProtocolError(400, f"malformed HTTP request: {error}") from None
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                raise ProtocolError(431, f"request head over {self._limits.head_bytes} bytes")

    def _decline_upgrade(self, data: bytes) -> None:
        """Read the request as if `Upgrade` were not there: some clients offer h2c with every POST, and llhttp would
        take the body for the other protocol's bytes."""
        head, end, rest = data.partition(b"\r\n\r\n")
        head, masked = _UPGRADE.subn(b"\r\nx-declined:", head)
        if not masked or not end:
            raise ProtocolError(400, "protocol upgrades are not offered here")
        self._parser = httptools.HttpRequestParser(self)
        self._declined = True
        try:
            self.feed(head + end + rest)
        finally:
            self._declined = False

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._headers = []
        self._target = b""

    def on_url(self, piece: bytes) -> None:
        self._target += piece
        if len(self._target) > self._limits.url_bytes:
            raise ProtocolError(414, f"request target over {self._limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: read over, never used
        self._headers.append((name.lower(), value))
        if len(self._headers) > self._limits.headers:
            raise ProtocolError(431, f"more than {self._limits.headers} header fields")

    def on_headers_complete(self) -> None:
        parser = self._parser
        version = parser.get_http_version()
        if parser.should_upgrade():
            raise _UpgradeOfferedError(self._declined)
        self._in_head = False
        headers = self._headers
        if version != "1.1" and version != "1.0":
            raise ProtocolError(505, f"HTTP/{version} is not served here")
        method = parser.get_method()
        if method not in _METHODS:
            raise ProtocolError(405, "this method is not served here")
        head = RequestHead(method, self._target, headers, version, parser.should_keep_alive())
        if len(head.values) != len(headers):
            _check_repeats(headers)
        _check_head(head)
        if sum(len(name) + len(value) for name, value in headers) > self._limits.head_bytes:
            raise ProtocolError(431, f"request head over {self._limits.head_bytes} bytes")
        self._sink.on_head(head)

    def on_body(self, piece: bytes) -> None:
        self._sink.on_piece(piece)

    def on_message_complete(self) -> None:
        self._sink.on_end()


def _check_repeats(headers: Headers) -> None:
    seen = set()
    for name, _ in headers:
        if name in seen and name in _ONCE:
            raise ProtocolError(400, f"header field {name.decode()} given twice")
        seen.add(name)


def _check_head(head: RequestHead) -> None:
    values = head.values
    host = values.get(b"host")
    if host is None:
        if not head.old:
            raise ProtocolError(400, "the Host header field is missing")
    elif not _HOST.match(host):
        raise ProtocolError(400, "the Host header field is malformed")
    coding = values.get(b"transfer-encoding")
    if coding is not None:
        if head.old or coding.strip().lower() != b"chunked":
            raise ProtocolError(400, "only the chunked transfer coding of HTTP/1.1 is accepted")
        if b"content-length" in values:
            raise ProtocolError(400, "Content-Length and Transfer-Encoding together")


def forwardable(headers: Headers, values: dict[bytes, bytes], drop: frozenset[bytes]) -> Headers:
    """The header fields that cross to the next hop: no hop-by-hop ones, none that Connection names, none in `drop`.

    Names with an underscore are dropped too: some servers read `content_length` as Content-Length.
    """
    named = values.get(b"connection")
    if named is not None and named.lower() not in (b"keep-alive", b"close"):
        drop = drop | {token.strip().lower() for token in named.split(b",")}
    return [(name, value) for name, value in headers if name not in drop and b"_" not in name]


class ResponseHead:
    """A backend's status line and header fields (names lower case)."""

    __slots__ = ("headers", "keep_alive", "reason", "status", "values")

    def __init__(self, status: int, reason: bytes, headers: Headers, keep_alive: bool) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.values = dict(headers)
        self.keep_alive = keep_alive

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status} {len(self.headers)} headers>"

    @property
    def is_sse(self) -> bool:
        return self.values.get(b"content-type", b"").startswith(b"text/event-stream")


class ResponseSink(Protocol):
    """What a ResponseReader tells its owner; on_end is called once, unless the response is cut."""

    def on_response(self, head: ResponseHead) -> None: ...
    def on_body(self, piece: bytes) -> None: ...
    def on_end(self) -> None: ...


MAX_INFORMATIONAL = 8


class ResponseReader:
    """Turns a backend's bytes into one response; raises ProtocolError(502, ...) on a violation.

    A response that is framed by the end of the connection ends by `eof()`. `reusable` tells, after the end, whether
    the connection may carry another request.
    """

    __slots__ = (
        "_ended",
        "_framed",
        "_head_bytes",
        "_headers",
        "_informational",
        "_limits",
        "_parser",
        "_reason",
        "_sink",
        "reusable",
    )

    def __init__(self, sink: ResponseSink, limits: HeadLimits) -> None:
        self._sink = sink
        self._limits = limits
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = []
        self._reason = b""
        self._framed = True
        self._ended = False
        self._head_bytes = 0
        self._informational = 0
        self.reusable = False

    @property
    def ended(self) -> bool:
        """The response is read whole."""
        return self._ended

    def expect(self) -> None:
        """Make ready for the next response on the same connection."""
        self._ended = False
        self._framed = True
        self._head_bytes = 0
        self._informational = 0
        self.reusable = False

    def feed(self, data: bytes) -> None:
        """Parse `data`; raises ProtocolError."""
        if self._ended:
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ProtocolError(502, "the backend tried to switch protocols") from None
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, ProtocolError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            if self._ended:
                self.reusable = False
                return
            raise ProtocolError(502, f"malformed HTTP response: {error}") from None

    def eof(self) -> bool:
        """The connection ended in order. True when that completes the response."""
        if self._ended or self._framed:
            return self._ended
        self._ended = True
        self._sink.on_end()
        return True

    def on_message_begin(self) -> None:
        if self._ended:
            self.reusable = False
        self._headers = []
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes or len(self._headers) >= self._limits.headers:
            raise ProtocolError(502, "response head over the limit")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._ended:
            return
        parser = self._parser
        status = parser.get_status_code()
        if status < 200:
            self._informational += 1
            if status == 101 or self._informational > MAX_INFORMATIONAL:
                raise ProtocolError(502, "unexpected informational response")
            return
        head = ResponseHead(status, self._reason, self._headers, parser.should_keep_alive())
        bodiless = status == 204 or status == 304
        self._framed = bodiless or b"content-length" in head.values or b"transfer-encoding" in head.values
        self.reusable = self._framed and head.keep_alive
        self._sink.on_response(head)

    def on_body(self, piece: bytes) -> None:
        if not self._ended:
            self._sink.on_body(piece)

    def on_message_complete(self) -> None:
        if self._ended:
            return
        if self._parser.get_status_code() < 200:
            return
        if not self._framed:
            return
        self._ended = True
        self._sink.on_end()


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding; `data` is not empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
