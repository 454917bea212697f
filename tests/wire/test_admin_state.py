"""What a restart brings back, and what a reload changes: all of it or nothing, under load."""

import asyncio
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from backends.mock import MockEngine
from gateway.config import Admin, BackendSpec, GatewayConfig
from gateway.config_file import load
from gateway.store import BackendStore, StoreError, encode
from tests.wire.admin_kit import (
    ADMIN_KEY,
    BACKEND_KEY,
    CONFIG,
    DEADLINE_S,
    SteadyLoad,
    declared,
    engine_config,
    engines,
    in_virtual_time,
    read,
    running,
)

INSTANT = engine_config("instant")
SLOW = engine_config("demo-slow")
HEAD = f"""
[listen]
data = "127.0.0.1:0"
control = "127.0.0.1:0"
[admin]
key = "{ADMIN_KEY}"
[health]
interval_s = 0.1
"""


def stored(tmp_path: Path, **changes: object) -> GatewayConfig:
    """A configuration with a state file."""
    admin = Admin(key=ADMIN_KEY, state_file=str(tmp_path / "state.db"))
    return replace(CONFIG, admin=admin, **changes)  # type: ignore[arg-type]


def table(name: str, engine: MockEngine, more: str = "") -> str:
    """A [[backends]] table."""
    return f'[[backends]]\nname = "{name}"\nurl = "{engine.url}"\n{more}\n'


# -- the state file


def test_backends_and_their_keys_return_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(engine_config("instant", api_key=BACKEND_KEY), INSTANT) as (guarded, other):
            config = stored(tmp_path)
            async with running(tmp_path, config) as gateway:
                settings = {"url": guarded.url, "api_key": BACKEND_KEY, "labels": {"zone": "1"}, "max_in_flight": 9}
                settings |= {"profile": "demo-fast", "kv_blocks": 900, "max_num_batched_tokens": 256}
                await gateway.call("POST", "/admin/backends", {"name": "kept", **settings})
                await gateway.call("POST", "/admin/backends", {"name": "removed", "url": other.url})
                await gateway.ready("kept")
                await gateway.call("PATCH", "/admin/backends/kept", {"weight": 4})
                await gateway.call("DELETE", "/admin/backends/removed")
                await gateway.gone("removed")
                before = (await gateway.ready("kept")).json
                for name in ("state.db", "state.db-wal", "state.db-shm"):
                    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
            async with running(tmp_path, config) as gateway:
                after = (await gateway.ready("kept")).json
                assert (await gateway.call("GET", "/admin/backends")).json["total"] == 1
                changing = ("last_probe_age_s", "dispatched_total")
                assert {k: v for k, v in after.items() if k not in changing} == {
                    k: v for k, v in before.items() if k not in changing
                }
                assert (await gateway.chat()).status == 200

    asyncio.run(run())


def test_the_file_takes_over_a_name_that_was_stored(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT, INSTANT) as (engine, other):
            async with running(tmp_path, stored(tmp_path)) as gateway:
                await gateway.call("POST", "/admin/backends", {"name": "a", "url": engine.url})
            async with running(tmp_path, stored(tmp_path, backends=(declared("a", other.url),))) as gateway:
                shown = (await gateway.ready("a")).json
                assert (shown["declared"], shown["url"]) == (True, other.url)
            async with running(tmp_path, stored(tmp_path)) as gateway:
                assert (await gateway.call("GET", "/admin/backends")).json["total"] == 0

    asyncio.run(run())


def test_a_bad_row_is_skipped_with_a_line_and_left_in_place(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,):
            path = tmp_path / "state.db"
            store = BackendStore(str(path))
            store.put(BackendSpec("good", engine.url, declared=False))
            store.close()
            row = json.loads(encode(BackendSpec("bad", engine.url, api_key=BACKEND_KEY))) | {"engine": "no-such-engine"}
            with sqlite3.connect(path) as db:
                db.execute("INSERT INTO backends VALUES (?, ?)", ("bad", json.dumps(row)))
            async with running(tmp_path, stored(tmp_path)) as gateway:
                await gateway.ready("good")
                assert (await gateway.call("GET", "/admin/backends")).json["total"] == 1
            log = gateway.log.read_text()
            assert log.count("stored backend skipped") == 1
            assert "'bad': engine is unknown" in log
            assert BACKEND_KEY not in log
            with sqlite3.connect(path) as db:
                assert db.execute("SELECT count(*) FROM backends").fetchone() == (2,)

    asyncio.run(run())


def test_an_open_file_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch(0o644)
    (tmp_path / "state.db-wal").touch(0o644)
    store = BackendStore(str(path))
    store.put(BackendSpec("a", "http://10.0.0.1:8000"))
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    store.close()


@pytest.mark.parametrize("content", [b"not a database at all", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_corrupt_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"state file .*state\.db: "):
        BackendStore(str(path)).read()


def test_the_command_says_so_and_ends(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database at all")
    config = tmp_path / "gateway.toml"
    config.write_text(HEAD.replace("[admin]", f'[admin]\nstate_file = "{tmp_path}/state.db"'))
    command = [sys.executable, "-m", "gateway", "serve", str(config)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 1
    assert ended.stderr == f"state file {tmp_path}/state.db: file is not a database\n"


def test_a_state_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with engines(INSTANT) as (engine,), running(tmp_path, stored(tmp_path)) as gateway:
            await gateway.call("POST", "/admin/backends", {"name": "a", "url": engine.url})
            await gateway.ready("a")
            other = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            took_s = []
            for method, path, body in (
                ("POST", "/admin/backends", {"name": "b", "url": engine.url}),
                ("PATCH", "/admin/backends/a", {"weight": 7}),
                ("DELETE", "/admin/backends/a", None),
            ):
                started_s = time.monotonic()
                reply = await gateway.call(method, path, body)
                assert (reply.status, reply.code) == (503, "state_not_written"), method
                took_s.append(time.monotonic() - started_s)
            assert min(took_s) < 2.0, took_s
            shown = (await gateway.call("GET", "/admin/backends")).json["backends"]
            assert [(b["name"], b["weight"], b["state"]) for b in shown] == [("a", 1.0, "ready")]
            other.execute("ROLLBACK")
            other.close()
            assert (await gateway.call("PATCH", "/admin/backends/a", {"weight": 7})).status == 200

    asyncio.run(run())


# -- reload


def test_a_reload_under_load_is_all_or_nothing_and_fails_no_request(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "gateway.toml"
        async with engines(SLOW, SLOW) as (old, new):
            path.write_text(HEAD + table("old", old))
            async with running(tmp_path, load(str(path)), partial(load, str(path))) as gateway:
                await gateway.ready("old")
                steady = SteadyLoad(gateway)
                await steady.more(8)
                text = HEAD + table("new", new)
                path.write_text(f"{text}[models\n")
                broken = await gateway.call("POST", "/admin/reload")
                assert (broken.status, broken.code) == (422, "invalid_config")
                assert f"line {text.count(chr(10)) + 1}, column 8" in broken.json["error"]["message"]
                impossible = '[models.demo]\naliases = ["x"]\n[models.other]\naliases = ["x", "demo"]\n'
                path.write_text(HEAD + table("new", new, "weight = 0") + impossible)
                refused = await gateway.call("POST", "/admin/reload")
                assert refused.status == 422
                assert "weight" in refused.json["error"]["message"]
                path.write_text(HEAD + table("new", new) + impossible)
                refused = await gateway.call("POST", "/admin/reload")
                assert refused.status == 422
                assert "'x'" in refused.json["error"]["message"]
                await steady.more(8)
                assert (await gateway.call("GET", "/admin/backends")).json["total"] == 1
                path.write_text(HEAD + table("new", new))
                applied = await gateway.call("POST", "/admin/reload")
                assert (applied.status, applied.json) == (200, {"generation": 2, "needs_restart": []})
                await gateway.gone("old")
                before = new.requests_seen
                await steady.more(16)
                await steady.stop()
                assert steady.failures == []
                assert old.aborted + new.aborted == 0
                assert new.requests_seen - before >= 8
            assert gateway.log.read_text().count("reload refused") == 3

    in_virtual_time(run())


def test_a_reload_takes_back_a_backend_that_was_on_its_way_out(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "gateway.toml"
        async with engines(SLOW, SLOW) as (engine, other):
            both = HEAD + table("a", engine) + table("b", other)
            path.write_text(both)
            async with running(tmp_path, load(str(path)), partial(load, str(path))) as gateway:
                await gateway.ready("a")
                await gateway.ready("b")
                first = asyncio.create_task(gateway.chat(max_tokens=60))
                second = asyncio.create_task(gateway.chat(max_tokens=60))
                await gateway.until("/admin/backends/a", lambda reply: reply.json["in_flight"] == 1)
                path.write_text(HEAD + table("b", other))
                assert (await gateway.call("POST", "/admin/reload")).status == 200
                leaving = (await gateway.call("GET", "/admin/backends/a")).json
                assert (leaving["state"], leaving["removing"]) == ("draining", True)
                path.write_text(both)
                assert (await gateway.call("POST", "/admin/reload")).json["generation"] == 3
                back = (await gateway.ready("a")).json
                assert (back["removing"], back["drain_left_s"]) == (False, None)
                assert [(await first).status, (await second).status] == [200, 200]
                assert (await gateway.call("GET", "/admin/backends")).json["total"] == 2

    in_virtual_time(run())


def test_a_dropped_backend_serves_until_its_successor_does(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "gateway.toml"
        new = MockEngine(INSTANT)
        url = await new.start()
        port = int(url.rpartition(":")[2])
        await new.close()
        async with engines(INSTANT) as (old,):
            path.write_text(HEAD + table("old", old))
            async with running(tmp_path, load(str(path)), partial(load, str(path))) as gateway:
                await gateway.ready("old")
                path.write_text(HEAD + f'[[backends]]\nname = "new"\nurl = "{url}"\n')
                assert (await gateway.call("POST", "/admin/reload")).status == 200
                await gateway.until("/admin/backends/new", lambda reply: reply.json["state"] == "down")
                shown = (await gateway.call("GET", "/admin/backends/old")).json
                assert (shown["state"], shown["routable"], shown["removing"]) == ("ready", True, True)
                assert (await gateway.chat()).status == 200
                late = MockEngine(replace(INSTANT, port=port))
                await late.start()
                await gateway.gone("old")
                assert (await gateway.chat()).status == 200
                assert late.requests_seen == 1
                await late.close()

    asyncio.run(run())


def test_what_needs_a_restart_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "gateway.toml"
        path.write_text(HEAD)
        async with running(tmp_path, load(str(path)), partial(load, str(path))) as gateway:
            path.write_text(HEAD + "[queue]\nsize = 3\n")
            for generation in (2, 3):
                reply = await gateway.call("POST", "/admin/reload")
                assert reply.json == {"generation": generation, "needs_restart": ["queue.size"]}
            path.write_text(HEAD)
            assert (await gateway.call("POST", "/admin/reload")).json["needs_restart"] == []

    asyncio.run(run())


def test_reading_the_file_stalls_nobody_and_happens_once_at_a_time(tmp_path: Path) -> None:
    gate, entered = threading.Event(), threading.Event()
    running_now: list[int] = []
    most: list[int] = []

    def slow_load() -> GatewayConfig:
        running_now.append(1)
        most.append(len(running_now))
        entered.set()
        assert gate.wait(DEADLINE_S)
        running_now.pop()
        return CONFIG

    async def run() -> None:
        async with engines(INSTANT) as (engine,), running(tmp_path, CONFIG, slow_load) as gateway:
            await gateway.call("POST", "/admin/backends", {"name": "a", "url": engine.url})
            await gateway.ready("a")
            reloads = [asyncio.create_task(gateway.call("POST", "/admin/reload")) for _ in range(3)]
            await asyncio.to_thread(entered.wait, DEADLINE_S)
            assert (await gateway.chat()).status == 200
            assert (await gateway.call("GET", "/admin/backends")).status == 200
            assert not any(task.done() for task in reloads)
            gate.set()
            assert sorted([(await task).json["generation"] for task in reloads]) == [2, 3, 4]
            assert most == [1, 1, 1]

    asyncio.run(run())


def test_the_served_command_reloads_on_hangup(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "gateway.toml"
        async with engines(INSTANT) as (engine,):
            path.write_text(HEAD)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway", "serve", str(path), stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            try:
                async with asyncio.timeout(DEADLINE_S):
                    listening = json.loads(await process.stdout.readline())
                    control = f"http://127.0.0.1:{listening['control'].removeprefix('port ')}"
                    async with aiohttp.ClientSession(headers={"x-api-key": ADMIN_KEY}) as session:
                        await read(session.get(f"{control}/livez"))  # then the signal handlers are set
                        path.write_text("[listen\n")
                        os.kill(process.pid, signal.SIGHUP)
                        refused = json.loads(await process.stdout.readline())
                        assert (refused["event"], refused["level"]) == ("reload refused", "error")
                        path.write_text(HEAD + table("late", engine))
                        os.kill(process.pid, signal.SIGHUP)
                        while json.loads(await process.stdout.readline())["event"] != "reloaded":
                            pass
                        shown = await read(session.get(f"{control}/admin/backends"))
                        assert [backend["name"] for backend in shown.json["backends"]] == ["late"]
                    process.terminate()
                    assert await process.wait() == 0
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    asyncio.run(run())
