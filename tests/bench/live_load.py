"""Open-loop load: each request leaves when the schedule says, whatever became of those before it.

Every time is counted from the instant at which a request was due, so neither a slow answer nor a late generator can
hide waiting (no coordinated omission); how late requests left is reported beside. Connections are kept and taken again,
new ones are opened as needed. Answers are not parsed further than needed to count tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tests.bench.live_trace import Planned

DONE = b"data: [DONE]"
END = b"\r\n0\r\n\r\n"
PIECE, EMPTY = b'"content":"', b'"content":""'
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a request; times in seconds after it was due, None if it never happened. `problem` is empty for a
    complete answer of the right length."""

    at_s: float
    late_s: float
    ttft_s: float | None
    e2e_s: float | None
    tokens: int
    output_tokens: int
    problem: str = ""
    label: str = ""

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first."""
        if self.ttft_s is None or self.e2e_s is None or self.tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.tokens - 1)


class Call:
    """One request under way, or over."""

    __slots__ = ("_rest", "done", "due_s", "first_s", "last_s", "one", "problem", "sent_s", "tokens")

    def __init__(self, one: Planned, due_s: float, sent_s: float) -> None:
        self.one, self.due_s, self.sent_s = one, due_s, sent_s
        self.first_s = self.last_s = 0.0
        self.tokens = 0
        self.done = False
        self.problem = ""
        self._rest = b""

    def received(self, data: bytes, now_s: float) -> bool:
        """Bytes of the answer; True once it is complete."""
        if not self._rest and not self.tokens and not data.startswith(b"HTTP/1.1 200"):
            self.problem = data[:64].split(b"\r\n", 1)[0].decode("latin-1") or "no status"
        # A pattern that began in the bytes before is found with their rest in front, none is found twice.
        joined = self._rest + data
        pieces = joined.count(PIECE) - self._rest.count(PIECE)
        tokens = pieces - joined.count(EMPTY) + self._rest.count(EMPTY)
        if tokens:
            self.tokens += tokens
            self.last_s = now_s
            self.first_s = self.first_s or now_s
        self.done = self.done or DONE in joined
        self._rest = joined[-len(EMPTY) :]
        return joined.endswith(END)

    def seen(self, start_s: float) -> Seen:
        """The record of it."""
        problem = self.problem
        if not problem and not self.done:
            problem = "unfinished"
        elif not problem and self.tokens != self.one.output_tokens:
            problem = f"{self.tokens} tokens instead of {self.one.output_tokens}"
        first = self.first_s - self.due_s if self.first_s else None
        last = self.last_s - self.due_s if self.done and self.last_s else None
        late_s = self.sent_s - self.due_s
        return Seen(self.due_s - start_s, late_s, first, last, self.tokens, self.one.output_tokens, problem, self.one.label)


class Connection(asyncio.Protocol):
    """One connection: at most one request at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._call: Call | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._load.connections.add(self)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def begin(self, call: Call, head: bytes) -> None:
        self._call = call
        assert self.transport is not None
        self.transport.writelines((head, call.one.body))

    def data_received(self, data: bytes) -> None:
        call = self._call
        if call is None or not (call.received(data, time.monotonic()) or call.problem):
            return
        self._call = None
        if call.problem:
            self._load.ended(call, None)
            self.close()
        else:
            self._load.ended(call, self)

    def connection_lost(self, error: Exception | None) -> None:
        call, self._call = self._call, None
        self.transport = None
        self._load.connections.discard(self)
        if call is not None:
            call.problem = call.problem or "connection lost"
            self._load.ended(call, None)


class Load:
    """One run of a schedule against one port."""

    def __init__(self, port: int, planned: Sequence[Planned], api_key: str = "") -> None:
        self._port, self._planned = port, planned
        self._key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self.connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._calls: list[Call] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = len(planned)
        self._over = asyncio.Event()

    async def run(self, start_s: float, drain_s: float) -> list[Seen]:
        """Send everything, the first at `start_s` (time.monotonic), and wait for what is open, at most `drain_s` after
        the last departure."""
        loop = asyncio.get_running_loop()
        offset_s = loop.time() - time.monotonic()
        timers = [loop.call_at(start_s + one.at_s + offset_s, self._fire, one, start_s + one.at_s) for one in self._planned]
        limit_s = start_s + self._planned[-1].at_s + drain_s - time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await self._over.wait()
        except TimeoutError:
            pass  # what is still open is recorded as unfinished
        for timer in timers:
            timer.cancel()
        seen = [call.seen(start_s) for call in self._calls]
        for connection in [*self.connections]:
            connection.close()
        return sorted(seen, key=lambda one: one.at_s)

    def ended(self, call: Call, connection: Connection | None) -> None:
        """A call is over; its connection, if it still has one, is free."""
        self._open -= 1
        if connection is not None:
            self._idle.append(connection)
        if not self._open:
            self._over.set()

    def _fire(self, one: Planned, due_s: float) -> None:
        call = Call(one, due_s, time.monotonic())
        self._calls.append(call)
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                connection.begin(call, self._head(one))
                return
        task = asyncio.get_running_loop().create_task(self._connect(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: Connection(self), HOST, self._port)
        except OSError as error:
            call.problem = f"connect: {error.strerror}"
            self.ended(call, None)
            return
        connection.begin(call, self._head(call.one))

    def _head(self, one: Planned) -> bytes:
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{self._port}\r\n{self._key}"
            f"{one.lines}Content-Type: application/json\r\nContent-Length: {len(one.body)}\r\n\r\n"
        ).encode()
