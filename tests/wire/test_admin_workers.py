"""Workers by URL, in the shapes that tools made for other routers send and read."""

import asyncio
from pathlib import Path
from urllib.parse import quote

from tests.wire.admin_kit import BACKEND_KEY, engine_config, engines, running

INSTANT = engine_config("instant")


def test_a_worker_comes_and_goes_by_its_url(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(engine_config("instant", api_key=BACKEND_KEY)) as (engine,), running(tmp_path) as gateway:
            name = engine.url.removeprefix("http://").replace(":", "-")
            body = {"url": engine.url, "labels": {"zone": "1"}, "api_key": BACKEND_KEY, "priority": 10, "cost": 0.5}
            added = await gateway.call("POST", "/workers", body)
            assert (added.status, added.headers["Location"]) == (202, f"/workers/{name}")
            assert added.json == {"status": "accepted", "worker_id": name, "url": engine.url, "location": f"/workers/{name}"}
            again = await gateway.call("POST", "/workers", {"url": engine.url + "/"})
            assert (again.status, again.code) == (409, "worker_exists")
            shown = (await gateway.until(f"/workers/{name}", lambda reply: reply.json["is_healthy"])).json
            assert shown == {
                "id": name,
                "url": engine.url,
                "model_id": "demo",
                "models": ["demo"],
                "status": "ready",
                "is_healthy": True,
                "worker_type": "regular",
                "connection_mode": "http",
                "runtime_type": "vllm",
                "priority": 50,
                "cost": 1.0,
                "labels": {"zone": "1"},
                "engine_load": 0,
            }
            assert (await gateway.call("GET", "/workers")).json == {"workers": [shown], "total": 1}
            assert (await gateway.call("GET", f"/workers/{quote(engine.url, safe='')}")).json == shown
            assert (await gateway.chat()).status == 200
            removed = await gateway.call("DELETE", f"/workers/{quote(engine.url, safe='')}")
            assert (removed.status, removed.json["worker_id"]) == (202, name)
            await gateway.gone(name)
            assert (await gateway.call("GET", f"/workers/{name}")).status == 404

    asyncio.run(run())


def test_the_oldest_routes_still_work(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,), running(tmp_path) as gateway:
            added = await gateway.call("POST", f"/add_worker?url={engine.url}")
            assert added.status == 202
            assert (await gateway.call("GET", "/list_workers")).json == {"urls": [engine.url]}
            await gateway.ready(added.json["worker_id"])
            assert (await gateway.chat()).status == 200
            removed = await gateway.call("POST", f"/remove_worker?url={quote(engine.url, safe='')}&timeout_s=5")
            assert (removed.status, removed.json["worker_id"]) == (202, added.json["worker_id"])
            await gateway.gone(added.json["worker_id"])
            assert (await gateway.call("GET", "/list_workers")).json == {"urls": []}

    asyncio.run(run())


def test_a_backend_with_a_name_of_its_own_is_a_worker_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,), running(tmp_path) as gateway:
            await gateway.call("POST", "/admin/backends", {"name": "mine", "url": engine.url})
            assert (await gateway.call("GET", "/workers")).json["workers"][0]["id"] == "mine"
            assert (await gateway.call("POST", f"/add_worker?url={engine.url}")).status == 409
            assert (await gateway.call("POST", f"/remove_worker?url={engine.url}")).json["worker_id"] == "mine"

    asyncio.run(run())


def test_what_is_wrong_or_missing_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as gateway:
            for path in ("/add_worker", "/remove_worker", "/add_worker?url="):
                reply = await gateway.call("POST", path)
                assert (reply.status, reply.json["error"]["param"]) == (422, "url"), path
            for body, param in (
                ({}, "url"),
                ({"url": "http://10.0.0.1:8000", "worker_type": "prefill"}, "worker_type"),
                ({"url": "http://10.0.0.1:8000", "connection_mode": "grpc"}, "connection_mode"),
                ({"url": "http://10.0.0.1:8000", "bootstrap_port": 1}, "bootstrap_port"),
            ):
                reply = await gateway.call("POST", "/workers", body)
                assert (reply.status, reply.json["error"]["param"]) == (422, param)
            for method, path in (
                ("GET", "/workers/none"),
                ("DELETE", "/workers/none"),
                ("POST", "/remove_worker?url=http://10.0.0.1:8000"),
            ):
                reply = await gateway.call(method, path)
                assert (reply.status, reply.code) == (404, "no_such_worker")

    asyncio.run(run())
