"""Simulated engines that share a device: how they are declared, put to sleep, asked, and what became of their moves."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from backends.mock import MockConfig
from gateway.config import BackendSpec, GatewayConfig, Health, ModelSpec
from gateway.moving import Moved
from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps, SwapSpec
from gateway.swapper import Swapper
from predictor.profile import EngineLimits, StepProfile
from tests.wire.kit import CONFIG, Rig, chat, until, virtual_pause
from tests.wire.peer import Answer

STEP_S = 0.05
ENGINE = MockConfig(
    profile=StepProfile(base_s=STEP_S, prefill_token_s=1e-4, decode_seq_s=0.0, kv_token_s=0.0),
    limits=EngineLimits(kv_blocks=1024, block_size=16, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=8192),
    output_tokens=lambda _: 40,  # two seconds
)
SWAPS = Swaps(plan_s=0.2, dwell_s=1.0)


def config(*models: str, swaps: Swaps = SWAPS, memory_gb: float = 20.0) -> GatewayConfig:
    """One device on which each of these models lies alone."""
    rules = tuple(ModelSpec(model, footprint=FootprintSpec(weight_gb=16.0)) for model in models)
    return replace(
        CONFIG,
        health=Health(interval_s=0.5),
        models=rules,
        swaps=swaps,
        devices=(DeviceSpec("gpu0", memory_gb, "rtx-5000-ada"),),
    )


def engines(
    *models: str, tokens: int = 40, token_s: float = 0.0, sleep_s: float = 0.0, wake_s: float = 0.0
) -> tuple[MockConfig, ...]:
    """An engine for each model, with answers of so many tokens; each sequence in the batch adds `token_s` to a step."""
    profile = replace(ENGINE.profile, decode_seq_s=token_s)
    engine = replace(ENGINE, profile=profile, output_tokens=lambda _: tokens, sleep_s=sleep_s, wake_s=wake_s)
    return tuple(replace(engine, name=f"e-{model}", models=(model,)) for model in models)


def sleeper(spec: BackendSpec, keeps: bool = False, stop_s: float = 30.0) -> BackendSpec:
    """Its backend, moved by vLLM's sleep."""
    return replace(spec, models=(spec.name.removeprefix("e-"),), swap=SwapSpec("gpu0", "sleep", keeps=keeps, stop_s=stop_s))


async def sleep(rig: Rig, *names: str) -> None:
    """Put engines to sleep behind the gateway's back, and wait until it knows."""
    for engine in rig.engines:
        if engine.config.name in names:
            host, port = engine.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /sleep?level=1&mode=wait HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            await reader.read()
            writer.close()
    fleet = rig.app.plane.fleet
    await until(lambda: all(replica.state == "asleep" for replica in fleet if replica.name in names), say=lambda: fleet)


async def when(true: Callable[[], bool], limit_s: float = 100.0, say: Callable[[], object] = lambda: "") -> None:
    """As `until`, of what takes long in virtual time: it looks less often."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + limit_s
    while not true():
        assert loop.time() < end_s, f"not within {limit_s} s: {say()}"
        await virtual_pause(0.1)


def ask(rig: Rig, model: str, request_id: str = "", **fields: object) -> "asyncio.Task[Answer]":
    """A stream of a model, under way."""
    headers = {"x-request-id": request_id} if request_id else None
    return asyncio.create_task(rig.ask({**chat(stream=True), "model": model, **fields}, headers=headers))


def swapper(rig: Rig) -> Swapper:
    """The gateway's."""
    found = rig.app.operations.swapper
    assert found is not None
    return found


def history(rig: Rig) -> list[tuple[str, tuple[str, ...], str]]:
    """Its steps so far: who came, who left, what became of it."""
    return [(told.model, told.leaves, told.outcome) for told in swapper(rig).history]


async def moved(rig: Rig, steps: int, limit_s: float = 60.0) -> Moved:
    """Wait until so many steps are over; the last of them."""
    await when(lambda: len(swapper(rig).history) >= steps, limit_s, lambda: swapper(rig).history)
    return list(swapper(rig).history)[steps - 1]


def states(rig: Rig) -> dict[str, str]:
    """Of all backends."""
    return {replica.name: replica.state for replica in rig.app.plane.fleet}


def whole(answer: Answer, tokens: int) -> bool:
    """Whether a stream came unbroken, with so many tokens."""
    return answer.status == 200 and answer.whole and answer.body.count(b'"delta":{"content":') == tokens
