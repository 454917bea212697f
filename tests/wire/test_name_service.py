"""A name service that changes, is slow, or is gone: what is known of a backend's name serves on, what is no more does not."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from backends.reach import FRESH_S, OUTAGE_S, Name
from tests.wire.kit import LONG_AFTER_S, Rig, chat, run, until

NAME = "engine.test"
GONE = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
UNKNOWN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
Says = list[str] | socket.gaierror | None  # None: nothing, for ever


class Names(asyncio.SelectorEventLoop):
    """A loop whose name service says what it is told to."""

    says: Says = ["127.0.0.1"]
    asked = 0

    async def getaddrinfo(self, host, port, **rest):  # type: ignore[no-untyped-def]
        if host != NAME:
            return await super().getaddrinfo(host, port, **rest)
        self.asked += 1
        if self.says is None:
            await asyncio.Event().wait()
        if isinstance(self.says, socket.gaierror):
            raise self.says
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.says or []]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def story(case: Callable[[Names, Clock, Name], Awaitable[None]]) -> None:
    """A name whose addresses were found a moment ago."""

    async def main() -> None:
        loop, clock = asyncio.get_running_loop(), Clock()
        assert isinstance(loop, Names)
        name = Name(NAME, 80, clock)
        assert await name.addresses() == ["127.0.0.1"]
        async with asyncio.timeout(60):
            await case(loop, clock, name)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    with asyncio.Runner(loop_factory=Names) as runner:
        runner.run(main())


def test_a_change_is_seen_after_a_moment() -> None:
    async def case(loop: Names, clock: Clock, name: Name) -> None:
        loop.says = ["127.0.0.2"]
        assert (await name.addresses(), loop.asked) == (["127.0.0.1"], 1)
        clock.now_s += FRESH_S
        assert (await name.addresses(), loop.asked) == (["127.0.0.2"], 2)

    story(case)


@pytest.mark.parametrize("says", [GONE, None])
def test_an_outage_is_outlived_for_a_while(says: Says) -> None:
    async def case(loop: Names, clock: Clock, name: Name) -> None:
        loop.says = says
        clock.now_s += OUTAGE_S - 1
        assert await name.addresses() == ["127.0.0.1"]
        clock.now_s += 1
        with pytest.raises((socket.gaierror, TimeoutError)):
            async with asyncio.timeout(0.1):
                await name.addresses()

    story(case)


def test_a_name_that_is_no_more_is_forgotten() -> None:
    async def case(loop: Names, clock: Clock, name: Name) -> None:
        loop.says = UNKNOWN
        clock.now_s += FRESH_S
        with pytest.raises(socket.gaierror, match="not known"):
            await name.addresses()
        loop.says = GONE
        with pytest.raises(socket.gaierror, match="Temporary"):
            await name.addresses()
        loop.says = ["127.0.0.3"]
        assert await name.addresses() == ["127.0.0.3"]

    story(case)


def test_a_burst_asks_once() -> None:
    async def case(loop: Names, clock: Clock, name: Name) -> None:
        clock.now_s += OUTAGE_S
        assert await asyncio.gather(*(name.addresses() for _ in range(50))) == [["127.0.0.1"]] * 50
        assert loop.asked == 2

    story(case)


def test_requests_go_on_while_the_name_service_is_gone() -> None:
    """No connection is kept and each must be made anew: without the name service that used to be the end of all backends."""

    async def case(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Names)
        assert (await rig.ask(chat())).status == 200
        (pool,), (replica,) = rig.app.plane.pools, rig.app.plane.fleet
        loop.says = GONE
        for link in list(rig.backend.links):
            link.close()  # the probes' connection, too
        for _ in range(3):
            pool.sweep(rig.app.plane.now() + LONG_AFTER_S)
            pool._name._found_s -= 2 * FRESH_S
            assert (await rig.ask(chat())).status == 200
        probed_s = replica.last_probe_s
        await until(lambda: replica.last_probe_s > probed_s, say=lambda: replica)
        assert (replica.state, replica.failures, replica.failed_total) == ("ready", 0, 0)
        loop.says = ["127.0.0.1"]

    run(case, on=Names, spec=lambda spec: replace(spec, url=spec.url.replace("127.0.0.1", NAME)))
