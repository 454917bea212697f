"""KV events, queue order and restore rate of backends added by REST: as by file, but for paths and forbidden addresses."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import Admin, BackendSpec
from gateway.store import BackendStore
from tests.core.test_kv_events import frames, stored
from tests.wire.admin_kit import ADMIN_KEY, CONFIG, Running, engine_config, engines, running
from tests.wire.kit import until
from tests.wire.kv_publisher import KvPublisher

INSTANT = engine_config("instant")
ONLY_TEN = replace(CONFIG, admin=Admin(key=ADMIN_KEY, networks=("10.0.0.0/8",)))


def held_tokens(gateway: Running, name: str) -> int:
    view = gateway.app.plane.desks.engines.views.get(name)
    return view.tokens if view is not None else -1


def test_they_come_work_change_and_return_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        publisher = KvPublisher()
        await publisher.start()
        config = replace(CONFIG, admin=replace(CONFIG.admin, state_file=str(tmp_path / "state.db")))
        known = {
            "kv_events": publisher.endpoint,
            "kv_replay": publisher.replay,
            "scheduling": "priority",
            "restore_tokens_per_s": 1500.0,
        }
        async with engines(INSTANT) as (engine,):
            async with running(tmp_path, config) as gateway:
                body = {"name": "a", "url": engine.url, "models": ["demo"], **known}
                added = await gateway.call("POST", "/admin/backends", body)
                assert (added.status, {name: added.json[name] for name in known}) == (202, known)
                await until(lambda: len(publisher.subscribers) == 1)
                publisher.publish(frames(0, stored("s", [1, 2, 3], None))[2])
                await until(lambda: held_tokens(gateway, "a") == 48)
                await gateway.ready("a")
                assert gateway.app.plane.fleet.get("a").scheduling == "priority"
                patched = await gateway.call("PATCH", "/admin/backends/a", {"scheduling": "fcfs", "restore_tokens_per_s": 2})
                assert [patched.json[name] for name in known] == [*list(known.values())[:2], "fcfs", 2.0]
            async with running(tmp_path, config) as gateway:
                shown = await gateway.ready("a")
                assert [shown.json[name] for name in known] == [*list(known.values())[:2], "fcfs", 2.0]
                await until(lambda: held_tokens(gateway, "a") == 48)  # from the replay
                off = await gateway.call("PATCH", "/admin/backends/a", {"kv_events": None, "kv_replay": None})
                assert (off.json["kv_events"], off.json["kv_replay"]) == ("", "")
                assert held_tokens(gateway, "a") == -1
        await publisher.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("endpoint", "status"),
    [
        ("ipc:///run/kv", 422),
        ("tcp://*:5557", 422),
        ("http://10.0.0.1:5557", 422),
        ("tcp://10.0.0.1:22", 400),
        ("tcp://127.0.0.1:5557", 400),
        ("tcp://127.1:5557", 400),
        ("tcp://0x7f000001:5557", 400),
        ("tcp://0X7F.0.0.1:5557", 400),
        ("tcp://[::1]:5557", 400),
        ("tcp://[::ffff:127.0.0.1]:5557", 400),
        ("tcp://169.254.169.254:80", 400),
        ("tcp://user@10.0.0.1:5557", 400),
    ],
)
def test_what_may_not_be_connected_to_is_refused_on_every_way_in(endpoint: str, status: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, ONLY_TEN) as gateway:
            url = "http://10.0.0.1:8000"
            await gateway.call("POST", "/admin/backends", {"name": "a", "url": url})
            for param in ("kv_events", "kv_replay"):
                for method, path, body in (
                    ("POST", "/admin/backends", {"name": "b", "url": url}),
                    ("PUT", "/admin/backends/a", {"url": url}),
                    ("PATCH", "/admin/backends/a", {}),
                ):
                    reply = await gateway.call(method, path, {**body, param: endpoint})
                    assert (reply.status, reply.json["error"]["param"]) == (status, param), (method, reply.text)
            (shown,) = (await gateway.call("GET", "/admin/backends")).json["backends"]
            assert (shown["kv_events"], shown["kv_replay"]) == ("", "")

    asyncio.run(run())


def test_a_name_and_a_stored_address_are_judged_when_they_are_connected_to(tmp_path: Path) -> None:
    async def run() -> None:
        publisher, state_file = KvPublisher(), str(tmp_path / "state.db")
        await publisher.start()
        port = publisher.endpoint.rpartition(":")[2]
        store = BackendStore(state_file)
        store.put(BackendSpec("stored", "http://10.0.0.1:8000", kv_events=publisher.endpoint))
        store.close()
        config = replace(ONLY_TEN, admin=replace(ONLY_TEN.admin, state_file=state_file))
        async with running(tmp_path, config) as gateway:
            body = {"name": "named", "url": "http://10.0.0.1:8000", "kv_events": f"tcp://localhost:{port}"}
            assert (await gateway.call("POST", "/admin/backends", body)).status == 202

            def refused() -> set[str]:
                whole = gateway.log.read_text().rpartition("\n")[0]
                lines = [json.loads(line) for line in whole.splitlines()]
                told = [line for line in lines if line["event"] == "kv_events"]
                return {line["backend"] for line in told if line["reason"] == "the endpoint has no allowed address"}

            await until(lambda: refused() == {"named", "stored"}, say=gateway.log.read_text)
            assert publisher.subscribers == []
        await publisher.close()

    asyncio.run(run())
