"""Who may see what on the control listener, what errors look like there, and what never shows anywhere."""

import asyncio
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from gateway.admin_http import Gate, is_loopback
from gateway.config import Admin, Health, KeySpec, Listen
from tests.wire.admin_kit import (
    ADMIN_KEY,
    BACKEND_KEY,
    CONFIG,
    Reply,
    Running,
    declared,
    engine_config,
    engines,
    in_virtual_time,
    running,
)

INSTANT = engine_config("instant")
FREE = ("/health", "/livez", "/openapi.json", "/metrics")
CLOSED = (
    ("GET", "/admin/backends"),
    ("POST", "/admin/backends"),
    ("GET", "/admin/backends/a"),
    ("PUT", "/admin/backends/a"),
    ("PATCH", "/admin/backends/a"),
    ("DELETE", "/admin/backends/a"),
    ("POST", "/admin/backends/a/drain"),
    ("POST", "/admin/backends/a/undrain"),
    ("GET", "/admin/config"),
    ("GET", "/admin/lengths"),
    ("POST", "/admin/reload"),
    ("GET", "/workers"),
    ("POST", "/workers"),
    ("GET", "/workers/a"),
    ("DELETE", "/workers/a"),
    ("POST", "/add_worker"),
    ("POST", "/remove_worker"),
    ("GET", "/list_workers"),
    ("GET", "/admin"),
    ("GET", "/no-such-route"),
    ("POST", "/health"),
)
WRONG = ("", "wrong", ADMIN_KEY[:-1], ADMIN_KEY + "x", "é", "' OR 1=1 --", "a" * 4000)


def test_without_the_key_every_closed_route_says_the_same(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as gateway:
            texts = set()
            for method, path in CLOSED:
                reply = await gateway.call(method, path, key=None)
                assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer"), (method, path)
                texts.add(reply.text)
            for wrong in WRONG:
                texts.add((await gateway.call("GET", "/admin/backends", key=wrong)).text)
                texts.add((await gateway.call("GET", "/admin/backends", key=None, x_api_key=wrong)).text)
            texts.add((await gateway.call("GET", "/admin/backends", key=None, Authorization=f"Basic {ADMIN_KEY}")).text)
            assert len(texts) == 1
            assert len(texts.pop()) < 150
            for path in FREE:
                assert (await gateway.call("GET", path, key=None)).status == 200, path
            assert "canary" not in gateway.log.read_text()

    asyncio.run(run())


def test_both_headers_carry_the_key(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as gateway:
            assert (await gateway.call("GET", "/workers", key=None, x_api_key=ADMIN_KEY)).status == 200
            assert (await gateway.call("GET", "/workers", key=None, Authorization=f"bearer {ADMIN_KEY}")).status == 200
            wrong_one_wins = await gateway.call("GET", "/workers", key="wrong", x_api_key=ADMIN_KEY)
            assert wrong_one_wins.status == 401

    asyncio.run(run())


def test_metrics_need_the_key_where_others_can_reach_them(tmp_path: Path) -> None:
    async def run() -> None:
        config = replace(CONFIG, listen=Listen(data="127.0.0.1:0", control="0.0.0.0:0"))
        async with running(tmp_path, config) as gateway:
            assert (await gateway.call("GET", "/metrics", key=None)).status == 401
            assert (await gateway.call("GET", "/metrics")).status == 200
            assert (await gateway.call("GET", "/livez", key=None)).status == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("::1", True), ("127.9.9.9", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, inside: bool) -> None:
    assert is_loopback(host) == inside


def test_the_key_is_held_only_as_its_hash() -> None:
    assert ADMIN_KEY not in str(vars(Gate(ADMIN_KEY)))


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as gateway:
            reply = await gateway.call("GET", "/metrics")
            assert reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "# TYPE leeway_config_generation gauge\nleeway_config_generation 1.0\n" in reply.text

    asyncio.run(run())


def test_every_error_has_the_one_shape(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as gateway:
            large = b'{"name":"' + b"a" * (1 << 20) + b'"}'
            as_json = {"content_type": "application/json"}
            cases = [
                (404, "unknown_route", await gateway.call("GET", "/no-such-route")),
                (405, "method_not_allowed", await gateway.call("PATCH", "/admin/backends")),
                (413, "body_too_large", await gateway.call("POST", "/admin/backends", data=large, **as_json)),
                (413, "body_too_large", await gateway.call("POST", "/workers", data=in_chunks(large), **as_json)),
                (415, "unsupported_media_type", await gateway.call("POST", "/admin/backends", data={"name": "a"})),
                (415, "unsupported_media_type", await gateway.call("POST", "/workers", data=b"{}", content_type="text/plain")),
                (409, "no_file", await gateway.call("POST", "/admin/reload")),
            ]
            bad = (b"", b"{", b"\xff", b'{"a":NaN}', b'{"a":"\\ud800"}', b"[" * 5000, b"{}{}", b"\xef\xbb\xbf{}")
            cases += [
                (400, "invalid_json", await gateway.call("POST", "/admin/backends", data=body, **as_json)) for body in bad
            ]
            for status, code, reply in cases:
                assert (reply.status, reply.code) == (status, code), reply
                assert set(reply.json["error"]) == {"message", "type", "param", "code"}
                assert "Traceback" not in reply.text
                assert len(reply.text) < 500
            assert cases[1][2].headers["Allow"] == "GET, POST"
            assert "Server" not in cases[0][2].headers
            assert "Traceback" not in gateway.log.read_text()

    asyncio.run(run())


async def in_chunks(body: bytes):  # type: ignore[no-untyped-def]
    """A body of unknown length."""
    yield body


def test_a_fault_of_ours_shows_neither_to_the_caller_nor_as_a_trace(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as gateway:
            gateway.app.plane.books._metrics._cells["broken", "by", "us"] = None  # type: ignore[assignment]
            reply = await gateway.call("GET", "/metrics")
            assert (reply.status, reply.code) == (500, "internal_error")
            assert "broken" not in reply.text
            del gateway.app.plane.books._metrics._cells["broken", "by", "us"]
        log = gateway.log.read_text()
        assert '"route":"GET /metrics"' in log
        assert "Traceback" not in log

    asyncio.run(run())


def test_noise_on_the_listener_leaves_a_short_line_at_most(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with running(tmp_path) as gateway:
            for noise in (b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.control_port)
                writer.write(noise + b"\r\n\r\n")
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1."), answer
                assert answer.split()[1] == b"400"
                writer.close()
            assert (await gateway.call("GET", "/livez")).status == 200
        log = gateway.log.read_text()
        assert log.count('"event":"control listener"') == 2, "what is no HTTP at all is not worth a line"
        assert "Traceback" not in log
        assert "Traceback" not in capfd.readouterr().err

    asyncio.run(run())


def test_no_key_shows_anywhere(tmp_path: Path) -> None:
    async def run() -> None:
        key = "canary-client-key-31d0"
        guarded = engine_config("instant", api_key=BACKEND_KEY)
        async with engines(guarded) as (engine,):
            config = replace(
                CONFIG,
                backends=(declared("file", engine.url, api_key=BACKEND_KEY),),
                keys=(KeySpec(hashlib.sha256(key.encode()).hexdigest(), "team"),),
            )
            async with running(tmp_path, config) as gateway:
                one = "/admin/backends/rest"
                body = {"name": "rest", "url": engine.url, "api_key": BACKEND_KEY}
                replies = [
                    await gateway.call("POST", "/admin/backends", body),
                    await gateway.call("POST", "/admin/backends", body),
                    await gateway.call("POST", "/admin/backends", body | {"name": "b", "weight": BACKEND_KEY}),
                    await gateway.call("POST", "/admin/backends", body | {"name": "b", "api_key": [BACKEND_KEY]}),
                    await gateway.call("POST", "/admin/backends", body | {"name": "b", "password": BACKEND_KEY}),
                    await gateway.call("POST", "/admin/backends", data=json.dumps(body)[:-1], content_type="application/json"),
                    await gateway.call("POST", "/workers", {"url": engine.url.replace("//", "//u:" + BACKEND_KEY + "@")}),
                    await gateway.ready("rest"),
                    await gateway.ready("file"),
                    await gateway.call("PATCH", one, {"weight": 2}),
                    await gateway.call("PUT", one, {"url": engine.url, "api_key": BACKEND_KEY + "2"}),
                    await gateway.until(one, lambda reply: reply.json["state"] == "down"),
                ]
                looked_at = ("/admin/backends", "/admin/config", "/workers", "/workers/rest", "/list_workers", "/metrics")
                replies += [await gateway.call("GET", path) for path in looked_at]
                replies += [await gateway.call("DELETE", one), await gateway.call("GET", "/openapi.json")]
                assert [reply.status for reply in replies[:7]] == [202, 409, 422, 422, 422, 400, 422]
                shown = await gateway.call("GET", "/admin/config")
                assert (shown.json["admin"]["key"], shown.json["backends"][0]["api_key"]) == ("***", "***")
            seen = "".join(f"{reply.text} {dict(reply.headers)}" for reply in [*replies, shown])
            assert "canary" not in seen + gateway.log.read_text()

    asyncio.run(run())


async def broken_engine() -> tuple[web.AppRunner, str]:
    """A server whose probes are fine and whose answers are not."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "demo"}]})

    async def fail(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response(text="nobody reads this")

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", fail)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def break_it(gateway: Running) -> Reply:
    """Send different requests until the breaker is open, and look."""
    await gateway.ready("b")
    assert [(await gateway.chat(max_tokens=number)).status for number in range(1, 5)] == [502] * 4
    return await gateway.call("GET", "/admin/backends/b")


def test_an_open_breaker_shows_in_status_readiness_and_metrics(tmp_path: Path) -> None:
    async def run() -> None:
        runner, url = await broken_engine()
        rarely = replace(CONFIG, health=Health(interval_s=3600.0), backends=(declared("b", url, engine="openai"),))
        async with running(tmp_path, rarely) as gateway:
            shown = (await break_it(gateway)).json
            assert (shown["state"], shown["routable"], shown["failures"]) == ("down", False, 3)
            assert shown["why"].startswith("down: breaker: ")
            assert (await gateway.call("GET", "/workers/b")).json["is_healthy"] is False
            assert (await gateway.call("GET", "/readyz")).status == 503
            assert 'leeway_backend_state{backend="b",state="down"} 1.0' in (await gateway.call("GET", "/metrics")).text
            assert (await gateway.chat()).status == 503
        await runner.cleanup()

    in_virtual_time(run())


def test_a_backend_on_trial_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        runner, url = await broken_engine()
        often = replace(CONFIG, health=Health(interval_s=0.05), backends=(declared("b", url, engine="openai"),))
        async with running(tmp_path, often) as gateway:
            await break_it(gateway)
            shown = await gateway.until("/admin/backends/b", lambda reply: bool(reply.json["routable"]))
            assert shown.json["why"] == "on trial after failures: the next request decides"
        await runner.cleanup()

    asyncio.run(run())


def test_the_admin_key_of_the_configuration_is_the_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, replace(CONFIG, admin=Admin(key="another"))) as gateway:
            assert (await gateway.call("GET", "/workers")).status == 401
            assert (await gateway.call("GET", "/workers", key="another")).status == 200

    asyncio.run(run())
