"""The launcher of local vLLM servers, against a stand-in module of vLLM's name: quick, and no engine is needed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backends.vllm_local import LocalVllm, LocalVllmError, VllmLaunch, find_engine
from tests.engine.engine_http import SURELY_S, wait_until
from tests.engine.engine_run import ROOT, free_port

# Answers /health; a child of its own stands for the engine core. `--stubborn` ignores SIGTERM, as a hung server does.
SERVER = """
import http.server, os, signal, subprocess, sys
print("arguments", sys.argv[1:], "blocks", os.environ["OMP_NUM_THREADS"], flush=True)
if "--broken" in sys.argv:
    raise SystemExit("no memory left for the KV cache")
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("child", child.pid, flush=True)
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--silent" in sys.argv:
    signal.pause()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
PARENT = """
import asyncio, os, sys
from pathlib import Path
from backends.vllm_local import LocalVllm, VllmLaunch
async def main():
    launch = VllmLaunch(Path(sys.executable), Path("model"), "name", int(sys.argv[1]))
    server = LocalVllm(launch, Path(sys.argv[2]), os.environ)
    await server.start()
    await server.wait_ready()
    print(server.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """An environment in which `python -m vllm.entrypoints.openai.api_server` is the stand-in."""
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(SERVER)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def server(tmp_path: Path, environment: dict[str, str], *args: str) -> LocalVllm:
    launch = VllmLaunch(Path(sys.executable), tmp_path / "model", "name", free_port(), args)
    return LocalVllm(launch, tmp_path / "server.log", environment)


def child_of(log: Path) -> int:
    return int(log.read_text().split("child ")[1].split()[0])


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.parametrize("args", [(), ("--stubborn",)], ids=["polite", "stubborn"])
def test_starts_and_ends_with_all_its_processes(tmp_path: Path, stand_in: dict[str, str], args: tuple[str, ...]) -> None:
    vllm = server(tmp_path, stand_in, *args)

    async def scenario() -> None:
        for _ in range(2):  # it can be started again on the same port
            await vllm.start()
            await vllm.wait_ready(SURELY_S)
            assert vllm.running
            await vllm.stop(grace_s=0.3)
            assert not vllm.running

    asyncio.run(scenario())
    wait_until(lambda: is_gone(child_of(vllm.log_path)), SURELY_S, "the engine core has ended, too")
    assert vllm.log_path.read_text().count("arguments") == 2


def test_server_that_dies_is_told_with_its_last_words(tmp_path: Path, stand_in: dict[str, str]) -> None:
    vllm = server(tmp_path, stand_in, "--broken")

    async def scenario() -> None:
        await vllm.start()
        await vllm.wait_ready(SURELY_S)

    with pytest.raises(LocalVllmError, match=r"ended with 1 before it was ready(.|\n)*no memory left for the KV cache"):
        asyncio.run(scenario())


def test_server_that_is_never_ready_is_given_up(tmp_path: Path, stand_in: dict[str, str]) -> None:
    vllm = server(tmp_path, stand_in, "--silent")

    async def scenario() -> None:
        await vllm.start()
        try:
            await vllm.wait_ready(0.5)
        finally:
            await vllm.stop()

    with pytest.raises(LocalVllmError, match="not ready after"):
        asyncio.run(scenario())
    assert not vllm.running


def test_server_ends_with_a_parent_that_is_killed(tmp_path: Path, stand_in: dict[str, str]) -> None:
    environment = {**stand_in, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", PARENT, str(free_port()), str(tmp_path / "server.log")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: is_gone(pid), SURELY_S, "the server has ended")
    wait_until(lambda: is_gone(child_of(tmp_path / "server.log")), SURELY_S, "what the stand-in, unlike vLLM, leaves behind")


def test_later_arguments_and_variables_win() -> None:
    launch = VllmLaunch(Path("python"), Path("model"), "name", 8000, ("--max-model-len", "99"), (("OMP_NUM_THREADS", "2"),))
    command = launch.command()
    assert command[-2:] == ("--max-model-len", "99")
    assert command[command.index("--served-model-name") + 1] == "name"
    assert launch.environment({"OMP_NUM_THREADS": "8", "KEPT": "1"}).items() >= {"OMP_NUM_THREADS": "2", "KEPT": "1"}.items()


def test_missing_engine_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(LocalVllmError, match="make engine"):
        find_engine(tmp_path / "engine", tmp_path / "models")


def test_engine_in_place_is_found(tmp_path: Path) -> None:
    for name in ("engine/bin/python", "engine/.leeway-stamp", "models/tiny/config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = find_engine(tmp_path / "engine", tmp_path / "models", "tiny")
    assert found == (tmp_path / "engine/bin/python", tmp_path / "models/tiny")
