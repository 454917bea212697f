"""Where a backend added by REST may be: nothing that these tests name is ever connected to, whoever asks.

The gateways here allow 10.0.0.0/8 only, so that this machine's own listener can be the forbidden place.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import Admin, BackendSpec
from gateway.store import BackendStore
from tests.wire.admin_kit import ADMIN_KEY, CONFIG, engine_config, engines, running

ONLY_TEN = replace(CONFIG, admin=Admin(key=ADMIN_KEY, networks=("10.0.0.0/8",)))
MALFORMED = (
    "http://10.0.0.1:0/",
    "file:///etc/passwd",
    "ftp://10.0.0.1/",
    "gopher://10.0.0.1:70/_",
    "//10.0.0.1:8000",
    "10.0.0.1:8000",
    "http://",
    "http:///x",
    "http://a\\@b/",
    "http://10.0.0.1\\@169.254.169.254/",
    "http://user:password@10.0.0.1:8000/",
    "http://user@10.0.0.1:8000/",
    "http://10.0.0.1:8000/?next=http://169.254.169.254",
    "http://10.0.0.1:8000/#x",
    "http://10.0.0.1:99999/",
    "http://10.0.0.1:x/",
    "http://[10.0.0.1/",
    "http://10.0.0.1 .evil.example/",
    "http://10.0.0.1\r\nHost: evil/",
    "http://\u0661\u0660.0.0.1/",
    "http://exa\u2044mple/",
)
FORBIDDEN = (
    "http://169.254.169.254/",
    "http://169.254.169.254:80/latest/meta-data",
    "http://[fe80::1]:8000/",
    "http://[fe80::1%251]:8000/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://127.0.0.1:22/",
    "http://10.0.0.1:22/",
    "http://10.0.0.1:6/",
    "http://8.8.8.8/",
    "http://0.0.0.0:{port}/",
    "http://[::]:{port}/",
    "http://224.0.0.1:{port}/",
    "http://127.0.0.1:{port}/",
    "http://127.0.0.1.:{port}/",
    "http://127.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0X7F.0.0.1:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://[::1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]:{port}/",
)


class Canary:
    """A listener that only counts who comes."""

    def __init__(self) -> None:
        self.visits = 0
        self.port = 0

    async def _visited(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Canary"]:
        """While it listens."""
        server = await asyncio.start_server(self._visited, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


def test_urls_that_are_none_are_refused_on_every_way_in(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, ONLY_TEN) as gateway:
            await gateway.call("POST", "/admin/backends", {"name": "a", "url": "http://10.0.0.1:8000"})
            for url in MALFORMED:
                for method, path, body in (
                    ("POST", "/admin/backends", {"name": "b", "url": url}),
                    ("PUT", "/admin/backends/a", {"url": url}),
                    ("PATCH", "/admin/backends/a", {"url": url}),
                    ("POST", "/workers", {"url": url}),
                ):
                    reply = await gateway.call(method, path, body)
                    assert (reply.status, reply.json["error"]["param"]) == (422, "url"), (method, url)
            shown = (await gateway.call("GET", "/admin/backends")).json["backends"]
            assert [backend["url"] for backend in shown] == ["http://10.0.0.1:8000"]

    asyncio.run(run())


def test_addresses_outside_the_allowed_networks_are_refused_on_every_way_in(tmp_path: Path) -> None:
    async def run() -> None:
        async with Canary().listening() as canary, running(tmp_path, ONLY_TEN) as gateway:
            await gateway.call("POST", "/admin/backends", {"name": "a", "url": "http://10.0.0.1:8000"})
            for url in (template.format(port=canary.port) for template in FORBIDDEN):
                for method, path, body in (
                    ("POST", "/admin/backends", {"name": "b", "url": url}),
                    ("PUT", "/admin/backends/a", {"url": url}),
                    ("PATCH", "/admin/backends/a", {"url": url}),
                    ("POST", "/workers", {"url": url}),
                    ("POST", f"/add_worker?url={url.replace('%', '%25')}", None),
                ):
                    reply = await gateway.call(method, path, body)
                    assert (reply.status, reply.json["error"]["param"]) == (400, "url"), (method, url, reply.text)
            assert (await gateway.call("GET", "/admin/backends")).json["total"] == 1
            assert canary.visits == 0

    asyncio.run(run())


def test_the_metadata_address_stays_closed_whatever_networks_are_allowed(tmp_path: Path) -> None:
    async def run() -> None:
        everything = replace(CONFIG, admin=Admin(key=ADMIN_KEY, networks=("0.0.0.0/0", "::/0")))
        async with running(tmp_path, everything) as gateway:
            for url in ("http://169.254.169.254/", "http://[fe80::1]/", "http://[::ffff:169.254.169.254]/"):
                reply = await gateway.call("POST", "/workers", {"url": url})
                assert (reply.status, reply.code) == (400, "address_not_allowed"), url

    asyncio.run(run())


def test_a_name_is_judged_by_what_it_resolves_to(tmp_path: Path) -> None:
    async def run() -> None:
        async with Canary().listening() as canary, running(tmp_path, ONLY_TEN) as gateway:
            url = f"http://localhost:{canary.port}"
            added = await gateway.call("POST", "/admin/backends", {"name": "a", "url": url, "models": ["demo"]})
            assert added.status == 202
            down = await gateway.until("/admin/backends/a", lambda reply: reply.json["state"] == "down")
            assert "no allowed address" in down.json["reason"]
            assert (await gateway.chat()).status == 503
            assert canary.visits == 0

    asyncio.run(run())


def test_a_stored_address_is_judged_by_the_rule_of_today(tmp_path: Path) -> None:
    async def run() -> None:
        async with Canary().listening() as canary:
            state_file = str(tmp_path / "state.db")
            store = BackendStore(state_file)
            store.put(BackendSpec("a", f"http://127.0.0.1:{canary.port}", models=("demo",)))
            store.close()
            config = replace(ONLY_TEN, admin=replace(ONLY_TEN.admin, state_file=state_file))
            async with running(tmp_path, config) as gateway:
                down = await gateway.until("/admin/backends/a", lambda reply: reply.json["state"] == "down")
                assert down.json["reason"] == "the address is not allowed"
                assert canary.visits == 0

    asyncio.run(run())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_probe_follows_no_redirect(status: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with Canary().listening() as canary:

            async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                where = f"http://127.0.0.1:{canary.port}/v1/models"
                head = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {where}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                writer.close()

            server = await asyncio.start_server(redirect, "127.0.0.1", 0)
            async with server, running(tmp_path) as gateway:
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                assert (await gateway.call("POST", "/admin/backends", {"name": "a", "url": url})).status == 202
                down = await gateway.until("/admin/backends/a", lambda reply: reply.json["state"] == "down")
                assert down.json["reason"] == f"/v1/models answered {status}"
                assert canary.visits == 0

    asyncio.run(run())


def test_what_the_file_declares_is_not_guarded(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(engine_config("instant")) as (engine,):
            config = replace(ONLY_TEN, backends=(BackendSpec("a", engine.url),))
            async with running(tmp_path, config) as gateway:
                await gateway.ready("a")
                assert (await gateway.chat()).status == 200

    asyncio.run(run())
