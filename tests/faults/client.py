"""The client of a fault run: raw bytes out, what it sees into its ledger; it can misbehave in every phase. Shell.

It leaves while connecting, in the head, in the upload, before or after the first byte or behind an event; it drips,
stalls, pipelines, and waits for 100 Continue. Whatever happens, each request gets exactly one ClientRecord.
"""

import asyncio
from collections import deque
from typing import cast

from tests.faults.backend import reset
from tests.faults.ledger import CANARY, ClientRecord, Ledgers, Request
from tests.faults.response import BadResponseError, ResponseParser

KEY = f"{CANARY.decode()}-key-for-the-fault-runs"
DRIP_S = 0.002
HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    "x-request-id: {id}\r\n{expect}content-length: {length}\r\n\r\n"
)


class _Pending:
    """One request whose answer is still to come on a connection."""

    __slots__ = ("future", "parser", "record")

    def __init__(self, record: ClientRecord, future: asyncio.Future[None]) -> None:
        self.record = record
        self.future = future
        self.parser = ResponseParser()


class Connection(asyncio.Protocol):
    """One client connection; answers come in the order of the requests."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._sending: deque[bytes] = deque()
        self._leaving = False

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        while data and self._pending:
            pending = self._pending[0]
            try:
                done = pending.parser.feed(data)
            except BadResponseError as error:
                pending.record.headers[b"-bad"] = str(error).encode()
                self._end(pending, "cut")
                self.drop()
                return
            self._look(pending)
            if not done or pending.future.done():
                return
            data = pending.parser.rest
            self._end(pending, "whole")
        if data and not self._leaving:
            self._ledgers.strays.append(f"unasked bytes from the gateway: {data[:60]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        while self._pending:
            pending = self._pending[0]
            self._end(pending, "whole" if exc is None and pending.parser.eof() else "cut")

    # -- for the worker

    @property
    def usable(self) -> bool:
        """Open, and nothing on it."""
        return self._transport is not None and not self._transport.is_closing() and not self._pending

    async def ask(self, requests: list[Request], limit_s: float) -> list[ClientRecord]:
        """Send the requests at once (pipelined when there are several) and wait for their ends, up to `limit_s`."""
        waiting = [self._start(request) for request in requests]
        timer = self._loop.call_later(limit_s, self._give_up)
        try:
            for pending in waiting:
                await pending.future
        finally:
            timer.cancel()
        if any(b"close" in pending.record.headers.get(b"connection", b"") for pending in waiting):
            self.close()
        return [pending.record for pending in waiting]

    def close(self) -> None:
        """Close in order."""
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Close with a reset."""
        reset(self._transport)

    # -- sending

    def _start(self, request: Request) -> _Pending:
        plan, now_s = request.plan, self._loop.time()
        record = self._ledgers.clients[request.id] = ClientRecord(request, sent_s=now_s)
        pending = _Pending(record, self._loop.create_future())
        self._pending.append(pending)
        transport = self._transport
        if transport is None or transport.is_closing():
            self._end(pending, "cut")
            return pending
        expect = "expect: 100-continue\r\n" if plan.expects_continue else ""
        head = HEAD.format(key=KEY, id=request.id, expect=expect, length=len(request.body)).encode()
        if plan.leave == "connect":
            self._leave(pending)
        elif plan.leave == "head":
            transport.write(head[: len(head) // 2])
            self._leave(pending)
        elif plan.leave == "upload":
            transport.write(head + request.body[: len(request.body) // 2])
            self._leave(pending)
        elif plan.expects_continue:
            transport.write(head)
        elif plan.drip:
            step = max(1, len(request.body) // plan.drip)
            self._sending = deque([head, *(request.body[i : i + step] for i in range(0, len(request.body), step))])
            self._drip(pending)
        else:
            transport.write(head + request.body)
            self._sent(pending)
        return pending

    def _drip(self, pending: _Pending) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or not self._sending:
            return
        transport.write(self._sending.popleft())
        if self._sending:
            self._loop.call_later(DRIP_S, self._drip, pending)
        else:
            self._sent(pending)

    def _sent(self, pending: _Pending) -> None:
        record, plan = pending.record, pending.record.request.plan
        record.sent_whole = True
        if plan.leave == "sent":
            self._loop.call_later(DRIP_S * plan.after, self._leave, pending)
        elif plan.stall_s:
            assert self._transport is not None
            self._transport.pause_reading()
            self._loop.call_later(plan.stall_s, self._unstall, pending)

    def _unstall(self, pending: _Pending) -> None:
        """Read on after a pause, or leave without having read."""
        if pending.record.request.plan.leave == "stalled":
            self._leave(pending)
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- watching

    def _look(self, pending: _Pending) -> None:
        """The moments that the plan waits for."""
        plan, parser = pending.record.request.plan, pending.parser
        if parser.continued and not pending.record.continued:
            pending.record.continued = True
            if plan.expects_continue and self._transport is not None and not parser.status:
                self._transport.write(pending.record.request.body)
                self._sent(pending)
        events = parser.body.count(b"\n\n") if plan.leave == "mid" else 0
        if (plan.leave == "first" and parser.begun) or events >= plan.after > 0:
            self._leave(pending)

    def _leave(self, pending: _Pending) -> None:
        if pending.future.done():
            return
        self._leaving = True
        self._end(pending, "left")
        if pending.record.request.plan.reset:
            self.drop()
        else:
            self.close()

    def _give_up(self) -> None:
        """The limit passed: whoever has no end yet is lost."""
        self._leaving = True
        for pending in list(self._pending):
            self._end(pending, "none")
        self.drop()

    def _end(self, pending: _Pending, seen: str) -> None:
        record, parser = pending.record, pending.parser
        self._pending.remove(pending)
        record.seen = seen  # type: ignore[assignment]
        record.status = parser.status
        record.headers.update(parser.headers)
        record.body = bytes(parser.body)
        record.continued = record.continued or parser.continued
        record.ended_s = self._loop.time()
        if not pending.future.done():
            pending.future.set_result(None)


async def connect(port: int, ledgers: Ledgers) -> Connection:
    """A fresh connection to the gateway. Raises OSError."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(ledgers), "127.0.0.1", port)
    return connection
