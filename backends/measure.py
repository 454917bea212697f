"""Measures a live engine through its OpenAI face and /metrics, for a profile of it. Shell.

Prompts are random token ids, so that no cached prefix shortens them. The engine should be idle otherwise: whatever else
runs there is measured with it. Answers are bounded by what was asked for; every foreign error becomes MeasureError.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import aiohttp
import orjson

from backends.base import UNSAID, Sizes
from backends.sglang_sizes import server_sizes
from predictor.calibrate import Step
from predictor.measuring import (
    REPEATS,
    STREAM_TOKENS,
    PromptAsk,
    Prompted,
    Streamed,
    StreamsAsk,
    plan,
    reduce,
    stream_step,
    suspects,
)
from predictor.profile import EngineLimits, StepProfile

ASK_LIMIT_S = 120.0
SEQS, STEP_TOKENS = 256, 2048
ROUNDS_AGAIN = 3  # of asking what was disturbed
CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
RUNNING = re.compile(r"^(?:vllm|sglang):num_(?:requests_running|running_reqs)\{.*\} ([0-9.e+]+)", re.MULTILINE)
KV_TOKENS = re.compile(r"^sglang:max_total_num_tokens\{.*\} ([0-9.e+]+)", re.MULTILINE)
TOKEN_IDS = (10, 250)  # in every vocabulary


class MeasureError(Exception):
    """The engine cannot be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the engine does not tell. 0: as it tells (KV size by /metrics, SGLang all of it by /server_info), else SEQS
    sequences and STEP_TOKENS tokens in a step."""

    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    kv_blocks: int = 0
    block_size: int = 0
    budget_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it. `error` is the mean relative error of the fit."""

    model: str
    profile: StepProfile
    limits: EngineLimits
    error: float
    overhead_s: float
    steps: tuple[Step, ...]
    busy: bool


class Meter:
    """One engine under measurement, on an open session."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, seed: int = 0) -> None:
        self._session = session
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._rng = random.Random(seed)
        self._model = ""
        self._prompts: list[Prompted] = []
        self._steps: dict[StreamsAsk, Step] = {}
        self._tell: Callable[[str], None] = lambda line: None

    async def measure(self, wanted: Wanted, tell: Callable[[str], None]) -> Measured:
        """Everything, within about `budget_s`. `tell` gets a line now and then. Raises MeasureError."""
        self._model, max_model_len = await self._served()
        limits, busy = await self._limits(wanted, max_model_len)
        self._prompts, self._steps, self._tell = [], {}, tell
        await self._ask(PromptAsk(8))
        self._prompts.clear()  # what is made at the first request does not count
        await self._carry_out(plan(limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens), wanted.budget_s)
        for _ in range(ROUNDS_AGAIN):
            await self._carry_out(suspects(self._prompts, self._steps), wanted.budget_s / 4)
        try:
            profile, error, overhead_s, used = reduce(self._prompts, list(self._steps.values()))
        except ValueError as problem:
            raise MeasureError(str(problem)) from problem
        return Measured(self._model, profile, limits, error, overhead_s, used, busy)

    async def _carry_out(self, asks: Sequence[PromptAsk | StreamsAsk], budget_s: float) -> None:
        """One after the other, until the time is up and enough is known."""
        clock = asyncio.get_running_loop().time
        begin_s = last_s = clock()
        for ask in asks:
            now_s = clock()
            enough = len(self._prompts) >= 3 * REPEATS and len(self._steps) >= 3
            if enough and now_s - begin_s + 2 * (now_s - last_s) > budget_s:
                return
            last_s = now_s
            await self._ask(ask)

    async def _ask(self, ask: PromptAsk | StreamsAsk) -> None:
        if isinstance(ask, PromptAsk):
            seen = [await self._prompt(ask) for _ in range(REPEATS)]
            self._prompts += seen
            self._tell(f"prompt of {ask.prompt_tokens} tokens: {min(p.ttft_s for p in seen) * 1e3:.1f} ms")
            return
        step = stream_step(await asyncio.gather(*(self._stream(ask.prompt_tokens) for _ in range(ask.streams))))
        if step is not None:
            if ask not in self._steps or step.step_s < self._steps[ask].step_s:
                self._steps[ask] = step
            self._tell(f"{ask.streams} streams, {ask.prompt_tokens} tokens before each: {step.step_s * 1e3:.2f} ms a token")

    async def _served(self) -> tuple[str, int]:
        text = await self._get("/v1/models")
        try:
            first = orjson.loads(text)["data"][0]
            return str(first["id"]), int(first.get("max_model_len") or 4096)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise MeasureError("/v1/models lists no model") from error

    async def _limits(self, wanted: Wanted, max_model_len: int) -> tuple[EngineLimits, bool]:
        said = await self._said()
        text = (await self._get("/metrics", needed=not said.kv_blocks)).decode(errors="replace")
        running = RUNNING.search(text)
        blocks, block_size = (said.kv_blocks, said.block_size) if said.kv_blocks else cache_size(text)
        blocks, block_size = wanted.kv_blocks or blocks, wanted.block_size or block_size
        if not blocks or not block_size:
            raise MeasureError("the engine does not tell the KV cache's size: give --kv-blocks and --block-size")
        tokens = wanted.max_num_batched_tokens or said.max_num_batched_tokens or STEP_TOKENS
        seqs = min(wanted.max_num_seqs or said.max_num_seqs or SEQS, tokens)
        limits = EngineLimits(blocks, block_size, seqs, tokens, min(max_model_len, blocks * block_size))
        return limits, running is not None and float(running[1]) > 0

    async def _said(self) -> Sizes:
        """What an SGLang server says of itself; nothing of other servers, which have another page there, or none."""
        try:
            info = orjson.loads(await self._get("/server_info", needed=False) or b"{}")
        except orjson.JSONDecodeError:
            return UNSAID
        return server_sizes(info) if isinstance(info, dict) else UNSAID

    async def _prompt(self, ask: PromptAsk) -> Prompted:
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        async for _ in self._tokens(ask.prompt_tokens, 1):
            return Prompted(ask.prompt_tokens, clock() - begin_s)
        raise MeasureError("an answer had no token")

    async def _stream(self, prompt_tokens: int) -> Streamed:
        clock = asyncio.get_running_loop().time
        seen = [(clock(), count) async for count in self._tokens(prompt_tokens, STREAM_TOKENS)]
        if not seen:
            raise MeasureError("an answer had no token")
        return Streamed(prompt_tokens, tuple(seen))

    async def _tokens(self, prompt_tokens: int, max_tokens: int) -> AsyncIterator[int]:
        """How many tokens have come, each time that some came."""
        body = {
            "model": self._model,
            "prompt": [self._rng.randint(*TOKEN_IDS) for _ in range(prompt_tokens)],
            "max_tokens": max_tokens,
            "min_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        count = 0
        async for event in events(self._session, self._url + "/v1/completions", body, self._headers):
            if event.get("error"):
                raise MeasureError("the engine ended an answer with an error")
            if not event.get("choices"):
                continue
            usage = event.get("usage")
            told = usage.get("completion_tokens") if isinstance(usage, dict) else None
            count = told if isinstance(told, int) else count + 1
            yield count

    async def _get(self, path: str, needed: bool = True) -> bytes:
        """The body there; empty where there is none and it is not needed. Raises MeasureError."""
        timeout = aiohttp.ClientTimeout(total=20.0)
        try:
            async with self._session.get(self._url + path, headers=self._headers, timeout=timeout) as response:
                if response.status != 200 and not needed:
                    return b""
                if response.status != 200:
                    raise MeasureError(f"{path} answered {response.status}")
                return await response.content.read(4 * 1024 * 1024)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise MeasureError(f"{path}: {type(error).__name__}: {error}") from error


async def events(
    session: aiohttp.ClientSession, url: str, body: dict[str, object], headers: dict[str, str]
) -> AsyncIterator[dict[str, object]]:
    """The events of an answer that is streamed. Raises MeasureError."""
    timeout = aiohttp.ClientTimeout(total=ASK_LIMIT_S)
    try:
        async with session.post(url, json=body, headers=headers, timeout=timeout) as response:
            if response.status != 200:
                said = (await response.content.read(300)).decode(errors="replace")
                raise MeasureError(f"{url} answered {response.status}: {said}")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    event = orjson.loads(line[6:])
                    if isinstance(event, dict):
                        yield event
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
        raise MeasureError(f"{url}: {type(error).__name__}: {error}") from error


def cache_size(metrics: str) -> tuple[int, int]:
    """KV blocks and their size from the text of /metrics: vLLM's, or SGLang's, which counts in tokens; (0, 0) if neither."""
    config = CACHE_CONFIG.search(metrics)
    if config is not None:
        labels = dict(re.findall(r'(\w+)="([^"]*)"', config[1]))
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        return (int(blocks), int(size)) if blocks.isdecimal() and size.isdecimal() else (0, 0)
    tokens = KV_TOKENS.search(metrics)
    return (int(float(tokens[1])), 1) if tokens is not None else (0, 0)


async def measure(url: str, key: str, wanted: Wanted, tell: Callable[[str], None]) -> Measured:
    """Measure the engine at that URL. Raises MeasureError."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=False) as session:
        return await Meter(session, url, key).measure(wanted, tell)
