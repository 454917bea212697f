"""Backends whose name has several addresses, of which the server listens on some: `localhost` is the usual one."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace

import looptime
import pytest

from backends.kv_feed import KvFeed
from backends.mock import MockConfig, MockEngine
from gateway.config import BackendSpec, Pool
from gateway.jobs import Job
from gateway.probing import ProbeClient
from predictor.kvview import KvView
from predictor.prefix import PrefixIndex
from predictor.request import LengthEstimate
from predictor.sidecar import SidecarConfig
from tests.wire.kit import CONFIG, Rig, chat, run, until, virtual_pause
from tests.wire.kv_publisher import KvPublisher
from tests.wire.scripted import Held, Link, ScriptedBackend, well

NAME = "engine.test"
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.1")  # the server listens on the last
JOB = Job("r1", "demo", 40, LengthEstimate(5, 10, 20, "test"), 0.0, (1, 2))


class Names(asyncio.SelectorEventLoop):
    """A loop that knows one more name, and where connections were tried."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[str] = []

    async def create_connection(self, make, host=None, port=None, **rest):  # type: ignore[no-untyped-def]
        self.tried.append(host)
        return await super().create_connection(make, host, port, **rest)

    async def getaddrinfo(self, host, port, **rest):  # type: ignore[no-untyped-def]
        if host != NAME:
            return await super().getaddrinfo(host, port, **rest)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ADDRESSES]


class Moving(looptime.LoopTimeEventLoop, asyncio.SelectorEventLoop):
    """A loop of virtual time that knows one more name, which leads where `addresses` says."""

    addresses: tuple[str, ...] = ("127.0.0.1",)

    async def getaddrinfo(self, host, port, **rest):  # type: ignore[no-untyped-def]
        if host != NAME:
            return await super().getaddrinfo(host, port, **rest)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "the name service is away")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.addresses]


def named(spec: BackendSpec) -> BackendSpec:
    return replace(spec, url=spec.url.replace("127.0.0.1", NAME))


def test_kept_connections_follow_a_name_that_moves() -> None:
    """The old server still answers: what runs there ends well; what comes goes to the new one, probes too; nothing fails."""
    old, new, held = ScriptedBackend("b0"), ScriptedBackend("new"), Held(begun=True)

    async def case(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Moving)
        server = await loop.create_server(lambda: Link(new), "127.0.0.2", old.port)
        old.play = held
        peer = await rig.connect()
        peer.ask(chat("x", stream=True))
        await old.called(1)
        old.play = well
        loop.addresses = ("127.0.0.2",)
        for _ in range(40):
            assert (await rig.ask(chat("y"))).status == 200
            await virtual_pause(1.0)
        assert len(old.links) == 1, "the stream's"
        assert len(new.calls) >= 10
        held.go_on.set()
        assert (await peer.answer()).status == 200
        await until(lambda: not old.links)
        loop.addresses = ()  # who cannot ask keeps what there is
        calls = len(new.calls)
        for _ in range(40):
            assert (await rig.ask(chat("y"))).status == 200
            await virtual_pause(1.0)
        assert len(new.calls) == calls + 40
        loop.addresses = ("127.0.0.1",)
        server.close()
        for link in list(new.links):
            link.close()
        await rig.routable()

    config = replace(CONFIG, pool=Pool(unproven_idle_s=20.0))
    run(case, config, backends=(old,), spec=named, on=Moving, limit_s=900.0)


def test_some_of_many_addresses_in_turn_move_nobody() -> None:
    """A name service that gives one of two by turns: connections to the other are kept."""

    async def case(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Moving)
        assert (await rig.ask(chat("y"))).status == 200
        server = await loop.create_server(lambda: Link(rig.backend), "127.0.0.2", rig.backend.port)
        made = rig.backend.connected
        for number in range(120):
            loop.addresses = ("127.0.0.1",) if number % 5 else ("127.0.0.2",)
            assert (await rig.ask(chat("y"))).status == 200
            await virtual_pause(1.0)
        assert rig.backend.connected - made < 20, "those of probes"
        server.close()

    config = replace(CONFIG, pool=Pool(unproven_idle_s=20.0))
    run(case, config, spec=named, on=Moving, limit_s=900.0)


def test_each_address_of_a_name_is_tried() -> None:
    """Probes try them all; a request that took the first only would fail at a backend that is well."""

    async def case(rig: Rig) -> None:
        for _ in range(5):
            assert (await rig.ask(chat())).status == 200
        (replica,) = rig.app.plane.fleet
        assert (replica.state, replica.failed_total) == ("ready", 0)

    run(case, on=Names, spec=named)


def test_an_address_that_failed_lately_is_tried_last() -> None:
    """A silent one would cost its share of the time at every connection."""

    async def case(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Names)
        (pool,) = rig.app.plane.pools
        pool._failed_s.clear()
        made = [await pool.connect(3.0) for _ in range(3)]
        tried = [address for address in loop.tried if address in ADDRESSES]
        assert tried[-5:] == [*ADDRESSES, ADDRESSES[-1], ADDRESSES[-1]]
        for connection in made:
            connection.close()

    run(case, on=Names, spec=named)


def test_a_name_without_a_listener_fails_once() -> None:
    """All addresses refuse: one failure of the backend, and a 502 that says that nothing ran."""

    async def case(rig: Rig) -> None:
        rig.backend.kill()
        answer = await rig.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "connect_failed")
        assert b"x-should-retry" not in answer.headers

    run(case, on=Names, spec=named)


@pytest.mark.parametrize("guarded", [False, True])
def test_each_address_of_a_sidecar_is_tried(guarded: bool) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), MockEngine(MockConfig(sidecar=SidecarConfig(port=0))) as engine:
            assert engine.sidecar is not None
            client = ProbeClient(10.0, asyncio.get_running_loop().time, lambda: 0, allowed=ADDRESSES.__contains__)
            client.added("a", engine.sidecar.url.replace("127.0.0.1", NAME), guarded=guarded)
            replies = await client.probe(["a"], JOB)
            assert replies["a"] is not None
            await client.close()

    with asyncio.Runner(loop_factory=Names) as runner:
        runner.run(main())


@pytest.mark.parametrize("allowed", [None, ADDRESSES.__contains__])
def test_each_address_of_a_publisher_is_tried(allowed: Callable[[str], bool] | None) -> None:
    async def main() -> None:
        publisher = KvPublisher()
        await publisher.start()
        endpoint, replay = (url.replace("127.0.0.1", NAME) for url in (publisher.endpoint, publisher.replay))
        feed = KvFeed(endpoint, replay, KvView(PrefixIndex(100)), allowed=allowed)
        reading = asyncio.create_task(feed.run())
        await until(lambda: feed.connected, say=lambda: feed)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await publisher.close()

    with asyncio.Runner(loop_factory=Names) as runner:
        runner.run(main())


def test_a_name_that_cannot_be_one_is_tried_again_like_any_other() -> None:
    async def main() -> None:
        feed = KvFeed(f"tcp://{'x' * 70}.test:5557", "", KvView(PrefixIndex(100)))
        reading = asyncio.create_task(feed.run())
        await until(lambda: "malformed" in feed.problem or reading.done(), say=lambda: feed)
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(main())
