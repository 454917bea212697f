"""Budgets on their way to SGLang: its own reading of our header, sorted by its own rule, behind a stub. No engine runs here."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from gateway.app import App
from gateway.config import Admin, BackendSpec, GatewayConfig, Health, Listen
from tests.engine.engine_http import SURELY_S
from tests.engine.engine_run import PROBE_S, ROOT, free_port

STUB = Path(__file__).with_name("sglang_stub.py")


@pytest.fixture(params=["priority", "priority-low-first"])
def stub(request: pytest.FixtureRequest) -> Iterator[str]:
    """A stub whose server says that it orders by priority, the large or the small first."""
    python = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine")) / "bin" / "python"
    port = free_port()
    process = subprocess.Popen([python, STUB, str(port), request.param], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = next((line for line in process.stderr if "Uvicorn running" in line), "")
        assert said, "the stub ended before it listened"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def test_whoever_must_start_first_runs_first(stub: str) -> None:
    asks = {"unpromised": "", "late": "25000", "soon": "2000", "middle": "9000"}

    async def run() -> list[str]:
        listen = Listen("127.0.0.1:0", "127.0.0.1:0")
        health = Health(timeout_s=PROBE_S)
        config = GatewayConfig(listen=listen, backends=(BackendSpec("gen", stub),), admin=Admin(key="k"), health=health)
        app = App(config, log_fd=os.open(os.devnull, os.O_WRONLY))
        await app.start()
        url = f"http://127.0.0.1:{app.plane.port}/v1/chat/completions"
        async with asyncio.timeout(SURELY_S), httpx.AsyncClient(timeout=SURELY_S) as client:
            while not all(replica.state == "ready" for replica in app.plane.fleet):
                await asyncio.sleep(0)
            (replica,) = app.plane.fleet
            assert replica.scheduling in ("priority", "priority-low-first")
            for name, ttft_ms in asks.items():
                headers = {"x-request-id": name, **({"x-slo-ttft-ms": ttft_ms} if ttft_ms else {})}
                body = {"model": "sglang-stub", "messages": [{"role": "user", "content": "hi"}], "priority": 7}
                assert (await client.post(url, json=body, headers=headers)).status_code == 200
            seen = (await client.get(f"{stub}/seen")).json()
            assert all(one["body"]["priority"] == int(one["headers"]["x-override-priority"]) for one in seen), "said both ways"
            assert all(one["priority"] == one["body"]["priority"] != 7 for one in seen)
            order = list((await client.get(f"{stub}/order")).json())
        await app.close()
        return order

    assert asyncio.run(run()) == ["soon", "middle", "late", "unpromised"]
