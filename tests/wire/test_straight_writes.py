"""Bytes written past the loop: whole, in order, under the transport's limits, and never to a connection that is gone."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import uvloop

from gateway.relay.outlet import Way, way_out
from gateway.relay.straight import Outlet

LIMIT_S = 60.0
BUFFER_BYTES = 8192


@dataclass(slots=True)
class Near(asyncio.Protocol):
    """The end that is written to; what it was told."""

    paused: int = 0
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[asyncio.Transport, Way, Near, socket.socket]]:
    """A transport with its way out, and the far end's socket, which nobody reads yet; small buffers between them."""
    near, far = socket.socketpair()
    for end in (near, far):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        end.setblocking(False)
    transport, protocol = await asyncio.get_running_loop().create_connection(Near, sock=near)
    try:
        way = way_out(transport)
        assert isinstance(way, Outlet)
        yield transport, way, protocol, far
    finally:
        transport.abort()
        far.close()


async def read_to_end(far: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    loop, parts = asyncio.get_running_loop(), []
    async with asyncio.timeout(LIMIT_S):
        while part := await loop.sock_recv(far, 65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(8))
def test_what_the_kernel_does_not_take_keeps_its_place(seed: int) -> None:
    async def body() -> None:
        rng = random.Random(seed)
        async with joined() as (transport, way, near, far):
            transport.set_write_buffer_limits(high=BUFFER_BYTES)
            sent: list[bytes] = []
            reading: asyncio.Task[bytes] | None = None
            for turn in range(400):
                piece = rng.randbytes(rng.choice((0, 1, 90, 700, 30_000)))
                sent.append(piece)
                if rng.random() < 0.1:
                    sent.append(piece)
                    way.writelines([piece, memoryview(piece)])
                else:
                    way.write(piece)
                if turn == 200:
                    assert near.paused
                    reading = asyncio.create_task(read_to_end(far))
                if reading is not None and rng.random() < 0.3:
                    await asyncio.sleep(0)
            transport.close()
            assert reading is not None
            assert await reading == b"".join(sent)
            assert near.resumed.is_set()

    uvloop.run(body())


def test_what_the_transport_still_has_goes_first() -> None:
    async def body() -> None:
        before = bytes(300_000)
        async with joined() as (transport, _, _, far):
            transport.write(before)
            way_out(transport).write(b"after")
            transport.close()
            assert await read_to_end(far) == before + b"after"

    uvloop.run(body())


def test_bytes_are_with_the_kernel_when_write_returns() -> None:
    async def body() -> None:
        async with joined() as (transport, way, _, far):
            way.write(b"now")
            assert far.recv(10) == b"now"
            assert transport.get_write_buffer_size() == 0

    uvloop.run(body())


def test_an_aborted_connection_gets_nothing_more() -> None:
    async def body() -> None:
        async with joined() as (transport, way, near, far):
            way.write(b"before")
            transport.abort()
            way.write(b"after")
            await near.lost.wait()
            assert far.recv(100) == b"before"
            assert far.recv(100) == b""

    uvloop.run(body())


def test_a_closing_connection_gets_what_was_written_before() -> None:
    async def body() -> None:
        large = bytes(300_000)
        async with joined() as (transport, way, _, far):
            way.write(large)
            transport.close()
            assert await read_to_end(far) == large

    uvloop.run(body())


def test_a_peer_that_is_gone_ends_the_connection_by_the_transport() -> None:
    async def body() -> None:
        async with joined() as (_, way, near, far):
            far.close()
            way.write(b"to nobody")
            async with asyncio.timeout(LIMIT_S):
                await near.lost.wait()

    uvloop.run(body())
