"""Pipelined requests on one client connection: answered in the order in which they came, whatever comes in between."""

import asyncio
from collections.abc import Callable
from typing import cast

from gateway.config import Limits, Timeouts
from gateway.deadlines import Deadlines
from gateway.relay.downstream import ClientConnection
from gateway.relay.http1 import ProtocolError
from gateway.relay.memo import HeadStore
from gateway.relay.requests import RequestHead


class Wire(asyncio.Transport):
    """The client's side, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Host:
    limits = Limits()
    timeouts = Timeouts()
    draining = False

    def __init__(self) -> None:
        self.deadlines = Deadlines(asyncio.get_running_loop())
        self.request_heads: HeadStore[RequestHead] = HeadStore()

    def joined(self, connection: ClientConnection) -> bool:
        return True

    def left(self, connection: ClientConnection) -> None:
        pass


class Turn:
    """An exchange that writes down when its turn came."""

    def __init__(self, begun: list[str], gone: list[str]) -> None:
        self._begun, self._gone = begun, gone
        self.name = ""

    def read_head(self, head: RequestHead, length: int) -> bool:
        self.name = head.path.decode()
        return True

    def read_piece(self, piece: bytes) -> None:
        pass

    def begin(self) -> None:
        self._begun.append(self.name)

    def on_due(self, now_s: float) -> None:
        pass

    def on_paused(self, paused: bool) -> None:
        pass

    def on_gone(self) -> None:
        self._gone.append(self.name)

    def drain_cut(self) -> None:
        pass

    def refuse_protocol(self, error: ProtocolError) -> None:
        self._begun.append(str(error.status))


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


def with_connection(play: Callable[[ClientConnection, Wire], None]) -> tuple[list[str], list[str]]:
    """Run `play`, then let the loop turn; (who began, in order; who was given up)."""
    begun: list[str] = []
    gone: list[str] = []

    async def run() -> None:
        host = Host()
        connection = ClientConnection(host, lambda _: Turn(begun, gone))
        wire = Wire()
        connection.connection_made(cast("asyncio.BaseTransport", wire))
        play(connection, wire)
        for _ in range(3):
            await asyncio.sleep(0)
        for _ in range(5):
            connection.finished(True)
            await asyncio.sleep(0)
        host.deadlines.close()

    asyncio.run(run())
    return begun, gone


def test_requests_begin_in_the_order_of_their_arrival() -> None:
    def play(connection: ClientConnection, wire: Wire) -> None:
        connection.data_received(get("/a") + get("/b") + get("/c"))

    assert with_connection(play)[0] == ["/a", "/b", "/c"]


def test_what_arrives_between_two_answers_does_not_overtake() -> None:
    def play(connection: ClientConnection, wire: Wire) -> None:
        connection.data_received(get("/a") + get("/b") + get("/c"))
        connection.finished(True)  # a is answered; before b's turn comes, d arrives
        connection.data_received(get("/d"))

    assert with_connection(play)[0] == ["/a", "/b", "/c", "/d"]


def test_a_violation_between_two_answers_ends_the_connection_after_the_next() -> None:
    wires: list[Wire] = []

    def play(connection: ClientConnection, wire: Wire) -> None:
        wires.append(wire)
        connection.data_received(get("/a") + get("/b") + get("/c"))
        connection.finished(True)
        connection.data_received(b"\x00\r\n\r\n")

    begun, gone = with_connection(play)
    assert begun == ["/a", "/b"]
    assert "/c" in gone
    assert wires[0].closed


def test_a_client_that_left_between_two_answers_gets_no_more() -> None:
    def play(connection: ClientConnection, wire: Wire) -> None:
        connection.data_received(get("/a") + get("/b") + get("/c"))
        connection.finished(True)
        connection.connection_lost(None)

    begun, gone = with_connection(play)
    assert begun == ["/a"]
    assert sorted(gone) == ["/b", "/c"]
