"""A managed process that is slower with a part of its layers: the gateway learns its offload curve from the streams."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import orjson

from gateway.config import BackendSpec, GatewayConfig, ModelSpec, Queue
from gateway.swap_config import FootprintSpec, SwapSpec
from tests.tools.programs import free_port
from tests.wire.kit import Rig, chat, run
from tests.wire.process_kit import SWAPS
from tests.wire.swap_kit import config

LAYERS, TOKENS, STREAMS = 32, 18, 5
GPU_S, CPU_S = 0.006, 0.054  # of a token; half of the layers: five times as long as all of them

# Streams an answer, each token for the time that its layers take; a plain one comes at once.
SERVER = """
import http.server, json, sys, threading
port, model, share = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) / float(sys.argv[4])
tokens, gpu_s, cpu_s = int(sys.argv[5]), float(sys.argv[6]), float(sys.argv[7])
pause = threading.Event()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.reply({"data": [{"id": model}]})
    def reply(self, said):
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        if not json.loads(self.rfile.read(int(self.headers["content-length"]))).get("stream"):
            return self.reply({"choices": [{"message": {"role": "assistant", "content": model}}]})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for _ in range(tokens):
            self.say(json.dumps({"choices": [{"index": 0, "delta": {"content": "x"}}]}))
            pause.wait(share * gpu_s + (1 - share) * cpu_s)
        self.say("[DONE]")
        self.wfile.write(b"0\\r\\n\\r\\n")
    def say(self, text):
        event = b"data: " + text.encode() + b"\\n\\n"
        self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(event), event))
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer.handle_error = lambda *_: None  # a probe that was given up
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def settings(kept: Path, memory_gb: float) -> GatewayConfig:
    """One model of 16 GB, whose configured rates say that the CPU is nearly as fast as the GPU."""
    truth = (str(LAYERS), str(TOKENS), str(GPU_S), str(CPU_S))
    command = (sys.executable, "-S", "-c", SERVER, "${PORT}", "${MODEL}", "${LAYERS}", *truth)
    swap = SwapSpec("gpu0", "process", command=command, start_s=60.0, stop_s=30.0)
    backend = BackendSpec("e-a", f"http://127.0.0.1:{free_port()}", "openai", models=("a",), swap=swap)
    told = FootprintSpec(16.0, layers=LAYERS, gpu_tokens_per_s=100.0, cpu_tokens_per_s=80.0)
    made = replace(config("a", swaps=SWAPS, memory_gb=memory_gb), models=(ModelSpec("a", footprint=told),))
    admin = replace(made.admin, learnt_file=str(kept))
    return replace(made, backends=(backend,), queue=Queue(timeout_s=60.0), admin=admin)


async def ask(rig: Rig, seen: int = STREAMS) -> None:
    """Streams, one after the other, until so many have counted; one that a busy machine holds up counts as an outlier."""
    for number in range(8 * STREAMS):
        answer = await rig.ask({**chat(stream=True), "model": "a"})
        assert answer.whole
        assert answer.body.count(b'"content": "x"') == TOKENS
        known = rig.app.plane.lodging.offload.of("a")
        assert known is not None
        rig.app.plane.books.write()
        if known.fit.seen >= seen and number + 1 >= STREAMS:
            return
    raise AssertionError(f"{known.fit.seen} of {number + 1} streams count")


def test_the_curve_is_learnt_from_streams_shown_and_kept(tmp_path: Path) -> None:
    kept, configured = tmp_path / "learnt", (1.0 + 100 / 80) / 2

    async def whole(rig: Rig) -> None:
        await ask(rig)
        lodging = rig.app.plane.lodging
        known = lodging.offload.of("a")
        assert known is not None
        assert (lodging.lodgers["e-a"].fraction, known.fit.seen) == (1.0, STREAMS)

    run(whole, settings(kept, memory_gb=20.0), backends=0)
    records = [orjson.loads(line) for line in kept.read_bytes().split(b"\n")[1:-1]]
    assert [record["model"] for name, record in records if name == "offload"] == ["a"]

    async def half(rig: Rig) -> None:
        lodging = rig.app.plane.lodging
        known = lodging.offload.of("a")
        assert known is not None
        assert known.fit.seen == STREAMS, "of the life before"
        assert lodging.offload.slowdown("a", 0.5) < 2 * configured
        await ask(rig, 2 * STREAMS - 1)  # the first of another kind may count as an outlier
        assert lodging.lodgers["e-a"].fraction == 0.5, "all that fits"
        assert lodging.offload.slowdown("a", 0.5) > 2 * configured
        shown = (await rig.admin("GET", "/admin/models/a")).json["offload"]
        assert shown["seen"] == known.fit.seen
        assert shown["ratio"] > 3 > 2 > 100 / 80
        (tenant,) = lodging.view([], rig.app.plane.now()).tenants
        assert tenant.slowdown(0.5) == lodging.offload.slowdown("a", 0.5), "and planned with"

    run(half, settings(kept, memory_gb=8.0), backends=0)


def test_streams_beside_others_teach_nothing(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        await ask(rig)
        known = rig.app.plane.lodging.offload.of("a")
        assert known is not None
        before = known.fit.seen
        await asyncio.gather(*[rig.ask({**chat(stream=True), "model": "a"}) for _ in range(4)])
        rig.app.plane.books.write()
        assert known.fit.seen <= before + 1, "but for a last one that may have been left alone"

    run(case, settings(tmp_path / "learnt", memory_gb=20.0), backends=0)


def test_streams_one_after_the_other_count_also_while_more_wait(tmp_path: Path) -> None:
    made = settings(tmp_path / "learnt", memory_gb=20.0)
    made = replace(made, backends=tuple(replace(backend, max_in_flight=1) for backend in made.backends))

    async def case(rig: Rig) -> None:
        known = rig.app.plane.lodging.offload.of("a")
        assert known is not None
        for _ in range(STREAMS - 1):  # were it only the last ones of these that count, there would be one less
            await asyncio.gather(*[rig.ask({**chat(stream=True), "model": "a"}) for _ in range(STREAMS)])
            rig.app.plane.books.write()
            if known.fit.seen >= STREAMS:
                return
        raise AssertionError(f"{known.fit.seen} streams count")

    run(case, made, backends=0)
