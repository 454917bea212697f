"""Responses from backends: bytes in, one head and body pieces out; a peer to be distrusted as much as a client. Sans-io."""

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import httptools

from gateway.relay.http1 import LAST_CHUNK, Headers, HeadLimits, ProtocolError
from gateway.relay.memo import HeadMemo, HeadStore

MAX_INFORMATIONAL = 8
_LF = 0x0A


class ResponseHead:
    """A backend's status line and header fields (names lower case); never changed, since equal heads share it.
    `derived` is for whoever writes heads, to keep what follows from this one alone."""

    __slots__ = ("derived", "headers", "is_sse", "keep_alive", "reason", "status", "values")

    def __init__(self, status: int, reason: bytes, headers: Headers, keep_alive: bool) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.values = dict(headers)
        self.keep_alive = keep_alive
        self.is_sse = self.values.get(b"content-type", b"").lower().startswith(b"text/event-stream")
        self.derived: object = None

    def __repr__(self) -> str:
        return f"<ResponseHead {self.status} {len(self.headers)} headers>"


class ResponseSink(Protocol):
    """What a ResponseReader tells its owner; on_end is called once, unless the response is cut.

    `on_chunks` offers whole chunks, framing and all, that each end an event: True takes them as they are, False has
    them parsed and told as pieces.
    """

    def on_response(self, head: ResponseHead) -> None: ...
    def on_body(self, piece: bytes) -> None: ...
    def on_chunks(self, data: bytes) -> bool: ...
    def on_end(self) -> None: ...


class ResponseReader:
    """Turns a backend's bytes into one response after another; raises ProtocolError(502, ...) on a violation.

    `expect` arms it for the next response. A response that is framed by the end of the connection ends by `eof()`.
    `reusable` tells, after the end, whether the connection may carry another request.
    """

    __deletable__ = ("_sink", "_parser")  # for the compiled form
    __slots__ = (
        "_between_chunks",
        "_framed",
        "_fresh",
        "_head",
        "_head_bytes",
        "_headers",
        "_informational",
        "_limits",
        "_memo",
        "_muted",
        "_owed",
        "_parser",
        "_quiet_bytes",
        "_reason",
        "_sink",
        "_take_chunks",
        "ended",
        "reusable",
    )

    def __init__(self, sink: ResponseSink, limits: HeadLimits, store: HeadStore[ResponseHead] | None = None) -> None:
        self._sink = sink
        self._take_chunks: Callable[[bytes], bool] = sink.on_chunks
        self._limits = limits
        self._parser: httptools.HttpResponseParser | None = None  # made once a head is not known: it takes 900 bytes
        self._memo: HeadMemo[ResponseHead] = HeadMemo(store or HeadStore())
        self._head: ResponseHead | None = None
        self._headers: Headers = []
        self._reason = b""
        self._head_bytes = 0
        self._quiet_bytes = 0  # read since the sink was last told something: heads, trailers, chunk extensions
        self._informational = 0
        self._framed = True
        self._fresh = True
        self._between_chunks = False
        self._owed = b""  # the head of a stream that was recognised; the parser has seen nothing of this response
        self._muted = False
        self.ended = False
        self.reusable = False

    def close(self) -> None:
        """Read no more. Owner, reader and parser hold each other: let go here, they need no garbage collector."""
        del self._sink, self._parser

    def expect(self, take_chunks: Callable[[bytes], bool] | None = None) -> None:
        """Make ready for the next response on the same connection; whole chunks are offered to `take_chunks`, or to the
        sink."""
        self._take_chunks = take_chunks or self._sink.on_chunks
        self._framed = self._fresh = True
        self._informational = self._quiet_bytes = 0
        self._owed = b""
        self.ended = self.reusable = self._between_chunks = False

    def forget(self) -> None:
        """The response is over: an idle connection holds nothing of whoever it was for."""
        self._take_chunks = _not_taken

    def feed(self, data: bytes) -> bool:
        """Parse `data`; raises ProtocolError. True when the sink took all of it as whole chunks."""
        if self._between_chunks and data.endswith(b"\n\n\r\n"):
            size = len(data)
            whole = size < len(_SIZE_LINES) and data.startswith(_SIZE_LINES[size])  # one chunk, as most reads are
            if (whole or _are_chunks(data)) and self._take_chunks(data):
                return True
        if self._owed and self._tell(data):
            return False
        self._feed(data)
        if self._between_chunks and data[-1] != _LF:
            self._between_chunks = False  # the parser has read the start of the next size line
        return False

    def _feed(self, data: bytes) -> None:
        if self.ended:
            self.reusable = False
            return
        if self._fresh:
            self._fresh = False
            if self._feed_known(data) or self._feed_stream(data):
                return
            if data[:7] != b"HTTP/1."[: len(data)]:  # llhttp takes RTSP and ICE, too
                raise ProtocolError(502, "not an HTTP/1 response")
            self._taken()
            self._parse(data)
            head = self._taken()
            if head is not None and b"transfer-encoding" in head.values and b"content-length" not in head.values:
                self._memo.learn_whole(data, head)
            elif head is not None:
                self._memo.learn(data, head)
        else:
            if self._owed:
                self._catch_up()
            self._parse(data)

    def _taken(self) -> ResponseHead | None:
        head, self._head = self._head, None
        return head

    def _feed_known(self, data: bytes) -> bool:
        """Take a whole response whose head is the last one's; False leaves it to the parser."""
        known = self._memo.match(data)
        if known is None:
            return False
        head, at, length = known
        if len(data) - at != length:
            return False
        self._memo.hit()
        self.reusable = head.keep_alive
        self._sink.on_response(head)
        if length:
            self._sink.on_body(data[at:])
        self.ended = True
        self._sink.on_end()
        return True

    def _feed_stream(self, data: bytes) -> bool:
        """Take the head of a stream which is the last one's, and what follows it; False leaves it to the parser."""
        known = self._memo.match_whole(data)
        if known is None:
            return False
        self._memo.hit()
        head, self._owed = known
        self.reusable = head.keep_alive
        self._between_chunks = True
        rest = data[len(self._owed) :]
        self._sink.on_response(head)
        if rest and not self._tell(rest):
            self._catch_up()
            self._parse(rest)
        return True

    def _tell(self, data: bytes) -> bool:
        """Tell whole chunks as pieces, the last one perhaps among them. False, and nothing is told, where there is more."""
        pieces = _pieces(data)
        if pieces is None:
            return False
        sink = self._sink
        for piece in pieces:
            if piece:
                sink.on_body(piece)
            else:
                self._owed, self._between_chunks = b"", False
                self.ended = True
                sink.on_end()
        return True

    def _catch_up(self) -> None:
        """Show the parser the head that was recognised without it: it goes on from there."""
        head, self._owed = self._owed, b""
        self._muted = True
        self._parse(head)
        self._muted = False
        self._headers, self._quiet_bytes = [], 0

    def _parse(self, data: bytes) -> None:
        self._quiet_bytes += len(data)
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ProtocolError(502, "the backend tried to switch protocols") from None
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, ProtocolError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            if self.ended:
                self.reusable = False
                return
            raise ProtocolError(502, f"malformed HTTP response: {error}") from None
        if self._quiet_bytes > self._limits.head_bytes:
            raise ProtocolError(502, "response head or trailer over the limit")

    def eof(self) -> bool:
        """The connection ended in order. True when that completes the response."""
        if self.ended or self._framed:
            return self.ended
        self.ended = True
        self._sink.on_end()
        return True

    # -- llhttp's callbacks

    def on_message_begin(self) -> None:
        if self.ended:
            self.reusable = False
        self._headers = []
        self._head_bytes = 0
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._limits.head_bytes or len(self._headers) >= self._limits.headers:
            raise ProtocolError(502, "response head over the limit")
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.ended or self._muted:
            return
        parser = self._parser
        assert parser is not None
        status = parser.get_status_code()
        if status < 200:
            self._informational += 1
            if status < 100 or status == 101 or self._informational > MAX_INFORMATIONAL:
                raise ProtocolError(502, "unexpected informational response")
            return
        head = ResponseHead(status, self._reason, self._headers, parser.should_keep_alive())
        codings = [value.strip().lower() for name, value in self._headers if name == b"transfer-encoding"]
        if codings and codings != [b"chunked"]:
            raise ProtocolError(502, "the response has a transfer coding that was not asked for")
        self._quiet_bytes = 0
        bodiless = status in (204, 304)
        self._framed = bodiless or b"content-length" in head.values or bool(codings)
        self.reusable = self._framed and head.keep_alive
        self._head = head if not bodiless and not self._informational else None
        self._headers = []
        self._sink.on_response(head)

    def on_body(self, piece: bytes) -> None:
        self._quiet_bytes = 0
        if not self.ended:
            self._sink.on_body(piece)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = not self.ended

    def on_message_complete(self) -> None:
        self._between_chunks = False
        parser = self._parser
        if self.ended or not self._framed or parser is None or parser.get_status_code() < 200:
            return
        self.ended = True
        self._sink.on_end()


def _not_taken(data: bytes) -> bool:
    """Chunks are offered to nobody between two responses."""
    return False


def _size_line(size: int) -> bytes:
    """The size line of the one chunk that fills `size` bytes, framing and all; more than `size` bytes if none does (where
    the line becomes a digit longer)."""
    for digits in (1, 2, 3):
        line = b"%x\r\n" % max(0, size - digits - 4)
        if len(line) == digits + 2 and size - digits - 4 > 1:
            return line
    return b"?" * (size + 1)


_SIZE_LINES = [_size_line(size) for size in range(2048)]


@lru_cache(maxsize=4096)
def _chunk_bytes(line: bytes) -> int:
    """What a chunk's size line without extensions says; 0 for the last chunk and for what llhttp should judge."""
    return int(line, 16) if line.isalnum() and len(line) <= 8 and not line.strip(b"0123456789abcdefABCDEF") else 0


def _pieces(data: bytes) -> list[bytes] | None:
    """What is in `data`, if it is whole chunks and nothing else; an empty piece stands for the last one, which has no trailers
    and nothing behind it. None where llhttp should judge."""
    pieces: list[bytes] = []
    at, size = 0, len(data)
    while at < size:
        end = data.find(b"\r\n", at, at + 10)
        if end < 0:
            return None
        begin, length = end + 2, _chunk_bytes(data[at:end])
        if length == 0:
            if data[at:] != LAST_CHUNK:
                return None
            pieces.append(b"")
            return pieces
        at = begin + length + 2
        if at > size or data[at - 2 : at] != b"\r\n":
            return None
        pieces.append(data[begin : at - 2])
    return pieces


def _are_chunks(data: bytes) -> bool:
    """Whether `data` is whole chunks and nothing else, none of them the last one, each with whole events in it (so that
    neither an event nor a mark inside it runs over two chunks)."""
    at, size = 0, len(data)
    while at < size:
        end = data.find(b"\r\n", at, at + 10)
        if end < 0:
            return False
        length = _chunk_bytes(data[at:end])
        at = end + 4 + length
        if length < 2 or data[at - 4 : at] != b"\n\n\r\n":
            return False
    return at == size
