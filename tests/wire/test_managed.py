"""Managed processes: small real servers that are started, stopped, crash, lie and hang."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backends.managed import ManagedProcess
from backends.movers import mover_for
from backends.moves import MoveError
from tests.tools.programs import free_port
from tests.wire.kit import until
from tests.wire.mover_kit import Recorded, control_of, spec

# A server with /health and /v1/models; what it does otherwise is the third argument. `layers` are written to its log.
SERVER = """
import http.server, json, os, signal, sys
port, model, how, layers = sys.argv[1:5]
ours = [name for name in os.environ if name.startswith("LEEWAY_")]
print("layers", layers, os.environ.get("ANSWER", ""), *ours, os.getcwd(), flush=True)
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "broken":
    sys.exit("out of memory while loading")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            print("a bad kernel", flush=True)
            os._exit(9)
        health = {"loading": 503, "plain": 404}.get(how, 200)
        self.send_response(health if self.path == "/health" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "another" if how == "wrong" else model}]}).encode())
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
COMMAND = (sys.executable, "-S", "-c", SERVER, "${PORT}", "${MODEL}")


def managed(
    use: Callable[[ManagedProcess, Recorded, Path], Awaitable[None]], place: Path, how: str = "well", **fields: object
) -> None:
    """Run `use` with a mover of such a server, whose log is at that place. Nothing runs afterwards."""
    log = place / "engine.log"

    async def run() -> None:
        url = f"http://127.0.0.1:{free_port()}"
        async with control_of(url) as http:
            command = (*COMMAND, how, "${LAYERS}")
            mover = mover_for(spec("process", url, command=command, **{"log": str(log), **fields}), http)
            assert isinstance(mover, ManagedProcess)
            try:
                await use(mover, http, log)
            finally:
                await mover.close()
            assert not mover._child.running
            assert not [fd for fd in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{fd}") == str(log)]

    asyncio.run(run())


@pytest.mark.parametrize("how", ["well", "plain"], ids=["with /health", "without /health"])
def test_it_comes_and_goes(tmp_path: Path, how: str) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        assert (mover.home, mover.keeps, mover.parts, await mover.where()) == ("disk", False, False, "disk")
        for _ in range(2):
            await mover.into(1.0)
            assert await mover.where() == "gpu"
        assert mover.home == "cache"
        for _ in range(2):
            await mover.out(keep=False)
            assert await mover.where() == "cache"
            assert mover.died() == ""
        await mover.into(1.0)
        assert log.read_text().count("layers 1") == 2

    managed(use, tmp_path, how)


def test_a_part_of_the_layers_takes_another_process(tmp_path: Path) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        assert mover.parts
        for fraction in (0.5, 0.5, 1.0, 0.0):
            await mover.into(fraction)
            assert await mover.where() == "gpu"
        assert [line.split()[1] for line in log.read_text().splitlines()] == ["15", "30", "0"]

    managed(use, tmp_path, layers=30)


def test_it_has_its_environment_without_our_secrets_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEEWAY_ADMIN_KEY", "secret")
    monkeypatch.setenv("LEEWAY_RHO", "0.1")
    place = tmp_path / "place"
    place.mkdir()

    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        await mover.into(1.0)
        assert log.read_text() == f"layers 1 42 LEEWAY_RHO {place}\n"

    managed(use, tmp_path, env=(("ANSWER", "42"), ("LEEWAY_RHO", "0.2")), folder=str(place))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("broken", r"the process of m ended before it was ready with 1; the end of .*engine\.log:\n(.|\n)*out of memory"),
        ("wrong", "the process serves another, not m"),
    ],
)
def test_a_load_that_fails_says_why_at_once(tmp_path: Path, how: str, told: str) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        with pytest.raises(MoveError, match=told):
            await mover.into(1.0)
        assert (await mover.where(), mover.died(), mover._child.running) == ("disk", "", False)

    managed(use, tmp_path, how)


def test_one_that_is_never_ready_is_given_up_and_ended(tmp_path: Path) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        with pytest.raises(MoveError) as caught:
            await mover.into(1.0)
        assert not mover._child.running
        told.append(str(caught.value))

    told: list[str] = []
    for start_s in (1.5, 6.0, 24.0):  # a busy machine takes longer until it answers at all
        managed(use, tmp_path, "loading", start_s=start_s)
        assert f"was not ready within {start_s:g} s (" in told[-1]
        if "answered 503" in told[-1]:
            break
    assert "(/health answered 503); the end of" in told[-1]


def test_one_that_ignores_sigterm_is_killed_after_its_time(tmp_path: Path) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        await mover.into(1.0)
        await mover.out(keep=False)
        assert mover._child.code == 128 + signal.SIGKILL
        assert await mover.where() == "cache"

    managed(use, tmp_path, "stubborn", stop_s=0.2)


def test_a_crash_is_noticed_with_its_last_words_and_it_can_come_again(tmp_path: Path) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        await mover.into(1.0)
        assert mover.died() == ""
        await asyncio.gather(http.get("/die"), return_exceptions=True)
        await until(lambda: mover.died() != "", 60.0)
        assert mover.died().startswith("the process of m ended with 9; the end of ")
        assert mover.died().endswith("a bad kernel")
        assert await mover.where() == "cache"
        await mover.into(1.0)
        assert (mover.died(), await mover.where()) == ("", "gpu")

    managed(use, tmp_path)


def test_last_words_are_there_without_a_log_file(tmp_path: Path) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        with pytest.raises(MoveError, match=r"ended before it was ready with 1; the end of its output:\n(.|\n)*out of memory"):
            await mover.into(1.0)
        assert not log.exists()

    managed(use, tmp_path, "broken", log="")


def test_a_load_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        load = asyncio.create_task(mover.into(1.0))
        await until(lambda: log.exists() and "layers" in log.read_text(), 60.0)
        assert await mover.where() is None  # in between
        load.cancel()
        assert isinstance((await asyncio.gather(load, return_exceptions=True))[0], asyncio.CancelledError)
        assert not mover._child.running

    managed(use, tmp_path, "loading")


def test_an_address_where_somebody_else_answers_is_left_alone(tmp_path: Path) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        await mover.into(1.0)
        second = mover_for(mover._spec, http)
        with pytest.raises(MoveError, match="is taken: something answers there"):
            await second.into(1.0)
        assert await mover.where() == "gpu"
        patient = replace(mover._spec, swap=replace(mover._spec.swap, stop_s=60.0))
        await second.close()
        second = mover_for(patient, http)
        load = asyncio.create_task(second.into(1.0))  # it waits a little for the other to go
        await mover.out(keep=False)
        await load
        await second.close()

    managed(use, tmp_path, stop_s=1.0)


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    async def use(mover: ManagedProcess, http: Recorded, log: Path) -> None:
        with pytest.raises(MoveError, match=r"No such file or directory .*nowhere"):
            await mover.into(1.0)

    managed(use, tmp_path, folder=str(tmp_path / "nowhere"))
    managed(use, tmp_path / "nowhere")  # of the log


def test_prefetch_reads_the_weights_that_the_command_names(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.safetensors").write_bytes(os.urandom(1000))
    (tmp_path / "m" / "notes.txt").write_text("not weights")

    async def run() -> None:
        async with control_of("http://127.0.0.1:9") as http:
            for word, home in (("--model=m", "cache"), ("--model=elsewhere", "disk"), ("m/notes.txt", "disk")):
                command = ("engine", word, "${PORT}")
                mover = mover_for(spec("process", "http://127.0.0.1:9", command=command, folder=str(tmp_path)), http)
                await mover.prefetch()
                assert mover.home == home

    asyncio.run(run())


def test_a_prefetch_that_is_cancelled_stops_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.managed.READ_BYTES", 1)
    weights = tmp_path / "m.gguf"
    weights.write_bytes(bytes(100_000_000))

    def read() -> bool:
        return any(os.path.realpath(f"/proc/self/fd/{fd}") == str(weights) for fd in os.listdir("/proc/self/fd"))

    async def run() -> None:
        async with control_of("http://127.0.0.1:9") as http:
            command = ("engine", "m.gguf", "${PORT}")
            mover = mover_for(spec("process", "http://127.0.0.1:9", command=command, folder=str(tmp_path)), http)
            fetch = asyncio.create_task(mover.prefetch())
            await until(read)
            fetch.cancel()
            assert isinstance((await asyncio.gather(fetch, return_exceptions=True))[0], asyncio.CancelledError)
            await until(lambda: not read())
            assert mover.home == "disk", "it was not read whole"

    asyncio.run(run())


def test_the_simulated_engine_is_managed_as_a_real_one_is(tmp_path: Path) -> None:
    async def run() -> None:
        url = f"http://127.0.0.1:{free_port()}"
        command = (sys.executable, "-m", "gateway", "mock", "--port", "${PORT}", "--model", "${MODEL}", "--speed", "instant")
        async with control_of(url) as http:
            mover = mover_for(spec("process", url, "demo", command=command, log=str(tmp_path / "log")), http)
            try:
                await mover.into(1.0)
                reply = await http.post("/v1/completions", {"model": "demo", "prompt": "hi", "max_tokens": 1})
                assert reply.status == 200
                await mover.out(keep=False)
            finally:
                await mover.close()
            assert mover.died() == ""

    asyncio.run(run())
