"""More idle clients than the process may have open files: they are turned away, and the fleet stays as it is."""

import asyncio
from pathlib import Path

from tests.wire.kit import chat
from tests.wire.scripted import ScriptedBackend
from tests.wire.served import served

IDLE = 300


def test_idle_clients_do_not_take_the_backends_descriptors(tmp_path: Path) -> None:
    """With 256 descriptors and 300 idle connections, who got in is served, and no backend is called down."""

    async def main() -> None:
        backend = ScriptedBackend("a")
        await backend.start()
        async with served(tmp_path, "", backend, limits=("-n", "256")) as gateway:
            assert (await gateway.event("fewer connections"))["possible"] == 64
            peers = [await gateway.connect() for _ in range(IDLE)]
            for peer in peers[:20]:
                peer.ask(chat())
            assert {(await peer.answer()).status for peer in peers[:20]} == {200}
            await peers[-1].ended()
            for peer in peers:
                peer.close()
            async with asyncio.timeout(10):
                while (await gateway.held())["leeway_client_connections"]:
                    pass
        assert [line["after"] for line in gateway.log if line["event"] == "backend"] == ["ready"]
        await backend.close()

    asyncio.run(main())


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
