"""The simulated engine's prefix cache in virtual time: what a client measures is what an Instance does with the same
prompts, and the engine's own figures agree with both."""

import asyncio
import json
from dataclasses import dataclass, replace
from random import Random

import aiohttp
import pytest

from backends.mock import MockConfig, MockEngine
from backends.mock_text import block_hashes, lay_out
from predictor.instance import Instance
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Admitted, Event, Finished, FirstToken, LengthEstimate, Request
from predictor.sidecar import SidecarConfig
from predictor.wire import Ask, encode_ask
from tests.wire.virtual import TICK_S, in_virtual_time

PROFILE = StepProfile(base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0001)
LIMITS = EngineLimits(kv_blocks=160, block_size=8, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=1024)
CONFIG = MockConfig(profile=PROFILE, limits=LIMITS)
LABELS = '{engine="0",model_name="demo"}'
WORD = "four"  # bytes, which make one token


@dataclass(frozen=True, slots=True)
class Planned:
    """A request of the schedule: when, what, how long an answer."""

    at_s: float
    text: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Told:
    """When its first and last token came, on one clock for all, and what was saved."""

    first_s: float
    last_s: float
    cached_tokens: int


def schedule(seed: int, requests: int = 40) -> list[Planned]:
    """Conversations that grow, with gaps that let some wait and some find their blocks overwritten."""
    rng = Random(seed)
    talks = [f"{talk:04d}" * rng.randint(4, 40) for talk in range(6)]
    planned, at_s = [], 0.0
    for number in range(requests):
        at_s = round(at_s + rng.expovariate(4.0), 6)
        talk = rng.randrange(len(talks))
        talks[talk] += f"{number:04d}" * rng.randint(1, 30)
        planned.append(Planned(at_s, talks[talk][: 4 * 600], rng.randint(1, 12)))
    return planned


def expected(planned: list[Planned], caches: bool) -> tuple[list[Told], Instance]:
    """What an Instance does with the schedule."""
    instance, told = Instance(PROFILE, LIMITS), dict[str, tuple[list[float], list[int]]]()

    def note(events: tuple[Event, ...]) -> None:
        for event in events:
            match event:
                case Admitted():
                    told.setdefault(event.request_id, ([], []))[1].append(event.cached_tokens)
                case FirstToken() | Finished():
                    told[event.request_id][0].append(event.at_s)

    def run_until(end_s: float) -> None:
        while instance.step_ends_at_s is not None and instance.step_ends_at_s <= end_s:
            note(instance.finish_step(instance.step_ends_at_s))

    for number, one in enumerate(planned):
        run_until(one.at_s)
        prefix = block_hashes(lay_out([one.text]), LIMITS.block_size) if caches else ()
        instance.submit(Request(str(number), len(one.text) // 4, one.output_tokens, one.at_s, prefix), one.at_s)
    run_until(float("inf"))
    return [Told(times[0], times[-1], cached[0]) for times, cached in (told[str(i)] for i in range(len(planned)))], instance


async def reaches(at_s: float) -> None:
    """Let virtual time pass."""
    loop = asyncio.get_running_loop()
    reached = loop.create_future()
    loop.call_at(at_s, reached.set_result, None)
    await reached


async def ask(client: aiohttp.ClientSession, one: Planned, began_s: float) -> Told:
    """Send a request of the schedule at its time and note its tokens."""
    loop = asyncio.get_running_loop()
    await reaches(began_s + one.at_s)
    body = {"model": "demo", "prompt": one.text, "max_tokens": one.output_tokens, "ignore_eos": True, "stream": True}
    token_s, cached = [], -1
    async with client.post("/v1/completions", json={**body, "stream_options": {"include_usage": True}}) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event["choices"] and event["choices"][0]["text"]:
                    token_s.append(loop.time() - began_s)
                elif not event["choices"]:
                    cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert len(token_s) == one.output_tokens
    return Told(token_s[0], token_s[-1], cached)


async def metrics(client: aiohttp.ClientSession) -> dict[str, float]:
    async with client.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")}


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_clients_see_what_an_instance_does(seed: int, caches: bool) -> None:
    planned = schedule(seed)
    wanted, instance = expected(planned, caches)
    assert (sum(one.cached_tokens for one in wanted) > 0) == caches
    assert any(one.cached_tokens == 0 for one in wanted)

    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        await metrics(client)  # the connection is made
        began_s = round(asyncio.get_running_loop().time() + 1.0)
        seen = await asyncio.gather(*(ask(client, one, began_s) for one in planned))
        for one, other in zip(seen, wanted, strict=True):
            assert (one.first_s, one.last_s) == pytest.approx((other.first_s, other.last_s), abs=TICK_S)
            assert one.cached_tokens == other.cached_tokens
        figures = await metrics(client)
        assert figures[f"vllm:prefix_cache_hits_total{LABELS}"] == sum(one.cached_tokens for one in wanted)
        queries = sum(len(one.text) // 4 for one in planned) if caches else 0
        assert figures[f"vllm:prefix_cache_queries_total{LABELS}"] == queries
        assert engine.instance.preemptions == instance.preemptions
        assert engine.instance.kv_usage == 0.0

    in_virtual_time(use, replace(CONFIG, enable_prefix_caching=caches, enable_prompt_tokens_details=True))


def test_the_second_time_only_the_end_is_computed() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        again = Planned(0.0, WORD * 60, 1)
        for saved in (0, 56):  # seven full blocks
            told = await ask(client, again, asyncio.get_running_loop().time())
            assert told.cached_tokens == saved
            assert told.first_s == pytest.approx(PROFILE.step_s(60 - saved, 0, 0), abs=TICK_S)

    in_virtual_time(use, replace(CONFIG, enable_prompt_tokens_details=True))


def test_a_conversation_finds_its_turns_and_tools_come_first() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    first = [{"role": "user", "content": WORD * 40}]
    second = [*first, {"role": "assistant", "content": "yes."}, {"role": "user", "content": WORD * 10}]

    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        async def cached(**fields: object) -> int:
            async with client.post("/v1/chat/completions", json={"model": "demo", "max_tokens": 1, **fields}) as answer:
                return int((await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert await cached(messages=first) == 0
        assert await cached(messages=second) == 40
        assert await cached(messages=first, tools=tools) == 0
        assert await cached(messages=second, tools=tools) >= 40
        assert await cached(messages=[{"role": "user", "content": "x" + WORD * 40}]) == 0

    in_virtual_time(use, replace(CONFIG, enable_prompt_tokens_details=True))


def test_token_ids_are_found_by_their_text_and_usage_says_nothing_unless_told_to() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        async with client.post("/tokenize", json={"model": "demo", "prompt": WORD * 30}) as answer:
            ids = (await answer.json())["tokens"]
        for prompt in (WORD * 30, ids):
            async with client.post("/v1/completions", json={"model": "demo", "prompt": prompt, "max_tokens": 1}) as answer:
                assert (await answer.json())["usage"]["prompt_tokens_details"] is None
        assert (await metrics(client))[f"vllm:prefix_cache_hits_total{LABELS}"] == 24

    in_virtual_time(use, CONFIG)


def test_reset_empties_the_cache_but_not_while_blocks_are_held() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        async def reset() -> bool:
            async with client.post("/reset_prefix_cache") as answer:
                return bool((await answer.json())["success"])

        loop = asyncio.get_running_loop()
        one = Planned(0.0, WORD * 60, 3)
        running = asyncio.create_task(ask(client, one, loop.time()))
        await reaches(loop.time() + 0.03)
        assert engine.instance.running == 1
        assert not await reset()
        await running
        assert (await ask(client, one, loop.time())).cached_tokens == 56
        assert await reset()
        assert (await ask(client, one, loop.time())).cached_tokens == 0

    in_virtual_time(use, replace(CONFIG, enable_prompt_tokens_details=True))


async def predicted_ttft_s(client: aiohttp.ClientSession, engine: MockEngine, prefix: tuple[int, ...]) -> float:
    """What the sidecar says of a prompt after another one with the same prefix has been announced to it."""
    assert engine.sidecar is not None
    asks = [Ask(f"{name}{len(prefix)}", "demo", 30, LengthEstimate(2, 2, 2, "test"), prefix, 8) for name in "ab"]
    async with client.post(engine.sidecar.url + "/reserve", data=encode_ask(asks[0], 0)) as answer:
        assert answer.status == 200, await answer.text()
    async with client.post(engine.sidecar.url + "/predict", data=encode_ask(asks[1], 0)) as answer:
        assert answer.status == 200, await answer.text()
        ttft_s = float((await answer.json())["ttft_s"])
    await reaches(asyncio.get_running_loop().time() + 10)  # the announcement is forgotten
    return ttft_s


@pytest.mark.parametrize("caches", [True, False])
def test_what_the_engine_and_its_sidecar_say_of_it(caches: bool) -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        async with client.get("/server_info") as answer:
            cache = (await answer.json())["vllm_config"]["cache_config"]
        assert cache == {"block_size": 8, "num_gpu_blocks": 160, "enable_prefix_caching": caches}
        (info,) = (name for name in await metrics(client) if name.startswith("vllm:cache_config_info"))
        assert f'enable_prefix_caching="{caches}"' in info
        ttft_s = [await predicted_ttft_s(client, engine, prefix) for prefix in ((), (7, 8, 9))]
        assert (ttft_s[1] < ttft_s[0]) == caches

    in_virtual_time(use, replace(CONFIG, enable_prefix_caching=caches, sidecar=SidecarConfig(port=0)))
