"""A backend's whole life by REST, on a running gateway in front of simulated engines."""

import asyncio
from pathlib import Path

import pytest

from backends.mock import MockEngine
from gateway.config import GatewayConfig
from tests.wire.admin_kit import (
    BACKEND_KEY,
    CONFIG,
    Running,
    SteadyLoad,
    chat_body,
    declared,
    engine_config,
    engines,
    in_virtual_time,
    running,
)

INSTANT = engine_config("instant")
SLOW = engine_config("demo-slow")


async def add(gateway: Running, name: str, engine: MockEngine, **settings: object) -> None:
    """Add an engine and wait until it gets requests."""
    reply = await gateway.call("POST", "/admin/backends", {"name": name, "url": engine.url, **settings})
    assert reply.status == 202, reply.text
    await gateway.ready(name)


def test_a_backend_from_its_first_day_to_its_last(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,), running(tmp_path) as gateway:
            assert (await gateway.call("GET", "/admin/backends")).json == {"backends": [], "total": 0}
            assert (await gateway.call("GET", "/readyz")).status == 503
            assert (await gateway.chat()).status == 404
            added = await gateway.call(
                "POST", "/admin/backends", {"name": "gpu-1.a_b", "url": engine.url + "/", "labels": {"zone": "1"}, "weight": 3}
            )
            assert (added.status, added.headers["Location"]) == (202, "/admin/backends/gpu-1.a_b")
            assert (added.json["state"], added.json["routable"], added.json["url"]) == ("starting", False, engine.url)
            shown = (await gateway.ready("gpu-1.a_b")).json
            assert shown["found"] == {
                "engine": "vllm",
                "version": "0.32.0",
                "kind": "generate",
                "models": ["demo"],
                "max_model_len": INSTANT.limits.max_model_len,
                "scheduling": "fcfs",
                **dict.fromkeys(("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"), 0),
            }
            assert (shown["labels"], shown["weight"], shown["declared"], shown["why"]) == ({"zone": "1"}, 3.0, False, "ready")
            assert 0 <= shown["last_probe_age_s"] < 5
            assert (await gateway.call("GET", "/readyz")).status == 200
            assert (await gateway.chat()).status == 200
            shown = (await gateway.call("GET", "/admin/backends")).json["backends"]
            assert [(b["name"], b["dispatched_total"], b["in_flight"]) for b in shown] == [("gpu-1.a_b", 1, 0)]
            assert (await gateway.call("DELETE", "/admin/backends/gpu-1.a_b")).status == 202
            await gateway.gone("gpu-1.a_b")
            assert (await gateway.chat()).status == 404
            assert (await gateway.call("GET", "/admin/backends")).json["total"] == 0

    asyncio.run(run())


def test_replace_puts_defaults_back_and_patch_leaves_the_rest(tmp_path: Path) -> None:
    async def run() -> None:
        one = "/admin/backends/a"
        async with engines(INSTANT, INSTANT) as (engine, other), running(tmp_path) as gateway:
            await add(gateway, "a", engine, weight=2, labels={"x": "1", "y": "2"}, api_key=BACKEND_KEY, max_in_flight=5)
            patched = await gateway.call("PATCH", one, {"labels": {"x": None, "z": "3"}, "max_in_flight": 7})
            assert patched.status == 200
            kept = {name: patched.json[name] for name in ("weight", "labels", "max_in_flight", "has_api_key", "state")}
            assert kept == {
                "weight": 2.0, "labels": {"y": "2", "z": "3"}, "max_in_flight": 7, "has_api_key": True, "state": "ready",
            }  # fmt: skip
            moved = await gateway.call("PATCH", one, {"url": other.url})
            assert (moved.json["state"], moved.json["url"]) == ("starting", other.url)
            await gateway.ready("a")
            assert (await gateway.chat()).status == 200
            assert (engine.requests_seen, other.requests_seen) == (0, 1)
            replaced = await gateway.call("PUT", one, {"url": engine.url, "models": ["alias-of-mine"]})
            assert replaced.status == 200
            assert (replaced.json["weight"], replaced.json["labels"], replaced.json["has_api_key"]) == (1.0, {}, False)
            assert (await gateway.ready("a")).json["found"]["models"] == ["alias-of-mine"]

    asyncio.run(run())


def test_what_is_known_of_an_engine_comes_by_rest_as_by_file(tmp_path: Path) -> None:
    async def run() -> None:
        one = "/admin/backends/a"
        known = {"profile": "demo-fast", "kv_blocks": 900, "max_num_batched_tokens": 256, "sidecar": "http://127.0.0.1:22999"}
        async with engines(INSTANT) as (engine,), running(tmp_path) as gateway:
            await add(gateway, "a", engine, sidecar_token=BACKEND_KEY, **known)
            shown = await gateway.ready("a")
            assert {name: shown.json[name] for name in known} == known
            assert shown.json["has_sidecar_token"] is True
            assert BACKEND_KEY not in shown.text
            await add(gateway, "b", engine)
            assert (await gateway.chat()).status == 200
            mirror = gateway.app.plane.fleet.get("a").mirror
            assert (mirror.limits.kv_blocks, mirror.limits.max_num_batched_tokens) == (900, 256)
            patched = await gateway.call("PATCH", one, {"kv_blocks": 1200, "profile": None, "sidecar": None})
            assert [patched.json[name] for name in known] == ["", 1200, 256, ""]
            assert (await gateway.chat()).status == 200
            assert mirror.limits.kv_blocks == 1200
            for sidecar in ("http://169.254.169.254", "http://10.0.0.1:22", "http://8.8.8.8:9"):
                refused = await gateway.call("PATCH", one, {"sidecar": sidecar})
                assert (refused.status, refused.json["error"]["param"]) == (400, "sidecar"), sidecar

    asyncio.run(run())


def test_what_does_not_exist_or_exists_already(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,), running(tmp_path) as gateway:
            await add(gateway, "a", engine)
            again = await gateway.call("POST", "/admin/backends", {"name": "a", "url": engine.url})
            assert (again.status, again.code, again.json["error"]["param"]) == (409, "name_in_use", "name")
            for method, path, body in (
                ("GET", "", None),
                ("PUT", "", {"url": engine.url}),
                ("PATCH", "", {"weight": 2}),
                ("DELETE", "", None),
                ("POST", "/drain", {}),
                ("POST", "/undrain", None),
            ):
                reply = await gateway.call(method, f"/admin/backends/nobody{path}", body)
                assert (reply.status, reply.code) == (404, "no_such_backend"), (method, path)
            undrain = await gateway.call("POST", "/admin/backends/a/undrain")
            assert (undrain.status, undrain.code) == (409, "not_draining")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"url": "http://10.0.0.1:8000"}, "name"),
        ({"name": "a"}, "url"),
        ({"name": "-a", "url": "http://10.0.0.1:8000"}, "name"),
        ({"name": "a" * 65, "url": "http://10.0.0.1:8000"}, "name"),
        ({"name": "a/b", "url": "http://10.0.0.1:8000"}, "name"),
        ({"name": "a", "url": "http://10.0.0.1:8000", "weight": -1}, "weight"),
        ({"name": "a", "url": "http://10.0.0.1:8000", "api_key_file": "/etc/passwd"}, "api_key_file"),
        ({"name": "a", "url": "http://10.0.0.1:8000", "typo": 1}, "typo"),
        ([], None),
        ("a", None),
        (None, None),
    ],
)
def test_a_bad_backend_is_refused_by_field(body: object, param: str | None, tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as gateway:
            sent = b"null" if body is None else None
            reply = await gateway.call("POST", "/admin/backends", body, data=sent, content_type="application/json")
            assert (reply.status, reply.code, reply.json["error"]["param"]) == (422, "invalid_value", param)
            assert (await gateway.call("GET", "/admin/backends")).json["total"] == 0

    asyncio.run(run())


def test_names_come_percent_decoded_and_odd_ones_are_just_unknown(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,), running(tmp_path) as gateway:
            await add(gateway, "a-b", engine)
            assert (await gateway.call("GET", "/admin/backends/a%2Db")).json["name"] == "a-b"
            for odd in ("%00", "..%2f..%2fetc", "%ff%fe", "a" * 2000, "%E2%80%AE", "a%0d%0ab"):
                reply = await gateway.call("GET", f"/admin/backends/{odd}")
                assert (reply.status, reply.code) == (404, "no_such_backend"), odd
                assert len(reply.text) < 500

    asyncio.run(run())


def test_a_drain_lets_what_runs_finish_and_can_be_called_off(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(SLOW, SLOW) as (engine, other), running(tmp_path) as gateway:
            await add(gateway, "a", engine)
            stream = gateway.session.post(f"{gateway.data}/v1/chat/completions", json=chat_body("demo", 30, True))
            async with stream as response:
                await response.content.readany()
                await add(gateway, "b", other)
                drained = await gateway.call("POST", "/admin/backends/a/drain", {"timeout_s": 60})
                assert (drained.status, drained.json["state"], drained.json["in_flight"]) == (202, "draining", 1)
                assert 55 < drained.json["drain_left_s"] <= 60
                assert not drained.json["removing"]
                assert [(await gateway.chat(max_tokens=1)).status for _ in range(3)] == [200] * 3
                assert (engine.requests_seen, other.requests_seen) == (1, 3)
                weight = await gateway.call("PATCH", "/admin/backends/a", {"models": ["demo", "more"]})
                assert (weight.status, weight.json["state"]) == (200, "draining"), "a change does not end the drain"
                assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
            back = await gateway.call("POST", "/admin/backends/a/undrain")
            assert (back.status, back.json["drain_left_s"]) == (200, None)
            await gateway.ready("a")

    in_virtual_time(run())


def test_a_removed_backend_finishes_its_requests_and_takes_no_change_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(SLOW) as (engine,), running(tmp_path) as gateway:
            await add(gateway, "a", engine)
            stream = gateway.session.post(f"{gateway.data}/v1/chat/completions", json=chat_body("demo", 30, True))
            async with stream as response:
                await response.content.readany()
                removed = await gateway.call("DELETE", "/admin/backends/a")
                assert (removed.status, removed.json["state"], removed.json["removing"]) == (202, "draining", True)
                for method, path, body in (
                    ("PATCH", "", {"weight": 2}),
                    ("PUT", "", {"url": engine.url}),
                    ("POST", "/undrain", None),
                ):
                    reply = await gateway.call(method, f"/admin/backends/a{path}", body)
                    assert (reply.status, reply.code) == (409, "being_removed"), method
                again = await gateway.call("POST", "/admin/backends", {"name": "a", "url": engine.url})
                assert (again.status, again.code) == (409, "being_removed")
                assert (await response.content.read()).endswith(b"data: [DONE]\n\n")
            await gateway.gone("a")
            await add(gateway, "a", engine)

    in_virtual_time(run())


def test_a_removal_that_is_over_leaves_the_stream_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(SLOW) as (engine,), running(tmp_path) as gateway:
            await add(gateway, "a", engine)
            stream = gateway.session.post(f"{gateway.data}/v1/chat/completions", json=chat_body("demo", 30, True))
            async with stream as response:
                await response.content.readany()
                assert (await gateway.call("DELETE", "/admin/backends/a")).status == 202
                assert (await gateway.call("DELETE", "/admin/backends/a?timeout_s=0")).status == 202
                await gateway.gone("a")
                assert engine.in_flight == 1
                assert (await response.content.read()).endswith(b"data: [DONE]\n\n")

    in_virtual_time(run())


@pytest.mark.parametrize("timeout", ["-1", "nan", "inf", "86401", "x", ""])
def test_a_bad_drain_limit_changes_nothing(timeout: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,), running(tmp_path) as gateway:
            await add(gateway, "a", engine)
            reply = await gateway.call("DELETE", f"/admin/backends/a?timeout_s={timeout}")
            assert (reply.status, reply.json["error"]["param"]) == (422, "timeout_s")
            assert (await gateway.call("GET", "/admin/backends/a")).json["state"] == "ready"

    asyncio.run(run())


def test_declared_backends_are_the_files(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,):
            config = GatewayConfig(
                listen=CONFIG.listen, health=CONFIG.health, admin=CONFIG.admin, backends=(declared("d", engine.url),)
            )
            async with running(tmp_path, config) as gateway:
                assert (await gateway.ready("d")).json["declared"]
                for method, body in (("PUT", {"url": engine.url}), ("PATCH", {"weight": 2}), ("DELETE", None)):
                    reply = await gateway.call(method, "/admin/backends/d", body)
                    assert (reply.status, reply.code) == (409, "declared"), method
                assert (await gateway.call("POST", "/admin/backends/d/drain")).json["state"] == "draining"
                assert (await gateway.call("POST", "/admin/backends/d/undrain")).status == 200
                await gateway.ready("d")

    asyncio.run(run())


@pytest.mark.parametrize("settings", [{}, {"models": ["demo"]}], ids=["found models", "named models"])
def test_a_rolling_change_under_load_fails_no_request(settings: dict[str, object], tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(SLOW, SLOW) as (old, new), running(tmp_path) as gateway:
            await add(gateway, "old", old, **settings)
            load = SteadyLoad(gateway)
            await load.more(16)
            await add(gateway, "new", new, **settings)
            assert (await gateway.call("DELETE", "/admin/backends/old")).status == 202
            await gateway.gone("old")
            seen = new.requests_seen
            await load.more(16)
            await load.stop()
            assert load.failures == []
            assert old.aborted + new.aborted == 0
            assert new.requests_seen > seen

    in_virtual_time(run())


def test_the_limit_of_backends_holds(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,):
            admin = CONFIG.admin.__class__(key=CONFIG.admin.key, backends_max=1)
            async with running(tmp_path, GatewayConfig(listen=CONFIG.listen, health=CONFIG.health, admin=admin)) as gateway:
                await add(gateway, "a", engine)
                reply = await gateway.call("POST", "/admin/backends", {"name": "b", "url": engine.url})
                assert (reply.status, reply.code) == (409, "too_many_backends")

    asyncio.run(run())
