"""A gateway that is told to end, as its clients see it: whoever was let in before, or holds a connection, loses no request."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import uvloop

from gateway.app import App
from gateway.config import BackendSpec, Timeouts
from gateway.last_calls import queued
from tests.wire.kit import CONFIG, chat, until
from tests.wire.peer import Peer, Sent, connect
from tests.wire.scripted import Held, ScriptedBackend

LOOPS = pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
Loop = Callable[[], asyncio.AbstractEventLoop]


@asynccontextmanager
async def gateway(backend: ScriptedBackend) -> AsyncIterator[App]:
    await backend.start()
    spec = BackendSpec("b0", backend.url, "openai")
    with tempfile.TemporaryFile() as log:
        app = App(replace(CONFIG, backends=(spec,), timeouts=Timeouts(drain_s=10.0)), log_fd=log.fileno())
        await app.start()
        await until(lambda: all(replica.state == "ready" for replica in app.plane.fleet))
        try:
            yield app
        finally:
            await app.close()
            await backend.close()


def ending(loop: Loop, case: Callable[[App, ScriptedBackend], Awaitable[None]]) -> None:
    """Run a case, in which the gateway drains."""

    async def main() -> None:
        backend = ScriptedBackend("b0")
        async with asyncio.timeout(60), gateway(backend) as app:
            await case(app, backend)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def whole(peer: Peer) -> None:
    """The answer comes, says that it is the connection's last one, and it is."""
    answer = await peer.answer()
    assert (answer.status, answer.whole, answer.headers[b"connection"]) == (200, True, b"close")
    assert await peer.ended() == b""


@LOOPS
def test_a_request_on_an_idle_connection_is_answered(loop: Loop) -> None:
    async def case(app: App, _: ScriptedBackend) -> None:
        used, fresh, silent = [await connect(app.plane.port, Sent()) for _ in range(3)]
        used.ask(chat())
        assert (await used.answer()).status == 200
        await until(lambda: app.plane.connections == 3)
        draining = asyncio.create_task(app.plane.drain(10.0))
        await until(lambda: app.plane.draining)
        for peer in (used, fresh):
            peer.ask(chat())
        for peer in (used, fresh):
            await whole(peer)
        assert await silent.ended() == b"", "who has nothing to say is not waited for"
        await draining

    ending(loop, case)


@LOOPS
def test_a_connection_whose_stream_ends_meanwhile_takes_one_more(loop: Loop) -> None:
    """Its head said that the connection stays, so its client may have sent the next request already."""

    async def case(app: App, backend: ScriptedBackend) -> None:
        backend.play = play = Held(begun=True)
        peer = await connect(app.plane.port, Sent())
        peer.ask(chat(stream=True))
        await peer.seen(b"begun")
        draining = asyncio.create_task(app.plane.drain(10.0))
        await until(lambda: app.plane.draining)
        play.go_on.set()
        streamed = await peer.answer()
        assert (streamed.status, streamed.whole, b"connection" in streamed.headers) == (200, True, False)
        peer.ask(chat())
        await whole(peer)
        await draining

    ending(loop, case)


@LOOPS
def test_who_is_not_accepted_yet_is_served(loop: Loop) -> None:
    """The kernel has made these connections; the gateway drains before it has looked at them."""

    async def case(app: App, _: ScriptedBackend) -> None:
        made = [socket.create_connection(("127.0.0.1", app.plane.port)) for _ in range(8)]
        draining = asyncio.create_task(app.plane.drain(10.0))
        for one in made:
            one.setblocking(False)
            peer = Peer(*await asyncio.open_connection(sock=one), Sent())
            peer.ask(chat())
            await whole(peer)
        await draining

    ending(loop, case)


def test_all_who_wait_to_be_accepted_are_taken_and_the_listener_stays_its_owners() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        taken = queued([listener.fileno()])
        assert {one.getpeername() for one in taken} == {one.getsockname() for one in made}
        assert queued([listener.fileno()]) == []
        for one in (*made, *taken):
            one.close()
        again = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.close()
        again.close()
