"""`gateway demo --swaps`: three models on one simulated device that does not hold them all, and what to try. Shell.

The engines are simulated vLLM servers that sleep and wake in about the time that memory copies of such weights take.
"""

from contextlib import AsyncExitStack
from dataclasses import replace

import aiohttp

from backends.mock import MockConfig, MockEngine
from gateway.app import App
from gateway.config import BackendSpec, GatewayConfig, ModelSpec
from gateway.demo import demo_config, run_demo
from gateway.swap_config import DeviceSpec, FootprintSpec, SwapSpec
from predictor.profile import preset

DEVICE = DeviceSpec("gpu0", 36.0)
MODELS = (("tiny", 6.0), ("writer", 16.0), ("coder", 30.0))  # GB; the last one sleeps at the start
COPY_S_PER_GB = 0.1


def _engine(model: str, size_gb: float) -> MockConfig:
    chosen = preset("demo-fast")
    copy_s = size_gb * COPY_S_PER_GB
    return MockConfig(
        name=f"sim-{model}", models=(model,), profile=chosen.profile, limits=chosen.limits, sleep_s=copy_s, wake_s=copy_s
    )


def _config(data: str, control: str, specs: tuple[BackendSpec, ...], log: bool) -> GatewayConfig:
    rules = tuple(ModelSpec(model, footprint=FootprintSpec(weight_gb=size_gb)) for model, size_gb in MODELS)
    made = demo_config(data, control, specs, log)
    return replace(made, devices=(DEVICE,), models=(*made.models, *rules))


def _screen(app: App) -> str:
    data, control = f"http://127.0.0.1:{app.plane.port}", f"http://127.0.0.1:{app.control_port}"
    admin = f"-H 'authorization: Bearer {app.admin_key}' -H 'content-type: application/json'"
    body = '{"model":"coder","stream":true,"max_tokens":64,"messages":[{"role":"user","content":"Hello"}]}'
    crowd = '{"models":{"writer":{"waiting":20}}}'
    sizes = ", ".join(f"{model} {size_gb:g} GB" for model, size_gb in MODELS)
    return f"""
gateway    {data}/v1
models     {sizes}, on one device of {DEVICE.memory_gb:g} GB; coder is asleep (simulated)
look       gateway plan --control {control} --admin-key {app.admin_key}
try        curl -N {data}/v1/chat/completions -H 'x-leeway-wait-status: sse' -H 'content-type: application/json' -d '{body}'
           then look again: who left for it, why, how long it took
load       curl -X POST {control}/admin/models/writer/load {admin} -d '{{"dry_run":true}}'
what if    curl -X POST {control}/admin/plan {admin} -d '{crowd}'
           Ctrl-C stops everything
"""


async def sharing(data: str, control: str, log: bool) -> None:
    """The demo. Raises OSError when an address is taken."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(MockEngine(_engine(*model))) for model in MODELS]
        async with aiohttp.ClientSession() as client, client.post(f"{engines[-1].url}/sleep?level=1"):
            pass
        specs = tuple(
            BackendSpec(engine.config.name, engine.url, "vllm", engine.config.models, swap=SwapSpec(DEVICE.name, "sleep"))
            for engine in engines
        )
        app = App(_config(data, control, specs, log))
        await run_demo(app, lambda: _screen(app), len(engines) - 1)
