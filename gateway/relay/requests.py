"""Requests from clients: bytes in, heads and body pieces out, every limit on what a client may send. Sans-io.

llhttp (through httptools) does the parsing; what it accepts and we do not is refused here: ambiguous or HTTP/1.0
transfer coding, doubled or malformed Host, odd versions, over-long heads. Only the parsed path is ever used for
routing and authentication, never a URL rebuilt from Host. Must never read a clock or a socket.
"""

import re
from typing import Protocol

import httptools

from gateway.relay.http1 import Headers, HeadLimits, ProtocolError
from gateway.relay.memo import HeadMemo, HeadStore

_HOST = re.compile(rb"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?\Z")
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_PATH = re.compile(rb"/[\x21-\x22\x24-\x7e]*\Z")
_METHODS = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_ONCE = frozenset((b"host", b"content-length", b"transfer-encoding", b"authorization", b"content-type", b"expect"))


class _UpgradeOfferedError(ProtocolError):
    def __init__(self) -> None:
        super().__init__(400, "protocol upgrades are not offered here")


class RequestHead:
    """One request's head; never changed, since equal heads of a connection share it. Names are lower case; `path` is
    raw, without the query. `derived` is for whoever judges heads, to keep what follows from the head alone."""

    __slots__ = ("derived", "expects_continue", "headers", "keep_alive", "method", "old", "path", "query", "values")

    def __init__(self, method: bytes, target: bytes, headers: Headers, version: str, keep_alive: bool) -> None:
        self.method = method
        self.headers = headers
        self.values = dict(headers)
        self.old = version == "1.0"
        self.keep_alive = keep_alive
        self.path, self.query = _split_target(target)
        self.expects_continue = not self.old and self.values.get(b"expect", b"").lower() == b"100-continue"
        self.derived: object = None

    def __repr__(self) -> str:
        return f"<RequestHead {self.method.decode()} {self.path.decode(errors='replace')} {len(self.headers)} headers>"


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
    if not _PATH.match(path) or b"#" in query:
        raise ProtocolError(400, "the request target holds characters that a target cannot have")
    return path, mark + query


class RequestSink(Protocol):
    """What a RequestReader tells its owner, in order: head, body pieces, end. `length` is Content-Length: 0 for no
    body, -1 for a chunked one."""

    def on_head(self, head: RequestHead, length: int) -> None: ...
    def on_piece(self, piece: bytes) -> None: ...
    def on_end(self) -> None: ...


class RequestReader:
    """Turns a client's bytes into heads and body pieces; raises ProtocolError on the first violation."""

    __deletable__ = ("_sink", "_parser")  # for the compiled form
    __slots__ = (
        "_head",
        "_headers",
        "_in_head",
        "_in_message",
        "_left",
        "_limits",
        "_memo",
        "_parser",
        "_quiet_bytes",
        "_replay",
        "_seen",
        "_sink",
        "_target",
    )

    def __init__(self, sink: RequestSink, limits: HeadLimits, store: HeadStore[RequestHead] | None = None) -> None:
        self._sink = sink
        self._limits = limits
        self._parser: httptools.HttpRequestParser | None = None  # made once a head is not known: it takes 900 bytes
        self._memo: HeadMemo[RequestHead] = HeadMemo(store or HeadStore())
        self._left = 0
        self._head: RequestHead | None = None
        self._in_head = False
        self._in_message = False
        self._quiet_bytes = 0  # read since the sink was last told something: heads, trailers, chunk extensions
        self._replay = b""  # all bytes of the head being read, if it began with a read of its own
        self._headers: Headers = []
        self._target = b""
        self._seen = False

    def close(self) -> None:
        """Read no more. Owner, reader and parser hold each other: let go here, they need no garbage collector."""
        del self._sink, self._parser

    @property
    def in_head(self) -> bool:
        """True from a request's first byte to the end of its head."""
        return self._in_head

    def feed(self, data: bytes) -> None:
        """Parse `data`; the sink is called from inside. Raises ProtocolError."""
        if self._left:
            self._feed_body(data)
            return
        if not self._in_message:
            if self._feed_known(data):
                return
            if not self._seen:
                self._seen = True
                if data[:1] == b"\x16" or data[:4] == b"PRI ":
                    raise ProtocolError(400, "this port speaks HTTP/1.1 without TLS")
            self._taken()
            self._replay = data
            self._parse(data)
            head = self._taken()
            if head is not None:
                self._memo.learn(data, head)
        else:
            if self._replay:
                self._replay += data
            self._parse(data)

    def _taken(self) -> RequestHead | None:
        head, self._head = self._head, None
        return head

    def _feed_known(self, data: bytes) -> bool:
        """Take a message whose head is the last one's; False leaves it to the parser."""
        known = self._memo.match(data)
        if known is None:
            return False
        head, at, length = known
        here = len(data) - at
        if here > length:
            return False  # pipelined
        self._memo.hit()
        sink = self._sink
        sink.on_head(head, length)
        if here:
            sink.on_piece(data[at:])
        if here == length:
            sink.on_end()
        else:
            self._left = length - here
        return True

    def _feed_body(self, data: bytes) -> None:
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            self._sink.on_piece(data)
            return
        self._left = 0
        rest = data[left:]
        self._sink.on_piece(data[:left] if rest else data)
        self._sink.on_end()
        if rest:
            self.feed(rest)

    def _parse(self, data: bytes) -> None:
        self._quiet_bytes += len(data)
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ProtocolError(400, "protocol upgrades are not offered here") from None
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, ProtocolError):
                raise
            if not (isinstance(cause, _UpgradeOfferedError) and self._replay):
                raise cause from None
        except httptools.HttpParserError as error:
            raise ProtocolError(400, f"malformed HTTP request: {error}") from None
        else:
            if self._quiet_bytes > self._limits.head_bytes:
                raise ProtocolError(431, f"request head or trailer over {self._limits.head_bytes} bytes")
            return
        self._decline_upgrade()

    def _decline_upgrade(self) -> None:
        """Read the request as if `Upgrade` were not there: some clients offer h2c with every POST, and llhttp would
        take the body for the other protocol's bytes. The field is renamed to one that never crosses a hop."""
        head, end, rest = self._replay.lstrip(b"\r\n").partition(b"\r\n\r\n")
        head, masked = _UPGRADE.subn(b"\r\nkeep-alive:", head)
        if not masked:
            raise ProtocolError(400, "protocol upgrades are not offered here")
        self._parser = httptools.HttpRequestParser(self)
        self._replay = head + end + rest
        self._parse(self._replay)

    # -- llhttp's callbacks

    def on_message_begin(self) -> None:
        self._in_head = self._in_message = True
        self._headers = []
        self._target = b""

    def on_url(self, piece: bytes) -> None:
        self._target += piece
        if len(self._target) > self._limits.url_bytes:
            raise ProtocolError(414, f"request target over {self._limits.url_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer: read over, never used
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        version = parser.get_http_version()
        if parser.should_upgrade():
            raise _UpgradeOfferedError
        self._in_head = False
        self._quiet_bytes = 0
        headers, limits = self._headers, self._limits
        if version not in ("1.1", "1.0"):
            raise ProtocolError(505, f"HTTP/{version} is not served here")
        method = parser.get_method()
        if method not in _METHODS:
            raise ProtocolError(405, "this method is not served here")
        if len(headers) > limits.headers:
            raise ProtocolError(431, f"more than {limits.headers} header fields")
        head = RequestHead(method, self._target, headers, version, parser.should_keep_alive())
        if len(head.values) != len(headers):
            _check_repeats(headers)
        _check_head(head)
        if sum([len(name) + len(value) for name, value in headers]) > limits.head_bytes:
            raise ProtocolError(431, f"request head over {limits.head_bytes} bytes")
        if self._replay:  # else not the first head of its read
            self._replay = b""
            if head.keep_alive and not head.expects_continue:
                self._head = head
        self._headers = []
        self._sink.on_head(head, _length(head))

    def on_body(self, piece: bytes) -> None:
        self._quiet_bytes = 0
        self._sink.on_piece(piece)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._sink.on_end()


def _length(head: RequestHead) -> int:
    length = head.values.get(b"content-length")
    if length is not None:
        return int(length)
    return -1 if b"transfer-encoding" in head.values else 0


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
