"""More idle clients than the process may have open files: the oldest make room, and the fleet stays as it is."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from gateway.config import Health, Limits
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.scripted import Held, ScriptedBackend
from tests.wire.served import served

IDLE = 300


def test_idle_clients_do_not_take_the_backends_descriptors(tmp_path: Path) -> None:
    """With 256 descriptors and 300 idle connections, whoever comes is served, and no backend is called down."""

    async def main() -> None:
        backend = ScriptedBackend("a")
        await backend.start()
        async with served(tmp_path, "", backend, limits=("-n", "256")) as gateway:
            assert (await gateway.event("listening"))["connections"] == 64
            peers = [await gateway.connect() for _ in range(IDLE)]
            for peer in peers[-20:]:
                peer.ask(chat())
            assert {(await peer.answer()).status for peer in peers[-20:]} == {200}
            await peers[0].ended()
            for peer in peers:
                peer.close()
            async with asyncio.timeout(60):
                while (await gateway.held())["leeway_client_connections"]:
                    pass
        assert [line["after"] for line in gateway.log if line["event"] == "backend"] == ["ready"]
        await backend.close()

    asyncio.run(main())


def test_who_only_holds_connections_locks_nobody_out() -> None:
    """All places are taken: an idle one is closed in order for whoever comes; while all are busy, who comes is turned away."""

    async def case(rig: Rig) -> None:
        rig.backend.play = play = Held(begun=True)
        holders = [await rig.connect() for _ in range(8)]
        await until(lambda: rig.app.plane.connections == 8)
        comers = []
        for number in range(8):
            comer = await rig.connect()
            comer.ask(chat(f"question {number}", stream=True))
            await comer.seen(b"begun")
            assert await holders[number].ended() == b"", "closed in order, the oldest first"
            comers.append(comer)
        late = await rig.connect()
        assert await late.ended() == b""
        play.go_on.set()
        assert all([(await comer.answer()).whole for comer in comers])

    run(case, replace(CONFIG, limits=Limits(connections=8)))


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process may open nothing more meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    spare: list[int] = []
    try:
        with suppress(OSError):
            while True:
                spare.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in spare:
            os.close(fd)


def test_a_connection_that_could_not_be_tried_is_no_failure_of_the_backend() -> None:
    """Without a descriptor left requests get 502, since nothing ran; the breaker hears nothing of it."""

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        with no_more_files():
            for _ in range(5):
                peer.ask(chat())
                assert (await peer.answer()).error["code"] == "connect_failed"
        (replica,) = rig.app.plane.fleet
        assert (replica.state, replica.failures, replica.failed_total) == ("ready", 0, 0)
        peer.ask(chat())
        assert (await peer.answer()).status == 200

    run(case, replace(CONFIG, health=Health(interval_s=600.0)))


def test_a_shells_soft_limit_is_raised(tmp_path: Path) -> None:
    """What the system allows counts, not what a shell begins with."""

    async def main() -> None:
        backend = ScriptedBackend("a")
        await backend.start()
        async with served(tmp_path, "", backend, limits=("-S", "-n", "256")) as gateway:
            peers = [await gateway.connect() for _ in range(IDLE)]
            for peer in (peers[0], peers[-1]):
                peer.ask(chat())
                assert (await peer.answer()).status == 200
            for peer in peers:
                peer.close()
        await backend.close()

    asyncio.run(main())
