"""An engine's KV event publisher, as far as a reader can tell: PUB and ROUTER over ZMTP, on real sockets.

As strict as libzmq: its READY follows the peer's, and a peer that sends more before that is disconnected.
"""

import asyncio
from collections.abc import AsyncIterator

from backends.kv_events import END
from backends.zmtp import GREETING, Incoming, message, ready


class KvPublisher:
    """Publishes batches (bytes) under numbers; keeps the last `keep` for replay. `drop` numbers are not sent, only kept."""

    def __init__(self, keep: int = 1000) -> None:
        self.keep = keep
        self.batches: list[bytes] = []
        self.drop: set[int] = set()
        self.subscribers: list[asyncio.StreamWriter] = []
        self.replays: list[int] = []
        self.endpoint = self.replay = ""
        self._servers: list[asyncio.Server] = []

    async def start(self, port: int = 0, replay_port: int = 0) -> None:
        events = await asyncio.start_server(self._subscriber, "127.0.0.1", port)
        replay = await asyncio.start_server(self._asker, "127.0.0.1", replay_port)
        self._servers = [events, replay]
        self.endpoint, self.replay = (f"tcp://127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in self._servers)

    def publish(self, batch: bytes) -> None:
        number = len(self.batches)
        self.batches.append(batch)
        if number not in self.drop:
            self.send(number)

    def send(self, number: int) -> None:
        for writer in self.subscribers:
            writer.write(message(b"", number.to_bytes(8, "big"), self.batches[number]))

    def hang_up(self) -> None:
        """Close what is open, as the end of a process does."""
        for writer in self.subscribers:
            writer.close()
        self.subscribers.clear()

    async def close(self) -> None:
        self.hang_up()
        for server in self._servers:
            server.close()

    async def _subscriber(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for frames in self._messages(reader, writer, b"PUB"):
            if frames == (b"\x01",):
                self.subscribers.append(writer)
        writer.close()

    async def _asker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for _, first in self._messages(reader, writer, b"ROUTER"):
            self.replays.append(int.from_bytes(first, "big"))
            self._replay(writer, self.replays[-1])
        writer.close()

    @staticmethod
    async def _messages(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: bytes
    ) -> AsyncIterator[tuple[bytes, ...]]:
        incoming, greeted = Incoming(), False
        writer.write(GREETING)
        while data := await reader.read(65536):
            early = not greeted
            found = incoming.feed(data)
            if early and incoming.ready:
                greeted = True
                if found or len(data) > len(ready(b"DEALER")) + len(GREETING):
                    return
                writer.write(ready(kind))
            for frames in found:
                yield frames

    def _replay(self, writer: asyncio.StreamWriter, first: int) -> None:
        oldest = max(0, len(self.batches) - self.keep)
        for number in range(max(first, oldest), len(self.batches)):
            writer.write(message(b"", b"", number.to_bytes(8, "big"), self.batches[number]))
        writer.write(message(b"", b"", END, b""))
