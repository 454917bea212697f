"""One client connection: bytes in, exchanges in order, bytes out; slow and hostile clients end here. A thin Protocol.

Pipelined requests are read ahead (to a bound) and served in order. The connection is read all the time, so that a
client that leaves is seen in every phase. An error before the body was read is answered, then the rest of the upload
is read over for a moment, so that the answer is not lost to a reset.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from gateway.config import Limits, Timeouts
from gateway.deadlines import Deadlines
from gateway.relay.http1 import ProtocolError
from gateway.relay.memo import HeadStore
from gateway.relay.outlet import way_out
from gateway.relay.requests import RequestHead, RequestReader

NEVER = float("inf")
LINGER_S = 2.0
LAST_REQUEST_S = 1.0


def _nowhere(data: bytes) -> None:
    """Where bytes for a client that left go."""


class Exchange(Protocol):
    """What a connection needs of the request that it carries."""

    def read_head(self, head: RequestHead, length: int) -> bool: ...
    def read_piece(self, piece: bytes) -> None: ...
    def begin(self) -> None: ...
    def on_due(self, now_s: float) -> None: ...
    def on_paused(self, paused: bool) -> None: ...
    def on_gone(self) -> None: ...
    def drain_cut(self) -> None: ...
    def refuse_protocol(self, error: ProtocolError) -> None: ...


class Host(Protocol):
    """The server that connections belong to."""

    limits: Limits
    timeouts: Timeouts
    deadlines: Deadlines
    request_heads: HeadStore[RequestHead]
    draining: bool

    def joined(self, connection: "ClientConnection") -> bool: ...
    def left(self, connection: "ClientConnection") -> None: ...


class ClientConnection:
    """See the module's words. `due_s` is the deadline of whatever the connection waits for now."""

    __slots__ = (
        "_closing",
        "_current",
        "_diverted",
        "_hastened",
        "_host",
        "_last_body_bytes",
        "_lingering",
        "_make",
        "_out",
        "_paused",
        "_pipeline",
        "_reader",
        "_reading",
        "_transport",
        "body_bytes",
        "due_s",
        "write",
    )

    def __init__(self, host: Host, make: Callable[["ClientConnection"], Exchange]) -> None:
        self._host = host
        self._make = make
        self._reader = RequestReader(self, host.limits, host.request_heads)
        self._transport: asyncio.Transport | None = None
        self._current: Exchange | None = None
        self._reading: Exchange | None = None
        self._pipeline: list[Exchange] = []  # a few at most; an empty deque would take ten times as much of each connection
        self._closing = False
        self._diverted = False
        self._hastened = False
        self._lingering = False
        self._paused = False
        self.body_bytes = 0
        self._last_body_bytes = 0
        self.due_s = NEVER
        self._out: Callable[[bytes], None] = _nowhere  # the transport's own way, or past it
        self.write: Callable[[bytes], None] = _nowhere  # the same, but while it is diverted

    # -- what a transport calls: an asyncio.Protocol by shape, since a compiled class can't inherit from a plain one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._out = self._transport.write
        self._transport.set_write_buffer_limits(high=self._host.limits.write_buffer_bytes)
        self._host.deadlines.add(self)
        self.due_s = self._host.deadlines.now_s + self._host.timeouts.head_s
        if not self._host.joined(self):
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return  # lingering: read over what the client still sends
        if self._current is None and self._reading is None and not self._reader.in_head:
            self.due_s = self._host.deadlines.now_s + self._host.timeouts.head_s
        try:
            self._reader.feed(data)
        except ProtocolError as error:
            self._break(error)

    def eof_received(self) -> bool:
        return False  # a client that closes its side is gone

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.write = self._out = _nowhere
        self._closing = True
        self._host.deadlines.discard(self)
        self._host.left(self)
        for exchange in (self._reading, self._current, *self._pipeline):
            if exchange is not None:
                exchange.on_gone()
        self._reading = self._current = None
        self._pipeline.clear()
        self._reader.close()

    def pause_writing(self) -> None:
        self._paused = True
        if self._current is not None:
            self._current.on_paused(True)

    def resume_writing(self) -> None:
        self._paused = False
        if self._current is not None:
            self._current.on_paused(False)

    # -- the reader's sink

    def on_head(self, head: RequestHead, length: int) -> None:
        if len(self._pipeline) >= self._host.limits.pipelined:
            raise ProtocolError(400, "too many pipelined requests")
        exchange = self._reading = self._make(self)
        self.body_bytes = self._last_body_bytes = 0
        if self._current is None:
            self.due_s = self._host.deadlines.now_s + self._host.timeouts.body_stall_s
        if not exchange.read_head(head, length):
            self._abort_upload(exchange)

    def on_piece(self, piece: bytes) -> None:
        self.body_bytes += len(piece)
        if self._reading is not None:
            self._reading.read_piece(piece)

    def on_end(self) -> None:
        exchange, self._reading = self._reading, None
        if exchange is None:
            return
        if self._current is None:
            self._start(exchange)
        else:
            self._pipeline.append(exchange)

    # -- for the exchange

    @property
    def idle(self) -> bool:
        """Nothing is being read or answered."""
        return self._current is None and self._reading is None and not self._reader.in_head

    @property
    def ending(self) -> bool:
        """The connection ends after the present answer, which must say so."""
        return self._closing

    @property
    def first_in_line(self) -> bool:
        """Whether the request being read is answered next (so that 100 Continue cannot overtake an answer)."""
        return self._current is None

    @property
    def paused(self) -> bool:
        """Whether the client reads too slowly just now."""
        return self._paused

    def hasten(self) -> None:
        """Write straight to the kernel from now on. Asked for while an engine is at work: making ready takes a moment."""
        transport = self._transport
        if transport is not None and not self._hastened:
            self._hastened = True
            self._out = way_out(transport).write
            if not self._diverted:
                self.write = self._out

    def divert(self, first: Callable[[bytes], None]) -> None:
        """What is written next goes to `first`, which then has to call `undivert`; `aside` writes past it meanwhile."""
        self._diverted = True
        self.write = first

    def undivert(self) -> None:
        """No more of that."""
        self._diverted = False
        self.write = self._out

    def aside(self, data: bytes) -> None:
        """Write, whether diverted or not."""
        self._out(data)

    def finished(self, keep_alive: bool) -> None:
        """The current exchange has its end."""
        self._current = None
        if self._transport is None:
            return
        if self._lingering:
            self._half_close()
        elif self._closing or not keep_alive:
            self.close()
        elif self._pipeline:
            # its turn is now, so that no later request overtakes it; it begins on a clean stack
            following = self._current = self._pipeline.pop(0)
            self.due_s = NEVER
            asyncio.get_running_loop().call_soon(self._begin, following)
        elif not self._reader.in_head and self._reading is None:
            wait_s = LAST_REQUEST_S if self._host.draining else self._host.timeouts.keep_alive_s
            self.due_s = self._host.deadlines.now_s + wait_s
        else:
            self.due_s = self._host.deadlines.now_s + self._host.timeouts.head_s

    def last_request(self) -> None:
        """The gateway drains. A request may be on its way on an idle connection: it is answered, and the answer says close."""
        if self.idle and not self._closing:
            self.due_s = min(self.due_s, self._host.deadlines.now_s + LAST_REQUEST_S)

    def abort(self) -> None:
        """Break the connection so that nobody can take the answer for a whole one."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def drain_cut(self) -> None:
        """The drain limit is reached: the current exchange gets its error, the connection ends."""
        self._closing = True
        if self._current is not None:
            self._current.drain_cut()
        elif self.idle:
            self.close()
        else:
            self.abort()

    def close(self) -> None:
        """Close after what is written; a client that does not read it is not waited for without end."""
        self._closing = True
        self.due_s = self._host.deadlines.now_s + self._host.timeouts.write_stall_s
        if self._transport is not None:
            self._transport.close()

    def stop_reading_body(self) -> None:
        """The request being read is answered already: its upload is read over, and the connection ends after it."""
        exchange = self._reading
        if exchange is not None:
            self._abort_upload(exchange)

    # -- inside

    def on_due(self, now_s: float) -> None:
        """The sweep found the deadline passed."""
        if self._current is not None:
            self._current.on_due(now_s)
        elif self._closing:
            self.abort()
        elif self._reading is not None:
            self._check_upload(now_s)
        elif self._reader.in_head:
            self._break(ProtocolError(408, "the request head took too long"))
        else:
            self.close()

    def _check_upload(self, now_s: float) -> None:
        timeouts = self._host.timeouts
        arrived = self.body_bytes - self._last_body_bytes
        if arrived < timeouts.body_min_bytes_per_s * timeouts.body_stall_s:
            self._break(ProtocolError(408, "the request body came too slowly"))
            return
        self._last_body_bytes = self.body_bytes
        self.due_s = now_s + timeouts.body_stall_s

    def _start(self, exchange: Exchange) -> None:
        self._current = exchange
        self.due_s = NEVER
        exchange.begin()

    def _begin(self, exchange: Exchange) -> None:
        if self._current is exchange:
            exchange.begin()

    def _break(self, error: ProtocolError) -> None:
        """Answer a violation (after what is still being answered) and end the connection."""
        reading, self._reading = self._reading, None
        if self._current is not None:
            # an answer is due first: it ends, then the connection does
            self._closing = True
            if reading is not None:
                reading.on_gone()
            for exchange in self._pipeline:
                exchange.on_gone()
            self._pipeline.clear()
            return
        exchange = reading or self._make(self)
        self._current = exchange
        self._closing = self._lingering = True
        exchange.refuse_protocol(error)

    def _abort_upload(self, exchange: Exchange) -> None:
        self._reading = None
        if self._current is not None:
            self._closing = True
            exchange.on_gone()
            return
        self._current = exchange
        self._closing = self._lingering = True
        exchange.begin()

    def _half_close(self) -> None:
        """The answer is out: say so, and read over what the client still sends, so that no reset overtakes it."""
        assert self._transport is not None
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self.due_s = self._host.deadlines.now_s + LINGER_S
