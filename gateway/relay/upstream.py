"""One connection to a backend: bytes out, one response in, and what became of it. A thin Protocol around ResponseReader.

The owner (one request) is told of head, body pieces and end as they are parsed, then `on_batch` once per read, so that
it can write once per read. `sent` marks the retry boundary: after the first request byte was handed to the kernel the
request may have run.
"""

import asyncio
import select
from typing import Literal, Protocol, cast

from gateway.relay.http1 import HeadLimits, ProtocolError
from gateway.relay.memo import HeadStore
from gateway.relay.outlet import Way, way_out
from gateway.relay.responses import ResponseHead, ResponseReader

Lost = Literal["reset", "protocol"]
ONE_WRITE_BYTES = 65536


class Owner(Protocol):
    """Who waits for a response."""

    def on_response(self, head: ResponseHead) -> None: ...
    def on_body(self, piece: bytes) -> None: ...
    def on_chunks(self, data: bytes) -> bool: ...
    def on_end(self) -> None: ...
    def on_batch(self) -> None: ...
    def on_lost(self, how: Lost, message: str) -> None: ...


class Home(Protocol):
    """The pool that a connection returns to."""

    def returned(self, connection: "UpstreamConnection") -> None: ...
    def gone(self, connection: "UpstreamConnection", eof: bool) -> None: ...
    def announced(self, keep_alive: bytes) -> None: ...


class UpstreamConnection:
    """See the module's words. Idle when it has no owner."""

    __slots__ = ("_home", "_owner", "_poll", "_reader", "_transport", "_way", "address", "idle_since_s", "used")

    def __init__(self, home: Home, limits: HeadLimits, store: HeadStore[ResponseHead] | None = None) -> None:
        self._home = home
        self._reader = ResponseReader(self, limits, store)
        self._owner: Owner | None = None
        self._transport: asyncio.Transport | None = None
        self._way: Way | None = None
        self._poll: select.poll | None = None
        self.address = ""  # of the peer, as the pool found it
        self.idle_since_s = 0.0
        self.used = 0

    # -- for the pool and the owner

    @property
    def alive(self) -> bool:
        transport = self._transport
        return transport is not None and not transport.is_closing()

    def readable(self) -> bool:
        """Whether the kernel holds bytes or an end for this idle connection: then it must not carry a request."""
        if self._poll is None:
            return False
        return bool(self._poll.poll(0))

    def send(self, owner: Owner, size: int, *parts: bytes | memoryview) -> None:
        """Write one request with a body of that size. From here on it may have run."""
        assert self._owner is None
        assert self._way is not None
        self._owner = owner
        self.used += 1
        self._reader.expect(owner.on_chunks)
        if size <= ONE_WRITE_BYTES:
            self._way.write(b"".join(parts))
        else:
            self._way.writelines(parts)

    def pause(self) -> None:
        """Stop reading: the client is slow."""
        if self.alive:
            self._transport.pause_reading()  # type: ignore[union-attr]

    def resume(self) -> None:
        """Read on."""
        if self.alive:
            self._transport.resume_reading()  # type: ignore[union-attr]

    def abandon(self) -> None:
        """The owner gives up: the backend sees the connection die at once."""
        self._owner = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close an idle connection."""
        if self._transport is not None:
            self._transport.close()

    # -- what a transport calls: an asyncio.Protocol by shape, since a compiled class can't inherit from a plain one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self._transport = cast("asyncio.Transport", transport)
        self._way = way_out(self._transport)
        if transport.get_extra_info("sslcontext") is None:
            self._poll = select.poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        owner = self._owner
        if owner is None:  # bytes that nobody asked for
            self.abandon()
            return
        reader = self._reader
        try:
            if reader.feed(data):
                return
        except ProtocolError as error:
            if self._owner is not None:
                self._lose("protocol", error.message)
            return
        if self._owner is not owner:
            return  # the owner let go while being told
        owner.on_batch()
        if reader.ended:
            self._release()

    def eof_received(self) -> None:
        if self._owner is not None and self._reader.eof():
            owner = self._owner
            owner.on_batch()
            self._release()

    def pause_writing(self) -> None:
        """A body is written once, in full: nothing would stop."""

    def resume_writing(self) -> None:
        """Nothing was stopped."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._way = None
        if self._owner is not None:
            self._lose("reset", "the backend closed the connection")
        self._home.gone(self, exc is None)
        self._reader.close()

    # -- the reader's sink

    def on_response(self, head: ResponseHead) -> None:
        if b"keep-alive" in head.values:
            self._home.announced(head.values[b"keep-alive"])
        if self._owner is not None:
            self._owner.on_response(head)

    def on_body(self, piece: bytes) -> None:
        if self._owner is not None:
            self._owner.on_body(piece)

    def on_chunks(self, data: bytes) -> bool:
        return self._owner is not None and self._owner.on_chunks(data)

    def on_end(self) -> None:
        if self._owner is not None:
            self._owner.on_end()

    # -- inside

    def _release(self) -> None:
        if self._owner is None:
            return
        self._owner = None
        self._reader.forget()
        if self._reader.reusable and self.alive:
            self._home.returned(self)
        elif self._transport is not None:
            self._transport.close()

    def _lose(self, how: Lost, message: str) -> None:
        owner, self._owner = self._owner, None
        if self._transport is not None:
            self._transport.abort()
        if owner is not None:
            owner.on_lost(how, message)
