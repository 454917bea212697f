"""What the readers' tests share: sinks that write down what they are told, and ways to cut bytes into reads."""

from collections.abc import Iterator
from itertools import pairwise

from hypothesis import strategies as st

from gateway.config import Limits
from gateway.relay.http1 import ProtocolError
from gateway.relay.memo import HeadStore
from gateway.relay.requests import RequestHead, RequestReader
from gateway.relay.responses import ResponseHead, ResponseReader

LIMITS = Limits()
READ_BYTES_MAX = 65536
Event = tuple[object, ...]


def told(head: RequestHead, length: int) -> Event:
    """All that a head says. Content-Length stands in `length`: a recognised head keeps an earlier one's digits."""
    rest = [(name, value) for name, value in head.headers if name != b"content-length"]
    return ("head", head.method, head.path, head.query, head.old, head.keep_alive, head.expects_continue, rest, length)


class Log:
    """Events as told, with neighbouring pieces of a body joined: how reads were cut must not show."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._body = b""

    def on_piece(self, piece: bytes) -> None:
        assert piece, "an empty piece"
        assert self.events, "a piece without a head"
        assert self.events[-1][0] == "head", "a piece behind an end"
        self._body += piece

    def on_end(self) -> None:
        assert self.events[-1][0] == "head", "an end without a head"
        self.events.append(("end", self.seen_body()))
        self._body = b""

    def seen_body(self) -> bytes:
        return self._body


class RequestLog(Log):
    """A RequestSink."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[RequestHead] = []

    def on_head(self, head: RequestHead, length: int) -> None:
        self.heads.append(head)
        self.events.append(told(head, length))

    def whole(self) -> list[tuple[bytes, bytes, bytes]]:
        """The finished requests as (method, target, body)."""
        ends = [event for event in self.events if event[0] == "end"]
        return [(h.method, h.path + h.query, end[1]) for h, end in zip(self.heads, ends, strict=False)]  # type: ignore[misc]


class ResponseLog(Log):
    """A ResponseSink. `takes` answers on_chunks; what it takes is kept raw."""

    def __init__(self, takes: bool = False) -> None:
        super().__init__()
        self.takes = takes
        self.taken: list[bytes] = []

    def on_response(self, head: ResponseHead) -> None:
        rest = [(name, value) for name, value in head.headers if name != b"content-length"]
        self.events.append(("head", head.status, head.reason, head.keep_alive, head.is_sse, rest))

    def on_body(self, piece: bytes) -> None:
        self.on_piece(piece)

    def on_chunks(self, data: bytes) -> bool:
        assert self.events[-1][0] == "head"
        if self.takes:
            self.taken.append(data)
            self.on_piece(dechunked(data))
        return self.takes


def dechunked(data: bytes) -> bytes:
    """The payload of whole chunks."""
    out, at = b"", 0
    while at < len(data):
        line, _, _ = data[at:].partition(b"\r\n")
        start = at + len(line) + 2
        size = int(line, 16)
        assert size > 0
        assert data[start + size : start + size + 2] == b"\r\n"
        out += data[start : start + size]
        at = start + size + 2
    return out


def read_requests(pieces: list[bytes], store: HeadStore[RequestHead] | None = None) -> tuple[RequestLog, int | None]:
    """Everything one connection's reader says to these reads, and the status of the violation that ended it."""
    log = RequestLog()
    reader = RequestReader(log, LIMITS, store)
    try:
        for piece in pieces:
            reader.feed(piece)
    except ProtocolError as error:
        return log, error.status
    return log, None


def read_response(pieces: list[bytes], takes: bool = False, eof: bool = True) -> tuple[ResponseLog, ResponseReader, str]:
    """The same for one response; the violation's status and message, "" when there is none."""
    log = ResponseLog(takes)
    reader = ResponseReader(log, LIMITS)
    reader.expect()
    try:
        for piece in pieces:
            reader.feed(piece)
    except ProtocolError as error:
        return log, reader, f"{error.status} {error.message}"
    if eof:
        reader.eof()
    return log, reader, ""


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """`data` cut at these places."""
    edges = [0, *sorted({place for place in at if 0 < place < len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def every(data: bytes, size: int) -> list[bytes]:
    """`data` in reads of `size` bytes."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def two_pieces(data: bytes) -> Iterator[list[bytes]]:
    """Every way to cut `data` once."""
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]


@st.composite
def reads(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Some way to cut `data`."""
    return cut(data, draw(st.lists(st.integers(1, max(1, len(data) - 1)), max_size=8)))


token = st.sampled_from((b"X-A", b"x-a", b"ACCEPT", b"X_Length", b"Cookie", b"user-agent"))
value = st.sampled_from((b"", b"a", b"content-length: 5", b"{}:;,/?", b'"chunked"', "é".encode(), b"a" * 50))


@st.composite
def chunks(draw: st.DrawFn, body: bytes) -> bytes:
    """`body` in the chunked coding, in chunks of any size, with the freedoms that the coding allows."""
    out = []
    for piece in draw(reads(body)) if body else ():
        digits = draw(st.sampled_from((b"%x", b"%X", b"0%x")))
        out.append(digits % len(piece) + draw(st.sampled_from((b"", b"", b";a=b"))) + b"\r\n" + piece + b"\r\n")
    return b"".join((*out, b"0\r\n", draw(st.sampled_from((b"", b"", b"X-Trailer: 1\r\n"))), b"\r\n"))
