"""The simulated engine's sidecar in virtual time: what it foretells is what a client then measures."""

import asyncio
import json
from random import Random

import aiohttp
import looptime
import pytest

from backends.mock import MockConfig, MockEngine
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate
from predictor.sidecar import SidecarConfig
from predictor.wire import Ask, encode_ask

PROFILE = StepProfile(base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0001)
LIMITS = EngineLimits(kv_blocks=40, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=512)
CONFIG = MockConfig(profile=PROFILE, limits=LIMITS, enable_prefix_caching=False, sidecar=SidecarConfig(port=0))
TICK_S = 1e-4


async def stream(
    client: aiohttp.ClientSession, prompt: int, tokens: int, begun: asyncio.Event | None = None, hint: int | None = None
) -> tuple[float, float]:
    """Seconds to the first and to the last token; `begun` is set at the first."""
    loop = asyncio.get_running_loop()
    body: dict[str, object] = {"prompt": [1] * prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
    if hint is not None:
        body["vllm_xargs"] = {"leeway_out_tokens": hint}
    began_s, first_s, last_s = loop.time(), 0.0, 0.0
    async with client.post("/v1/completions", json={"model": "demo", **body}) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                last_s = loop.time() - began_s
                first_s = first_s or last_s
                if begun is not None:
                    begun.set()
    return first_s, last_s


async def predict(url: str, prompt_tokens: int, tokens: int) -> dict[str, float]:
    ask = Ask("asked", "demo", prompt_tokens, LengthEstimate(tokens, tokens, tokens, "test"))
    async with aiohttp.ClientSession() as client, client.post(url + "/predict", data=encode_ask(ask, 0)) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(6))
def test_predictions_come_true(seed: int) -> None:
    rng = Random(seed)
    prompt = rng.randint(5, 150)

    async def scenario() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with MockEngine(CONFIG) as engine, aiohttp.ClientSession(engine.url, timeout=timeout) as client:
            assert engine.sidecar is not None
            begun = asyncio.Event()
            others = [
                asyncio.create_task(stream(client, rng.randint(5, 150), rng.randint(20, 60), begun))
                for _ in range(rng.randint(1, 9))
            ]
            await begun.wait()
            foretold = await predict(engine.sidecar.url, prompt, 30)
            assert foretold["in_flight"] == len(others)
            first_s, last_s = await stream(client, prompt, 30)
            assert foretold["ttft_s"] == pytest.approx(first_s, abs=TICK_S)
            assert foretold["e2e_s"] == pytest.approx(last_s, abs=TICK_S)
            await asyncio.gather(*others)

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(scenario())


def test_sidecar_knows_hints_not_the_truth() -> None:
    async def scenario() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with MockEngine(CONFIG) as engine, aiohttp.ClientSession(engine.url, timeout=timeout) as client:
            assert engine.sidecar is not None
            one, two = asyncio.Event(), asyncio.Event()
            tasks = [
                asyncio.create_task(stream(client, 5, 90, one)),
                asyncio.create_task(stream(client, 5, 90, two, hint=40)),
            ]
            await one.wait()
            await two.wait()
            async with client.get(engine.sidecar.url + "/snapshot") as answer:
                state = (await answer.json())["state"]
            assert sorted(one["output_tokens"] for one in state["running"]) == [40, 90]
            await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(scenario())


def test_sidecar_goes_with_its_engine() -> None:
    async def scenario() -> None:
        async with MockEngine(CONFIG) as engine, aiohttp.ClientSession() as client:
            assert engine.sidecar is not None
            url = engine.sidecar.url
            async with client.get(url + "/healthz") as answer:
                assert answer.status == 200
        async with aiohttp.ClientSession() as client:
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.get(url + "/healthz")

    asyncio.run(scenario())


def test_a_reserved_request_is_recognised_in_the_engine() -> None:
    """It counts once there, and with the length that was foretold for it, not with all that it might generate."""
    ask = Ask("mine", "demo", 32, LengthEstimate(8, 8, 8, "test"))

    async def scenario() -> None:
        async with MockEngine(CONFIG) as engine, aiohttp.ClientSession(engine.url) as client:
            assert engine.sidecar is not None
            async with client.post(engine.sidecar.url + "/reserve", data=encode_ask(ask, 0)) as answer:
                assert answer.status == 200
            body = {"model": "demo", "prompt": [1] * 32, "max_tokens": 300, "ignore_eos": True, "stream": True}
            async with client.post("/v1/completions", json=body, headers={"x-request-id": "mine"}) as stream:
                await stream.content.readline()
                foretold = await predict(engine.sidecar.url, 32, 30)
                assert foretold["in_flight"] == 1
                async with client.get(engine.sidecar.url + "/snapshot") as seen:
                    state = await seen.json()
                assert (state["reserved"], state["state"]["running"][0]["id"]) == (0, "mine")

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(scenario())
