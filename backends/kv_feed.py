"""Reads one engine's KV events and keeps a ledger of them: connect, subscribe, replay what was missed, go on. Shell.

Endpoints are the publisher's own (`tcp://host:port`, `ipc://path`): the engine binds, we connect. An engine that is not
there is tried again, at growing intervals; nothing here fails a request or holds more than one message.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from backends.kv_events import END, NUMBER_BYTES, KvSink, Ledger, check_endpoint
from backends.reach import addresses_of, first_of
from backends.zmtp import GREETING, Incoming, ZmtpError, message, ready, subscription

Allowed = Callable[[str], bool]
CONNECT_S: Final = 5.0
REPLAY_S: Final = 10.0
RETRY_MIN_S, RETRY_MAX_S = 0.2, 5.0
_READ_BYTES = 65536


class _Connection:
    """One ZMTP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming = Incoming()
        self._early: list[tuple[bytes, ...]] = []

    async def open(self, socket_type: bytes) -> None:
        """The handshake, each part after the peer's: libzmq refuses what comes early."""
        self.send(GREETING)
        while not self._incoming.greeted:
            await self._hear()
        self.send(ready(socket_type))
        while not self._incoming.ready:
            await self._hear()

    async def _hear(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise ZmtpError("the engine closed the connection in the handshake")
        self._early += self._incoming.feed(data)

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def messages(self) -> AsyncIterator[tuple[bytes, ...]]:
        """Until the peer is gone. Raises ZmtpError, OSError."""
        for one in self._early:
            yield one
        while data := await self._reader.read(_READ_BYTES):
            found = self._incoming.feed(data)
            for reply in self._incoming.replies:
                self._writer.write(reply)
            self._incoming.replies.clear()
            for one in found:
                yield one

    def close(self) -> None:
        self._writer.close()


async def _open(endpoint: str, allowed: Allowed | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError, also where the endpoint lies at no address that is allowed."""
    kind, _, rest = endpoint.partition("://")
    if kind == "ipc":
        if allowed is not None:
            raise OSError("the endpoint has no allowed address")
        return await asyncio.open_unix_connection(rest)
    name, _, port = rest.rpartition(":")
    try:
        addresses = await addresses_of(name.strip("[]"), int(port), allowed)
    except UnicodeError:  # a label of the host's name is too long
        raise OSError("the endpoint's host name is malformed") from None
    return await first_of(addresses, CONNECT_S, lambda address: asyncio.open_connection(address, int(port)))


@asynccontextmanager
async def _connected(endpoint: str, socket_type: bytes, allowed: Allowed | None) -> AsyncIterator[_Connection]:
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await _open(endpoint, allowed)
    connection = _Connection(reader, writer)
    try:
        async with asyncio.timeout(CONNECT_S):
            await connection.open(socket_type)
        yield connection
    finally:
        connection.close()


class KvFeed:
    """One engine's events. `connected` while they can come; `problem` says why not; `changed` is called on either. With
    `allowed`, only addresses that it lets through are connected to, whatever a name resolves to, and no paths.

    `ledger` has the counts."""

    def __init__(
        self,
        endpoint: str,
        replay: str,
        sink: KvSink,
        *,
        topic: str = "",
        changed: Callable[["KvFeed"], None] | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        self.endpoint = check_endpoint(endpoint)
        self.ledger = Ledger(sink)
        self.connected = False
        self.problem = ""
        self._replay = check_endpoint(replay) if replay else ""
        self._topic = topic.encode()
        self._changed = changed
        self._allowed = allowed
        self._wait_s = RETRY_MIN_S

    def __repr__(self) -> str:
        return f"<KvFeed {self.endpoint} {'connected' if self.connected else self.problem or 'not connected'} {self.ledger!r}>"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._listen()
                self._set(False, "the engine closed the connection")
            except (OSError, ZmtpError, TimeoutError) as error:
                self._set(False, str(error) or type(error).__name__)
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(RETRY_MAX_S, 2 * self._wait_s)

    async def _listen(self) -> None:
        async with _connected(self.endpoint, b"SUB", self._allowed) as connection:
            connection.send(subscription(self._topic))
            self.ledger.connected()
            if self._replay:
                await self._catch_up()
            self._set(True, "")
            self._wait_s = RETRY_MIN_S
            async for frames in connection.messages():
                if self.ledger.take(frames) == "gap":
                    await self._mend(frames)

    async def _mend(self, frames: tuple[bytes, ...]) -> None:
        if self._replay:
            await self._catch_up()
        if self.ledger.take(frames) == "gap":
            self.ledger.skip(frames)
            self.ledger.take(frames)

    async def _catch_up(self) -> None:
        """Ask for all from the first that is wanted. What the publisher no longer has is a gap like any other."""
        async with asyncio.timeout(REPLAY_S), _connected(self._replay, b"DEALER", self._allowed) as connection:
            connection.send(message(b"", self.ledger.wanted.to_bytes(NUMBER_BYTES, "big")))
            async for frames in connection.messages():
                if len(frames) != 4 or frames[2] == END:
                    return
                if self.ledger.take(frames[1:]) == "gap":
                    self.ledger.skip(frames[1:])
                    self.ledger.take(frames[1:])

    def _set(self, connected: bool, problem: str) -> None:
        before, self.connected, self.problem = (self.connected, self.problem), connected, problem
        if self._changed is not None and before != (connected, problem):
            self._changed(self)
