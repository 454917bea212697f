"""Models that share a device, on simulated engines that sleep and wake: who is moved when, and what becomes of requests."""

import asyncio
from dataclasses import replace

import looptime

from backends.mock import MockConfig
from gateway.config import BackendSpec, GatewayConfig, ModelSpec
from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps, SwapSpec
from predictor.profile import EngineLimits, StepProfile
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.peer import Answer

ENGINE = MockConfig(
    profile=StepProfile(base_s=0.05, prefill_token_s=1e-4, decode_seq_s=0.0, kv_token_s=0.0),
    limits=EngineLimits(kv_blocks=1024, block_size=16, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=8192),
    output_tokens=lambda _: 40,  # two seconds
)
SWAPS = Swaps(plan_s=0.2, dwell_s=1.0)


def config(*models: str, swaps: Swaps = SWAPS, memory_gb: float = 20.0) -> GatewayConfig:
    rules = tuple(ModelSpec(model, footprint=FootprintSpec(weight_gb=16.0)) for model in models)
    return replace(CONFIG, models=rules, swaps=swaps, devices=(DeviceSpec("gpu0", memory_gb, "rtx-5000-ada"),))


def engines(*models: str) -> tuple[MockConfig, ...]:
    return tuple(replace(ENGINE, name=f"e-{model}", models=(model,)) for model in models)


def sleeper(spec: BackendSpec, keeps: bool = False) -> BackendSpec:
    return replace(spec, models=(spec.name.removeprefix("e-"),), swap=SwapSpec("gpu0", "sleep", keeps=keeps))


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


def ask(rig: Rig, model: str, **fields: object) -> "asyncio.Task[Answer]":
    """A stream of a model, under way."""
    return asyncio.create_task(rig.ask({**chat(stream=True), "model": model, **fields}))


def test_a_request_for_a_sleeping_model_wakes_it() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        running = ask(rig, "a")
        await until(lambda: rig.engines[0].requests_seen == 1)
        assert (await ask(rig, "b")).status == 200
        assert (await running).status == 200, "its stream was let run to its end"
        assert b"[DONE]" in (await running).body
        swapper = rig.app.operations.swapper
        assert swapper is not None
        (told,) = swapper.history
        assert (told.model, told.leaves, told.outcome, told.reason) == ("b", ("a",), "done", "")
        assert told.at_s > 2.0, "not before the stream was over"
        states = {replica.name: replica.state for replica in rig.app.plane.fleet}
        assert states == {"e-a": "asleep", "e-b": "ready"}
        assert (await ask(rig, "a")).status == 200
        assert swapper.counts == {("b", "done"): 1, ("a", "done"): 1}

    run(case, config("a", "b"), backends=0, engines=engines("a", "b"), spec=sleeper, on=looptime.new_event_loop, limit_s=120.0)
