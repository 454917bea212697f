"""SGLang's KV events, written by its own recorder and publisher, joined to requests by the session that their bodies name.

No engine runs here: the server is the stub of its request models, and what the tree would store is told to the writer.
"""

import ast
import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2 as httpx
import pytest

from gateway.app import App
from gateway.config import Admin, BackendSpec, GatewayConfig, Health, Listen, ModelSpec
from gateway.prompt import prompt_tokens
from tests.engine.engine_http import SURELY_S
from tests.engine.engine_run import PROBE_S, ROOT, free_port
from tests.wire.kit import idle_for, until

HERE = Path(__file__).parent
ENGINE = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine"))
TEXT = " ".join(f"word{number}" for number in range(1500))


def started(stack: ExitStack, said: str, *command: str) -> "subprocess.Popen[str]":
    """A program in the engine's environment, once it has said that."""
    whole = [ENGINE / "bin" / "python", *command]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(whole, text=True, **pipes)  # type: ignore[call-overload]
    stack.callback(process.communicate)
    stack.callback(process.kill)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if said in line:
            return process
    raise AssertionError("".join(lines[-20:]))


@pytest.fixture(params=[1, 16])
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, int, "subprocess.Popen[str]"]]:
    """(the stub's URL, where its events come, the tokens of a page, their writer)."""
    ports = free_port(), free_port()
    with ExitStack() as stack:
        started(stack, "Uvicorn running", str(HERE / "sglang_stub.py"), str(ports[0]), "generate")
        writer = started(stack, "publishing", str(HERE / "sglang_kv_writer.py"), str(ports[1]), str(request.param))
        yield f"http://127.0.0.1:{ports[0]}", f"tcp://127.0.0.1:{ports[1]}", request.param, writer


def test_a_request_is_joined_to_its_blocks(engine: tuple[str, str, int, "subprocess.Popen[str]"]) -> None:
    url, events, page, writer = engine

    def tell(**command: object) -> None:
        assert writer.stdin is not None
        writer.stdin.write(json.dumps(command) + "\n")
        writer.stdin.flush()

    async def run() -> None:
        config = GatewayConfig(
            listen=Listen("127.0.0.1:0", "127.0.0.1:0"),
            backends=(BackendSpec("gen", url, kv_events=events),),
            models=(ModelSpec("sglang-stub", "plan"),),
            admin=Admin(key="k"),
            health=Health(timeout_s=PROBE_S),
        )
        app = App(config, log_fd=os.open(os.devnull, os.O_WRONLY))
        await app.start()
        engines = app.plane.desks.engines
        path = f"http://127.0.0.1:{app.plane.port}/v1/chat/completions"
        body = {"model": "sglang-stub", "messages": [{"role": "user", "content": TEXT}], "stream": True}
        async with asyncio.timeout(SURELY_S), httpx.AsyncClient(timeout=SURELY_S) as client:
            while not all(replica.state == "ready" for replica in app.plane.fleet):
                await asyncio.sleep(0)
            (replica,) = app.plane.fleet
            for name, session in (("mine", {}), ("theirs", {"session_id": "of-the-client"})):
                answer = await client.post(path, json={**body, **session}, headers={"x-request-id": name})
                assert answer.status_code == 200
            mine, theirs = (await client.get(f"{url}/seen")).json()
            assert (mine["body"]["session_id"], theirs["body"]["session_id"]) == ("mine", "of-the-client")
            view, mirror = engines.views["gen"], engines.mirror(replica)
            assert view.answers_at_once
            held, tokens = len(mirror.index), prompt_tokens(len(answer.request.content))
            assert held > 4
            while not view.tokens:  # a publisher's first messages are for nobody
                tell(ping=True)
                await idle_for(0.05)
            before = view.tokens
            tell(store=["mine", tokens, 400])
            await until(lambda: view.joined == 1, SURELY_S)
            await until(lambda: view.tokens == before + tokens - tokens % page + 400, SURELY_S)
            tell(remove="answer")
            await until(lambda: view.tokens == before + tokens - tokens % page, SURELY_S)
            assert len(mirror.index) == held, "an answer holds no text of a prompt"
            tell(remove="prompt")
            await until(lambda: view.tokens == before, SURELY_S)
            assert len(mirror.index) <= 1
        await app.close()

    asyncio.run(run())


def test_the_wheel_names_the_session_and_keeps_nothing_else_by_it() -> None:
    """What the join rests on, in its source: the cache is told a body's session, the tree gives it to the recorder, and the
    scheduler treats it as more than a name only with the option that the gateway looks for."""
    srt = next(ENGINE.glob("lib/python3.*/site-packages/sglang/srt"))
    cache = (srt / "mem_cache" / "unified_radix_cache.py").read_text()
    assert "session_id=req.session_id" in cache
    assert "record_store(new_node, session_id=session_id)" in (srt / "mem_cache/unified_cache/unified_tree_core.py").read_text()
    scheduler = ast.parse((srt / "managers" / "scheduler.py").read_text())
    tests = [ast.unparse(node) for node in ast.walk(scheduler) if isinstance(node, ast.BoolOp)]
    assert "recv_req.session_id is not None and self.enable_session_radix_cache" in tests
