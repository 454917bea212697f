"""The simulated engine in virtual time: what a client measures is what the model of the engine says."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import aiohttp
import pytest

from backends.mock import MockConfig, MockEngine
from predictor.profile import EngineLimits, StepProfile
from tests.wire.virtual import TICK_S, in_virtual_time

PROFILE = StepProfile(base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0001)
LIMITS = EngineLimits(kv_blocks=64, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=1024)
CONFIG = MockConfig(profile=PROFILE, limits=LIMITS, enable_prefix_caching=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """One streamed answer: when its tokens came, counted from sending, and how it ended."""

    token_s: tuple[float, ...]
    finish_reason: str | None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in zip(self.token_s, self.token_s[1:], strict=False))


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop work until the condition holds; fails after a minute of real time."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0)


@contextmanager
def within(low_s: float, high_s: float) -> Iterator[None]:
    """The block must take so much virtual time."""
    started_s = asyncio.get_running_loop().time()
    yield
    assert low_s - TICK_S <= asyncio.get_running_loop().time() - started_s <= high_s + TICK_S


def completion(prompt_tokens: int, output_tokens: int, **fields: object) -> dict[str, object]:
    """A body with exact token counts."""
    exact = {"prompt": [1] * prompt_tokens, "max_tokens": output_tokens, "ignore_eos": True}
    return {"model": "demo", **exact, **fields}


async def stream(
    client: aiohttp.ClientSession, prompt_tokens: int, output_tokens: int, begun: asyncio.Event | None = None
) -> Seen:
    """Stream one completion and note the instant of each token; `begun` is set at the first."""
    loop = asyncio.get_running_loop()
    started_s, token_s, reason = loop.time(), [], None
    body = completion(prompt_tokens, output_tokens, stream=True)
    async with client.post("/v1/completions", json=body) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                reason = choice["finish_reason"]
                if begun is not None:
                    begun.set()
                if choice["text"]:
                    token_s.append(loop.time() - started_s)
    return Seen(tuple(token_s), reason)


async def plain(client: aiohttp.ClientSession, prompt_tokens: int, output_tokens: int) -> Seen:
    """One completion in one piece."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    async with client.post("/v1/completions", json=completion(prompt_tokens, output_tokens)) as response:
        (choice,) = (await response.json())["choices"]
        return Seen((loop.time() - started_s,), choice["finish_reason"])


def test_ttft_and_gaps_are_the_formula() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        seen = await stream(client, 50, 4)
        assert seen.token_s[0] == pytest.approx(PROFILE.step_s(50, 0, 0), abs=TICK_S)
        assert seen.gaps_s == pytest.approx([PROFILE.step_s(0, 1, 50 + done) for done in range(3)], abs=TICK_S)
        assert seen.finish_reason == "length"

    in_virtual_time(use, CONFIG)


def test_a_long_prompt_takes_its_chunks() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        seen = await stream(client, 150, 1)
        expected_s = 2 * PROFILE.step_s(64, 0, 0) + PROFILE.step_s(22, 0, 0)
        assert seen.token_s == pytest.approx([expected_s], abs=TICK_S)

    in_virtual_time(use, CONFIG)


def test_a_newcomer_waits_for_the_step_in_progress_and_shares_the_next() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        first = asyncio.create_task(stream(client, 40, 3))
        await until(lambda: engine.instance.running == 1)
        second = asyncio.create_task(stream(client, 20, 1))
        await until(lambda: engine.instance.waiting == 1)
        shared_s = PROFILE.step_s(40, 0, 0) + PROFILE.step_s(20, 1, 40)
        assert (await second).token_s == pytest.approx([shared_s], abs=TICK_S)
        assert (await first).token_s[1] == pytest.approx(shared_s, abs=TICK_S)

    in_virtual_time(use, CONFIG)


def test_crowding_shows_in_the_metrics() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        tasks = [asyncio.create_task(stream(client, 300, 200)) for _ in range(3)]
        await until(lambda: engine.in_flight == 3)
        assert all(len(seen.token_s) == 200 for seen in await asyncio.gather(*tasks))
        assert engine.instance.preemptions > 0
        async with client.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        figures = dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        labels = '{engine="0",model_name="demo"}'
        assert float(figures[f"vllm:num_preemptions_total{labels}"]) == engine.instance.preemptions
        assert float(figures[f"vllm:generation_tokens_total{labels}"]) == 600
        assert float(figures[f"vllm:inter_token_latency_seconds_count{labels}"]) == 597
        assert float(figures[f"vllm:e2e_request_latency_seconds_count{labels}"]) == 3

    in_virtual_time(use, CONFIG)


def test_a_client_that_leaves_frees_the_engine_at_once() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        async with client.post("/v1/completions", json=completion(50, 500, stream=True)) as response:
            await response.content.readline()
            assert engine.instance.running == 1
            response.close()
        with within(0.0, 0.0):
            await until(lambda: engine.aborted == 1)
        assert (engine.instance.running, engine.instance.kv_usage, engine.in_flight) == (0, 0.0, 0)
        assert engine.finished == 0

    in_virtual_time(use, CONFIG)


def test_a_client_that_leaves_before_anything_came_is_noticed_too() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        tasks = [asyncio.create_task(plain(client, 60, 500)) for _ in range(2)]
        tasks.append(asyncio.create_task(stream(client, 900, 5)))
        await until(lambda: engine.in_flight == 3)
        assert engine.instance.waiting > 0
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        with within(0.0, 0.0):
            await until(lambda: engine.in_flight == 0)
        assert (engine.aborted, engine.instance.running, engine.instance.waiting) == (3, 0, 0)

    in_virtual_time(use, CONFIG)


def test_asleep_it_holds_requests_until_woken() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        async with client.post("/sleep?level=1") as response:
            assert response.status == 200
        async with client.get("/is_sleeping") as response:
            assert await response.json() == {"is_sleeping": True}
        held = asyncio.create_task(stream(client, 10, 2))
        await until(lambda: engine.in_flight == 1)
        assert engine.instance.step_ends_at_s is None
        await client.post("/wake_up?tags=weights")
        assert engine.instance.step_ends_at_s is None, "the KV cache is still away"
        await client.post("/wake_up?tags=kv_cache")
        assert len((await held).token_s) == 2
        async with client.get("/is_sleeping") as response:
            assert await response.json() == {"is_sleeping": False}

    in_virtual_time(use, CONFIG)


@pytest.mark.parametrize(("mode", "tokens"), [("abort", 1), ("wait", 5), ("keep", 5)])
def test_pause_modes(mode: str, tokens: int) -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        begun = asyncio.Event()
        running = asyncio.create_task(stream(client, 10, 5, begun))
        await begun.wait()
        remaining_s = sum(PROFILE.step_s(0, 1, 10 + done) for done in range(4))
        with within(remaining_s if mode == "wait" else 0.0, remaining_s if mode == "wait" else 0.0):
            await client.post(f"/pause?mode={mode}")
        async with client.get("/is_paused") as response:
            assert await response.json() == {"is_paused": True}
        assert running.done() == (mode != "keep")
        await client.post("/resume")
        seen = await running
        assert len(seen.token_s) == tokens
        assert seen.finish_reason == ("abort" if mode == "abort" else "length")

    in_virtual_time(use, CONFIG)


def test_a_queue_cap_refuses_with_a_hint() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        tasks = [asyncio.create_task(stream(client, 64, 20)) for _ in range(2)]
        await until(lambda: engine.instance.waiting == 1)
        async with client.post("/v1/completions", json=completion(10, 5)) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "1"
            assert (await response.json())["error"]["code"] == 503
        assert engine.refused == 1
        assert engine.requests_seen == 3
        await asyncio.gather(*tasks)

    in_virtual_time(use, replace(CONFIG, max_queued=1))


def test_closing_the_engine_breaks_answers_off() -> None:
    async def use(client: aiohttp.ClientSession, engine: MockEngine) -> None:
        begun = asyncio.Event()
        streaming = asyncio.create_task(stream(client, 10, 500, begun))
        whole = asyncio.create_task(plain(client, 10, 500))
        await begun.wait()
        with within(0.0, 0.01):
            await engine.close()
        with pytest.raises(aiohttp.ClientPayloadError):
            await streaming
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await whole
        assert engine.aborted == 2
        assert engine.in_flight == 0

    in_virtual_time(use, CONFIG)
