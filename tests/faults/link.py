"""One connection through the fault proxy: the gateway's side, the backend's side, and the strike between them. Shell.

Bytes pass unchanged and with back-pressure until the armed fault's phase is reached in a response; then `_strike`.
The link knows which request it carries by the x-request-id that the gateway sends to backends.
"""

import asyncio
import fcntl
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from tests.faults.backend import reset
from tests.faults.phases import PASSIVE, Fault, locate
from tests.faults.script import EXTRA, GARBAGE, INFORMATIONAL, LAST_CHUNK

if TYPE_CHECKING:
    from tests.faults.proxy import FaultProxy

FLOOD = INFORMATIONAL * 100
SLICED_BYTES = 150
SIOCOUTQNSD = 0x894B  # bytes that the kernel has not sent yet
_LENGTH = b"\r\ncontent-length:"


class Pacer:
    """Writes late, slowly, or in single bytes; always in order."""

    def __init__(self, fault: Fault, write: Callable[[bytes], None], jitter: Callable[[], float]) -> None:
        self._fault = fault
        self._write = write
        self._jitter = jitter
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self._armed = False
        self._sliced = 0
        self._then: Callable[[], None] | None = None

    def send(self, data: bytes) -> None:
        """Take more bytes."""
        if self._fault.kind == "slicer" and self._sliced < SLICED_BYTES:
            room = SLICED_BYTES - self._sliced
            self._queue.extend(data[i : i + 1] for i in range(min(room, len(data))))
            self._sliced += min(room, len(data))
            if len(data) > room:
                self._queue.append(data[room:])
        elif self._fault.kind == "bandwidth":
            step = max(1, self._fault.rate_bytes_per_s // 100)
            data = (self._queue.pop() if self._queue else b"") + data  # the last piece may have room
            self._queue.extend(data[i : i + step] for i in range(0, len(data), step))
        else:
            self._queue.append(data)
        self._arm()

    @property
    def empty(self) -> bool:
        """Everything is written."""
        return not self._queue

    def finish(self, then: Callable[[], None]) -> None:
        """Call `then` once all is written."""
        if self._queue:
            self._then = then
        else:
            then()

    def _arm(self) -> None:
        if self._armed or not self._queue:
            return
        self._armed = True
        if self._fault.kind == "slicer":
            self._loop.call_soon(self._next)
        elif self._fault.kind == "bandwidth":
            self._loop.call_later(0.01, self._next)
        else:
            self._loop.call_later(self._fault.delay_s * self._jitter(), self._next)

    def _next(self) -> None:
        self._armed = False
        self._write(self._queue.popleft())
        self._arm()
        if not self._queue and self._then is not None:
            self._then()


class Link:
    """See the module's words. `silent`: bytes are swallowed in both directions; `deaf`: only those to the gateway."""

    def __init__(self, proxy: "FaultProxy", peer: socket.socket) -> None:
        self._proxy = proxy
        self._peer = peer
        self.front_transport: asyncio.Transport | None = None
        self.back_transport: asyncio.Transport | None = None
        self.request_id = ""
        self._answered = True
        self.silent = False
        self.deaf = False
        self._fault: Fault | None = None
        self._struck = False
        self._struck_at_connect = False
        self._closed = False
        self._waiting: list[bytes] = []
        self._seen = bytearray()
        self._left = -1  # bytes of the response still to come; -1 = unknown
        self._down_bytes = 0
        self._pacer: Pacer | None = None
        self._up_pacer: Pacer | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """No request is on it, and its last answer is sent (what is not, a reset would take back)."""
        front = self.front_transport
        if not self._answered or (self._pacer is not None and not self._pacer.empty) or front is None:
            return False
        unsent = bytearray(4)
        fcntl.ioctl(front.get_extra_info("socket").fileno(), SIOCOUTQNSD, unsent)
        return front.get_write_buffer_size() == 0 and not any(unsent)

    async def run(self) -> None:
        """Set both sides up."""
        loop = asyncio.get_running_loop()
        fault = self._proxy.fault
        await loop.connect_accepted_socket(lambda: _Front(self), self._peer)
        if fault is not None and fault.phase == "connect" and fault.kind not in PASSIVE:
            self._struck = self._struck_at_connect = True
            self._strike(fault, b"")
        if self.silent or self._closed:
            return
        try:
            await loop.create_connection(lambda: _Back(self), "127.0.0.1", self._proxy.backend_port)
        except OSError:
            self.close()
            return
        if self._closed:
            reset(self.back_transport)

    def touch(self, kind: str) -> None:
        """Write down what was done to the request that is on the link."""
        self._proxy.note(self.request_id, kind, self._down_bytes)

    # -- from the gateway

    def up(self, data: bytes) -> None:
        """Bytes of requests."""
        if data.startswith((b"POST ", b"GET ")):
            self._begin(data)
        if self.silent:
            return
        if self.back_transport is None:
            self._waiting.append(data)
        elif self._up_pacer is not None:
            self._up_pacer.send(data)
        else:
            self.back_transport.write(data)

    def _begin(self, data: bytes) -> None:
        """A request begins: which one, and does the armed fault strike it?"""
        at = data.find(b"x-request-id: ", 0, 8192)
        self.request_id = data[at + 14 : data.index(b"\r\n", at)].decode() if at >= 0 else ""
        self._answered = False
        self._seen.clear()
        self._left = -1
        self._down_bytes = 0
        self._cancel_timer()
        if self._struck and (self.silent or self.deaf):
            self.touch("struck before")
            return
        if self._struck_at_connect:
            self._struck_at_connect = False
            self.touch("struck before")
        self._pacer = self._up_pacer = None
        fault = self._proxy.fault if data[:1] == b"P" else None
        self._fault, self._struck = fault, False
        if fault is not None and fault.phase == "connect":
            if fault.kind in PASSIVE:
                self.touch(fault.kind)
                self._up_pacer = Pacer(fault, self._write_back, self._jitter)
            self._fault = None

    # -- from the backend

    def down(self, data: bytes) -> None:
        """Bytes of a response."""
        if self.silent or self.deaf:
            return
        self._track(data)
        fault = self._fault
        if fault is None or self._struck:
            self._write_front(data)
            return
        seen = self._seen
        offset = locate(seen, fault.phase, fault.k)
        if offset is None or not fault.shows(seen):
            self._write_front(data)
            return
        before = max(0, offset - (len(seen) - len(data)))
        if before:
            self._write_front(data[:before])
        self._struck = True
        self._strike(fault, data[before:])

    def _track(self, data: bytes) -> None:
        """Keep what the phases need of the response, and find its end."""
        self._down_bytes += len(data)
        if self._fault is not None and not self._struck:
            self._seen += data
        if self._left < 0:
            end = data.find(b"\r\n\r\n")
            at = data.lower().find(_LENGTH, 0, end) if end >= 0 else -1
            if at >= 0:
                self._left = int(data[at + len(_LENGTH) : end + 2].split(b"\r\n", 1)[0]) - (len(data) - end - 4)
            else:
                self._answered = data.endswith(LAST_CHUNK)
                return
        else:
            self._left -= len(data)
        self._answered = self._left <= 0

    def _strike(self, fault: Fault, rest: bytes) -> None:
        """Do what the fault says; `rest` are the bytes that would come next."""
        kind = fault.kind
        self.touch(kind)
        if kind in PASSIVE:
            self._pacer = Pacer(fault, self._to_front, self._jitter)
            if rest:
                self._pacer.send(rest)
        elif kind == "refuse":
            self._proxy.die()
        elif kind == "rst":
            reset(self.front_transport)
        elif kind == "limit":
            self.close()
        elif kind == "half_close":
            self.deaf = True
            if self.front_transport is not None and not self.front_transport.is_closing():
                self.front_transport.write_eof()
        elif kind in ("slow_close", "idle_close"):
            self._later_close(fault)
        elif kind == "black_hole":
            self.silent = True
        elif kind == "garbage":
            self._write_front(GARBAGE)
            self.silent = True
        else:
            self._write_front((EXTRA if kind == "extra_bytes" else FLOOD) + rest)

    def _later_close(self, fault: Fault) -> None:
        """Hold still, then close; after a whole response only if no other request came meanwhile."""
        self.silent = fault.phase != "idle"
        self._timer = asyncio.get_running_loop().call_later(fault.delay_s, self.close)

    # -- writing

    def _write_front(self, data: bytes) -> None:
        if self._pacer is not None:
            self._pacer.send(data)
        else:
            self._to_front(data)

    def _to_front(self, data: bytes) -> None:
        if self.front_transport is not None:
            self.front_transport.write(data)

    def _write_back(self, data: bytes) -> None:
        if self.back_transport is not None:
            self.back_transport.write(data)

    def _jitter(self) -> float:
        return 0.5 + self._proxy.rng.random()

    # -- ends

    def back_made(self, transport: asyncio.Transport) -> None:
        """The backend's side is up: pass on what waited."""
        self.back_transport = transport
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            if self._up_pacer is not None:
                self._up_pacer.send(data)
            else:
                transport.write(data)

    def front_lost(self) -> None:
        """The gateway has gone: the backend sees it at once."""
        self.front_transport = None
        self._closed = True
        self._cancel_timer()
        self._proxy.links.discard(self)
        reset(self.back_transport)

    def back_lost(self, exc: Exception | None) -> None:
        """The backend has gone: so does the gateway's side, unless the fault says otherwise."""
        self.back_transport = None
        if self.silent or self.deaf:
            return
        if exc is not None:
            reset(self.front_transport)
        elif self._pacer is not None:
            self._pacer.finish(self.close)
        else:
            self.close()

    def close(self) -> None:
        """Close in order, after what is written."""
        self._closed = True
        if self.front_transport is not None:
            self.front_transport.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Front(asyncio.Protocol):
    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.front_transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._link.up(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.front_lost()

    def pause_writing(self) -> None:
        if self._link.back_transport is not None and not self._link.back_transport.is_closing():
            self._link.back_transport.pause_reading()

    def resume_writing(self) -> None:
        if self._link.back_transport is not None and not self._link.back_transport.is_closing():
            self._link.back_transport.resume_reading()


class _Back(asyncio.Protocol):
    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._link.back_made(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        self._link.down(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.back_lost(exc)
