"""Gateways that lead back to themselves: one that is its own backend, two that are each other's, and a wider way round."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import looptime
import pytest

from gateway.app import App
from gateway.config import BackendSpec, Retry
from tests.wire.kit import ADMIN_KEY, CHAT, CONFIG, Rig, chat, run, until
from tests.wire.peer import Sent, connect
from tests.wire.scripted import ScriptedBackend


async def added(rig: Rig, name: str, url: str) -> None:
    answer = await rig.admin("POST", "/admin/backends", {"name": name, "url": url})
    assert answer.status == 202, answer


async def shown(rig: Rig, name: str) -> dict[str, object]:
    found: dict[str, object] = (await rig.admin("GET", f"/admin/backends/{name}")).json
    return found


@asynccontextmanager
async def gateway_before(*urls: str) -> AsyncIterator[App]:
    """A second gateway, with these backends."""
    specs = [BackendSpec(f"up{at}", url) for at, url in enumerate(urls)]
    with tempfile.TemporaryFile() as log:
        app = App(replace(CONFIG, backends=tuple(specs)), log_fd=log.fileno())
        await app.start()
        asyncio.get_running_loop().set_exception_handler(None)
        try:
            await until(lambda: all(replica.state == "ready" for replica in app.plane.fleet), say=lambda: app.plane.fleet)
            yield app
        finally:
            await app.close()


@pytest.mark.parametrize("engines", [0, 1])
def test_a_gateway_that_is_its_own_backend_is_not_used(engines: int) -> None:
    async def main() -> None:
        backends = [ScriptedBackend(f"b{at}") for at in range(engines)]
        for backend in backends:
            await backend.start()
        async with asyncio.timeout(60), gateway_before(*(backend.url for backend in backends)) as app:
            fleet, itself = app.plane.fleet, f"http://127.0.0.1:{app.plane.port}"
            await asked(app.control_port, "/admin/backends", {"name": "self", "url": itself})
            await until(lambda: (found := fleet.get("self")) is not None and found.state == "down", say=lambda: fleet)
            found = fleet.get("self")
            assert found is not None
            assert found.reason == "it is this gateway itself"
            statuses = [await asked(app.plane.port, CHAT, chat()) for _ in range(6)]
            assert statuses == [200 if engines else 404] * 6
        for backend in backends:
            assert len(backend.calls) == 6
            await backend.close()

    asyncio.run(main())


async def asked(port: int, path: str, body: object) -> int:
    """The status of one request."""
    peer = await connect(port, Sent())
    peer.ask(body, path, "POST", {"content-type": "application/json", "authorization": f"Bearer {ADMIN_KEY}"})
    answer = await peer.answer()
    peer.close()
    return answer.status


def test_a_request_that_comes_back_is_refused() -> None:
    """Two gateways are each other's only hope: one clear answer, which tells clients not to come again, and one run."""

    async def case(rig: Rig) -> None:
        async with gateway_before(rig.url) as other:
            url = f"http://127.0.0.1:{other.plane.port}"
            await added(rig, "other", url)
            await until(lambda: (found := rig.app.plane.fleet.get("other")) is not None and found.state == "ready")
            rig.backend.kill()
            await until(lambda: rig.state(rig.backend) == "down")
            for _ in range(3):
                answer = await rig.ask(chat())
                assert (answer.status, answer.error["code"]) == (508, "loop")
                assert answer.headers[b"x-should-retry"] == b"false"
            assert (await rig.ask(chat())).status == 503
            found = await shown(rig, "other")
            assert (found["state"], found["reason"]) == ("down", "breaker: answered 508: it leads back to a gateway before it")
            assert (await rig.admin("DELETE", "/admin/backends/other?force=true")).status < 300
            rig.sent.ids.clear()  # some were here twice, and have two ends

    run(case, on=looptime.new_event_loop)


def test_gateways_that_help_each_other_do_so() -> None:
    """A request that one sent on does not go round: it is answered by an engine of either, and runs once."""

    async def case(rig: Rig) -> None:
        own = ScriptedBackend("own")
        await own.start()
        async with gateway_before(rig.url, own.url) as other:
            await added(rig, "other", f"http://127.0.0.1:{other.plane.port}")
            await until(lambda: (found := rig.app.plane.fleet.get("other")) is not None and found.state == "ready")
            statuses = [(await rig.ask(chat(f"question {number}"))).status for number in range(20)]
            assert statuses == [200] * 20
            assert own.calls
            assert rig.calls + len(own.calls) == 20
            assert (await rig.admin("DELETE", "/admin/backends/other?force=true")).status < 300
            rig.sent.ids.clear()  # some were here twice, and have two ends
        await own.close()

    run(case, replace(CONFIG, retry=Retry(burst=100)))


def test_gateways_are_told_who_sent_it_and_engines_are_not() -> None:
    async def case(rig: Rig) -> None:
        mark = rig.app.plane.mark
        async with gateway_before(rig.url) as before:
            peer = await connect(before.plane.port, rig.sent)
            peer.ask(chat(), headers={"via": "1.1 nginx"})
            assert (await peer.answer()).status == 200
            peer.close()
            (pool,) = before.plane.pools
            assert pool.hop_lines.endswith(b"via: 1.1 %b\r\n" % before.plane.mark)
        assert [value for name, value in rig.backend.calls[0].fields if name == b"via"] == [
            b"1.1 nginx",
            b"1.1 " + before.plane.mark,
        ], "what came with the request, and nothing of the last gateway"
        refused = await rig.ask(chat(), headers={"via": f"1.1 nginx, 1.1 {mark.decode()}"})
        assert refused.status == 508
        far = ", ".join(f"1.1 leeway-{number}" for number in range(8))
        assert (await rig.ask(chat(), headers={"via": far})).status == 508
        assert (await rig.ask(path="/v1/models", method="GET", headers={"via": far})).status == 200
        assert rig.calls == 1

    run(case)
