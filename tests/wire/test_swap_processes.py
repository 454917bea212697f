"""Models whose processes the gateway starts: crashes, reloads, its own end. Small real servers, real time."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backends.managed import ManagedProcess
from gateway.config import BackendSpec, GatewayConfig, Queue
from gateway.swap_config import Swaps, SwapSpec
from tests.tools.programs import free_port
from tests.wire.kit import Rig, chat, run, until
from tests.wire.swap_kit import config, history, states, swapper

# Answers with its model's name, to who asks as the user `wait` not before there is a file `go`. Its first starts may fail.
SERVER = """
import http.server, json, os, pathlib, sys, threading
pause = threading.Event()
port, model, folder = sys.argv[1:4]
folder = pathlib.Path(folder)
starts = folder / f"{model}.starts"
with starts.open("a") as file:
    file.write(f"{os.getpid()}\\n")
if len(starts.read_text().split()) <= int(os.environ.get("FAILS", "0")):
    sys.exit("killed while it loaded")
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def reply(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.reply(json.dumps({"data": [{"id": model}]}).encode())
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        while asked.get("user") == "wait" and not (folder / "go").exists():
            pause.wait(0.01)
        self.reply(json.dumps({"choices": [{"message": {"role": "assistant", "content": model}}]}).encode())
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
SWAPS = Swaps(plan_s=0.1, dwell_s=0.1)


def backend(folder: Path, model: str, fails: int = 0) -> BackendSpec:
    """A backend with a process of ours; its first `fails` starts fail."""
    command = (sys.executable, "-S", "-c", SERVER, "${PORT}", "${MODEL}", str(folder))
    env = (("FAILS", str(fails)),)
    log = str(folder / f"{model}.log")
    swap = SwapSpec("gpu0", "process", command=command, env=env, log=log, start_s=10.0, stop_s=5.0)
    return BackendSpec(f"e-{model}", f"http://127.0.0.1:{free_port()}", "openai", models=(model,), swap=swap)


def settings(*backends: BackendSpec, swaps: Swaps = SWAPS) -> GatewayConfig:
    """All on one device that holds one."""
    models = [backend.models[0] for backend in backends]
    return replace(config(*models, swaps=swaps), backends=backends, queue=Queue(timeout_s=20.0))


async def say(rig: Rig, model: str, **fields: object) -> str:
    """What a model answers to a plain request."""
    answer = await rig.ask({**chat(), "model": model, **fields})
    assert answer.status == 200, answer
    return str(answer.json["choices"][0]["message"]["content"])


def pids(folder: Path, model: str) -> list[int]:
    """Of all its starts, in order."""
    path = folder / f"{model}.starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def alive(pid: int) -> bool:
    """Whether it runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again after some seconds is here after some tenths."""
    monkeypatch.setattr("gateway.lodging.BAR_FIRST_S", 0.3)


def test_two_processes_take_turns_and_none_outlives_the_gateway(tmp_path: Path) -> None:
    made = settings(backend(tmp_path, "a"), backend(tmp_path, "b"))

    async def case(rig: Rig) -> None:
        assert [await say(rig, model) for model in "abbaa"] == list("abbaa")
        assert history(rig) == [("a", (), "done"), ("b", ("a",), "done"), ("a", ("b",), "done")]
        assert [alive(pid) for pid in (*pids(tmp_path, "a"), *pids(tmp_path, "b"))] == [False, True, False]
        both = await asyncio.gather(*[say(rig, model) for model in "abababab"])
        assert both == list("abababab")
        assert len(history(rig)) <= 5
        costs, size = rig.app.plane.lodging.costs, 16e9
        assert costs.predict("a", size, "rtx-5000-ada", "disk", "gpu").seen == 1
        assert costs.predict("a", size, "rtx-5000-ada", "cache", "gpu").seen >= 1, "the second time it was near"
        assert rig.app.plane.lodging.lodgers["e-a"].rest == "cache", "and stays so when it leaves"

    run(case, made, backends=0)
    assert not any(alive(pid) for model in "ab" for pid in pids(tmp_path, model))


def test_one_that_crashes_comes_back_by_itself(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        assert await say(rig, "a") == "a"
        lost = asyncio.create_task(rig.ask({**chat(), "model": "a", "user": "wait"}))
        await until(lambda: rig.app.plane.fleet.get("e-a").in_flight == 1)
        os.kill(pids(tmp_path, "a")[-1], signal.SIGKILL)
        assert (await lost).status == 502
        await until(lambda: states(rig) == {"e-a": "asleep"})
        assert await say(rig, "a") == "a", "who comes meanwhile waits for it"
        os.kill(pids(tmp_path, "a")[-1], signal.SIGKILL)
        await until(lambda: len(pids(tmp_path, "a")) == 3 and states(rig) == {"e-a": "ready"})
        assert [told.outcome for told in swapper(rig).history] == ["done"] * 3
        gone = [line["reason"] for line in rig.log() if line["event"] == "model gone"]
        assert len(gone) == 2
        assert all("ended with 137" in reason for reason in gone)

    run(case, settings(backend(tmp_path, "a")), backends=0)


def test_one_that_is_killed_while_it_loads_is_started_again(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        assert await say(rig, "a") == "a"
        assert len(pids(tmp_path, "a")) == 2
        (told,) = swapper(rig).history
        assert told.outcome == "done"
        (again,) = [line["reason"] for line in rig.log() if line["event"] == "move tried again"]
        assert "killed while it loaded" in again

    run(case, settings(backend(tmp_path, "a", fails=1)), backends=0)


def test_one_that_never_loads_is_refused_honestly_and_the_other_comes_back(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        assert await say(rig, "a") == "a"
        answer = await rig.ask({**chat(), "model": "b"})
        assert (answer.status, answer.error["code"]) == (503, "model_not_loaded")
        assert int(answer.headers[b"retry-after"]) >= 1
        assert "killed" not in answer.error["message"]
        assert await say(rig, "a") == "a"
        assert not any(alive(pid) for pid in pids(tmp_path, "b"))

    run(case, settings(backend(tmp_path, "a"), backend(tmp_path, "b", fails=99)), backends=0)


def test_a_reload_ends_what_it_drops_and_nothing_else(tmp_path: Path) -> None:
    made = settings(backend(tmp_path, "a"), backend(tmp_path, "b"))
    a, b = made.backends
    config = [made]

    async def case(rig: Rig) -> None:
        waits = asyncio.create_task(rig.ask({**chat(), "model": "a", "user": "wait"}))
        await until(lambda: rig.app.plane.fleet.get("e-a").in_flight == 1)
        config[0] = replace(made, backends=(replace(a, weight=2.0), b))
        await rig.app.operations.reload()
        assert rig.app.plane.fleet.get("e-a").weight == 2.0
        other = replace(a, swap=replace(a.swap, env=(("FAILS", "0"), ("MORE", "1"))))
        config[0] = replace(made, backends=(other, b))
        await rig.app.operations.reload()
        (first,) = pids(tmp_path, "a")
        assert alive(first), "not before its requests are over"
        (tmp_path / "go").touch()
        assert (await waits).json["choices"][0]["message"]["content"] == "a"
        await until(lambda: not alive(first))
        assert await say(rig, "a") == "a"
        _, second = pids(tmp_path, "a")
        config[0] = replace(made, backends=(b,), models=made.models[1:])
        await rig.app.operations.reload()
        await until(lambda: not alive(second))
        assert (await rig.ask({**chat(), "model": "a"})).status == 404
        assert await say(rig, "b") == "b"
        config[0] = replace(made, backends=(), models=(), devices=())
        await rig.app.operations.reload()
        await until(lambda: not any(alive(pid) for pid in pids(tmp_path, "b")))

    run(case, made, backends=0, load=lambda: config[0])


def test_a_reload_in_the_middle_of_a_load(tmp_path: Path) -> None:
    """What was dropped meanwhile is ended, however its load goes."""
    made = settings(backend(tmp_path, "a", fails=1))
    config = [made]

    async def case(rig: Rig) -> None:
        waits = asyncio.create_task(rig.ask({**chat(), "model": "a"}))
        await until(lambda: bool(pids(tmp_path, "a")))
        config[0] = replace(made, backends=(), models=())
        await rig.app.operations.reload()
        assert (await waits).status in (200, 404, 503)
        await until(lambda: rig.app.plane.fleet.get("e-a") is None and not rig.app.plane.lodging.lodgers)
        await until(lambda: not any(alive(pid) for pid in pids(tmp_path, "a")))

    run(case, made, backends=0, load=lambda: config[0])


def test_a_prefetch_that_brings_nothing_nearer_teaches_nothing(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        lodger = rig.app.plane.lodging.lodgers["e-a"]
        for _ in range(2):
            swapper(rig)._prefetch("a", "gpu0")  # its command names no files of weights
            await until(lambda: not swapper(rig).moving)
        assert (lodger.place, lodger.fetches) == ("disk", False)
        assert rig.app.plane.lodging.costs.predict("a", 16e9, "rtx-5000-ada", "disk", "ram").seen == 0
        swapper(rig)._prefetch("a", "gpu0")
        assert not swapper(rig).moving, "nor is it tried again and again"

    run(case, settings(backend(tmp_path, "a")), backends=0)


def test_reading_ahead_makes_way_for_a_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless_read(self: ManagedProcess) -> None:
        await asyncio.Event().wait()

    async def case(rig: Rig) -> None:
        monkeypatch.setattr(ManagedProcess, "prefetch", endless_read)
        swapper(rig)._prefetch("b", "gpu0")
        assert swapper(rig).moving == {"gpu0"}
        assert await say(rig, "a") == "a"
        assert history(rig) == [("a", (), "done")]

    run(case, settings(backend(tmp_path, "a"), backend(tmp_path, "b")), backends=0)


def test_while_nobody_waits_what_may_be_asked_for_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.swapper.IDLE_S", 0.2)
    (tmp_path / "b.safetensors").write_bytes(bytes(100_000))
    asked = backend(tmp_path, "b")
    asked = replace(asked, swap=replace(asked.swap, command=(*asked.swap.command, str(tmp_path / "b.safetensors"))))
    made = settings(backend(tmp_path, "a"), asked)
    made = replace(made, devices=tuple(replace(device, ram_gb=64.0) for device in made.devices))

    async def case(rig: Rig) -> None:
        lodging = rig.app.plane.lodging
        lodging.arrived("b", rig.app.plane.now(), float("inf"))
        await until(lambda: lodging.lodgers["e-b"].place == "cache")
        assert not history(rig), "nothing was moved for it"
        assert not pids(tmp_path, "b")
        assert lodging.lodgers["e-a"].place == "disk", "nobody ever asked for that one"

    run(case, made, backends=0)
