"""Models whose processes the gateway starts: small real servers, how they are declared, asked, and seen to run."""

import sys
from dataclasses import replace
from pathlib import Path

from gateway.config import BackendSpec, GatewayConfig, Queue
from gateway.swap_config import Swaps, SwapSpec
from tests.tools.programs import free_port
from tests.wire.kit import Rig, chat
from tests.wire.swap_kit import config

# Answers with its model's name, to who asks as the user `wait` not before there is a file `go`. Its first starts may fail; by
# its environment it may heed no SIGTERM (STUBBORN) or never be ready (LOADING).
SERVER = """
import http.server, json, os, pathlib, signal, sys, threading
pause = threading.Event()
port, model, folder = sys.argv[1:4]
folder = pathlib.Path(folder)
if "STUBBORN" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
starts = folder / f"{model}.starts"
with starts.open("a") as file:
    file.write(f"{os.getpid()}\\n")
if len(starts.read_text().split()) <= int(os.environ.get("FAILS", "0")):
    sys.exit("killed while it loaded")
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def reply(self, body, kind="application/json"):
        self.send_response(503 if "LOADING" in os.environ else 200)
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
http.server.ThreadingHTTPServer.handle_error = lambda *_: None  # a probe that was given up
http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
SWAPS = Swaps(plan_s=0.1, dwell_s=0.1)


def backend(folder: Path, model: str, fails: int = 0) -> BackendSpec:
    """A backend with a process of ours; its first `fails` starts fail."""
    command = (sys.executable, "-S", "-c", SERVER, "${PORT}", "${MODEL}", str(folder))
    env = (("FAILS", str(fails)),)
    log = str(folder / f"{model}.log")
    swap = SwapSpec("gpu0", "process", command=command, env=env, log=log, start_s=60.0, stop_s=30.0)
    return BackendSpec(f"e-{model}", f"http://127.0.0.1:{free_port()}", "openai", models=(model,), swap=swap)


def settings(*backends: BackendSpec, swaps: Swaps = SWAPS) -> GatewayConfig:
    """All on one device that holds one."""
    models = [backend.models[0] for backend in backends]
    return replace(config(*models, swaps=swaps), backends=backends, queue=Queue(timeout_s=60.0))


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
