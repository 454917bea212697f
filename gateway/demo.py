"""`gateway demo`: a gateway and three simulated engines in one process, and what to try. Shell.

`--real` puts vLLM on the CPU with a small instruct model behind it instead, where the engine is installed. Prints only
what exists.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from backends.mock import MockConfig, MockEngine
from backends.vllm_local import LocalVllm, LocalVllmError, VllmLaunch, find_engine
from gateway.app import App
from gateway.config import Admin, BackendSpec, GatewayConfig, Listen, Log, ModelSpec
from predictor.profile import preset

SIMULATED = (("sim-a", "demo-fast"), ("sim-b", "demo-fast"), ("sim-c", "demo-slow"))
REAL_NAME = "smollm2"
READY_S = 300.0


def demo_config(data: str, control: str, backends: tuple[BackendSpec, ...], log: bool) -> GatewayConfig:
    """Of a demo's gateway: everybody may ask, the admin key is LEEWAY_ADMIN_KEY or a known one."""
    return GatewayConfig(
        listen=Listen(data=data, control=control),
        backends=backends,
        models=(ModelSpec("*"),),
        log=Log(level="info" if log else "error", access=log),
        admin=Admin(key=os.environ.get("LEEWAY_ADMIN_KEY", "demo-admin-key")),
    )


def _screen(app: App, kinds: str, model: str, said: str) -> str:
    data, control = f"http://127.0.0.1:{app.plane.port}", f"http://127.0.0.1:{app.control_port}"
    body = f'{{"model":"{model}","stream":true,"max_tokens":64,"messages":[{{"role":"user","content":"{said}"}}]}}'
    return f"""
gateway    {data}/v1      OpenAI chat, completions, responses, embeddings; Anthropic messages
metrics    {control}/metrics
backends   {kinds}
try        curl -N {data}/v1/chat/completions -H 'content-type: application/json' -d '{body}'
models     curl {data}/v1/models
admin      curl -H 'authorization: Bearer {app.admin_key}' {control}/admin/backends
clients    OPENAI_BASE_URL={data}/v1  OPENAI_API_KEY=any    ANTHROPIC_BASE_URL={data}
next       edit gateway.toml; gateway check gateway.toml; gateway serve gateway.toml
           Ctrl-C stops everything
"""


async def _ready(app: App, count: int) -> None:
    while sum(r.state == "ready" for r in app.plane.fleet) < count:  # noqa: ASYNC110  (the table has no waiters)
        await asyncio.sleep(0.05)


async def _run(app: App, kinds: str, model: str, said: str) -> None:
    await run_demo(app, lambda: _screen(app, kinds, model, said))


async def run_demo(app: App, screen: Callable[[], str], ready: int = 0) -> None:
    """Serve until a signal; once so many backends (0: all) are ready, print what to try."""
    await app.start()
    try:
        async with asyncio.timeout(READY_S):
            await _ready(app, ready or len(app.plane.fleet))
        print(screen(), flush=True)
        await app.run_until_signal()
    finally:
        await app.close()


async def simulated(data: str, control: str, log: bool) -> None:
    """The demo without an engine. Raises OSError when an address is taken."""
    async with AsyncExitStack() as stack:
        specs = []
        for seed, (name, speed) in enumerate(SIMULATED):
            chosen = preset(speed)
            engine = MockEngine(
                MockConfig(name=name, models=("demo",), profile=chosen.profile, limits=chosen.limits, seed=seed)
            )
            await stack.enter_async_context(engine)
            specs.append(BackendSpec(name, engine.url, engine="vllm"))
        kinds = "sim-a sim-b (fast) sim-c (slow)      simulated: the timing is an engine's, the words are not a model's"
        await _run(App(demo_config(data, control, tuple(specs), log)), kinds, "demo", "Tell me a story.")


async def real(data: str, control: str, log: bool, environment: str, models: str) -> None:
    """The demo with vLLM on this machine's CPU. Raises LocalVllmError with the remedy, OSError."""
    python, model = find_engine(Path(environment), Path(models))
    with tempfile.TemporaryDirectory(prefix="leeway-demo-") as folder:
        launch = VllmLaunch(python, model, REAL_NAME, _free_port())
        server = LocalVllm(launch, Path(folder) / "vllm.log", dict(os.environ))
        print("starting vLLM on the CPU; this takes about half a minute ...", flush=True)
        await server.start()
        try:
            await server.wait_ready(READY_S)
            specs = (BackendSpec("vllm-cpu", launch.url, engine="vllm"),)
            kinds = "vllm-cpu (SmolLM2-135M-Instruct)     a real, very small model"
            await _run(App(demo_config(data, control, specs, log)), kinds, REAL_NAME, "What is the capital of France?")
        finally:
            await server.stop()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


__all__ = ["LocalVllmError", "demo_config", "real", "run_demo", "simulated"]
