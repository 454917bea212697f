"""Measures what a model does with all of its layers on the device, with half and with none. Shell.

The mover puts them there; short and long prompts of random words (so that no cached prefix shortens them) are then asked
one after the other, each answer streamed: seconds to its first token, and from there to its last over the tokens between.
The engine should be idle otherwise. Every foreign error becomes MeasureError or MoveError.
"""

import asyncio
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from backends.measure import MeasureError, events
from backends.moves import Mover
from predictor.offload import MeasuredEnd, OffloadCurve, from_measured

FRACTIONS = (1.0, 0.5, 0.0)
FEW_TOKENS = 8  # an answer that ends before tells no rate
WORDS = (
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "haven",
    "inlet",
    "jetty",
    "knoll",
    "larch",
    "marsh",
    "north",
)


@dataclass(frozen=True, slots=True)
class OffloadAsk:
    """How to ask: words of the short and the long prompt (a word is a token or two), tokens of an answer, times each. All
    fractions are gone through `rounds` times: more where the machine is not quiet and a load is short."""

    short_words: int = 16
    long_words: int = 256
    answer_tokens: int = 32
    repeats: int = 3
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class OffloadMeasured:
    """Seconds at each fraction of the layers, the curve through both ends, and how far it missed the half: relative."""

    ends: tuple[tuple[float, MeasuredEnd], ...]
    curve: OffloadCurve
    half_error: float

    def rate_per_s(self, fraction: float) -> float:
        """Tokens per second as measured there, after the short prompt."""
        return 1 / dict(self.ends)[fraction].token_s[0][1]

    @property
    def prompts(self) -> tuple[int, ...]:
        """Tokens of the prompts."""
        return tuple(round(tokens) for tokens, _ in self.ends[0][1].ttft_s)


@dataclass(frozen=True, slots=True)
class _Seen:
    prompt_tokens: int
    tokens: int
    ttft_s: float
    token_s: float


class OffloadMeter:
    """Asks one model of an engine, by an open session."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str, model: str, seed: int = 0) -> None:
        self._session = session
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._model = model
        self._rng = random.Random(seed)

    async def measure(self, mover: Mover, how: OffloadAsk, tell: Callable[[str], None]) -> OffloadMeasured:
        """All of FRACTIONS, one after the other. Raises MeasureError, MoveError."""
        seen: dict[float, list[MeasuredEnd]] = {fraction: [] for fraction in FRACTIONS}
        for fraction in FRACTIONS * how.rounds:
            tell(f"{fraction:.0%} of the layers on the device ...")
            await mover.into(fraction)
            await self._ask(how.short_words, FEW_TOKENS)  # what is made at the first request does not count
            seen[fraction].append(await self._end(how))
            tell(f"... {1 / seen[fraction][-1].token_s[0][1]:.3g} tokens per second")
        ends = {fraction: _quickest(several) for fraction, several in seen.items()}
        curve = from_measured(ends[1.0], ends[0.0])
        misses = [curve.token_s(0.5, context) / token_s - 1 for context, token_s in ends[0.5].token_s]
        return OffloadMeasured(tuple(ends.items()), curve, max(misses, key=abs))

    async def _end(self, how: OffloadAsk) -> MeasuredEnd:
        token_s: list[tuple[float, float]] = []
        ttft_s: list[tuple[float, float]] = []
        for words in (how.short_words, how.long_words):
            seen = [await self._ask(words, how.answer_tokens) for _ in range(how.repeats)]
            prompt = statistics.mean(one.prompt_tokens for one in seen)
            context = prompt + statistics.mean(one.tokens for one in seen) / 2
            token_s.append((context, min(one.token_s for one in seen)))
            ttft_s.append((prompt, min(one.ttft_s for one in seen)))
        return MeasuredEnd(tuple(token_s), tuple(ttft_s))

    async def _ask(self, words: int, tokens: int) -> _Seen:
        clock = asyncio.get_running_loop().time
        begin_s, first_s, last_s, events_seen = clock(), 0.0, 0.0, 0
        prompt_tokens = answer_tokens = 0
        async for event in events(self._session, self._url, self._body(words, tokens), self._headers):
            if event.get("error"):
                raise MeasureError(f"the engine ended an answer with an error: {event['error']}")
            if event.get("choices"):
                last_s = clock()
                first_s, events_seen = first_s or last_s, events_seen + 1
            usage = event.get("usage")
            if isinstance(usage, dict):
                prompt_tokens = int(usage.get("prompt_tokens") or 0)
                answer_tokens = int(usage.get("completion_tokens") or 0)
        answer_tokens = answer_tokens or events_seen
        if answer_tokens < FEW_TOKENS or last_s <= first_s:
            raise MeasureError(f"an answer ended after {answer_tokens} tokens: too few to tell a rate")
        return _Seen(prompt_tokens or words, answer_tokens, first_s - begin_s, (last_s - first_s) / (answer_tokens - 1))

    def _body(self, words: int, tokens: int) -> dict[str, object]:
        return {
            "model": self._model,
            "prompt": " ".join(self._rng.choice(WORDS) for _ in range(words)),
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def _quickest(ends: list[MeasuredEnd]) -> MeasuredEnd:
    """Of several rounds: what else runs on the machine only adds."""
    tokens = tuple(min(points, key=lambda point: point[1]) for points in zip(*(end.token_s for end in ends), strict=True))
    firsts = tuple(min(points, key=lambda point: point[1]) for points in zip(*(end.ttft_s for end in ends), strict=True))
    return MeasuredEnd(tokens, firsts)


async def measure_offload(
    mover: Mover, url: str, key: str, model: str, how: OffloadAsk, tell: Callable[[str], None]
) -> OffloadMeasured:
    """Measure; then the model is where it was. Raises MeasureError, MoveError."""
    before = await mover.where()
    fresh = aiohttp.TCPConnector(force_close=True)  # llama.cpp's server ends connections that it said it would keep
    async with aiohttp.ClientSession(connector=fresh, trust_env=False) as session:
        try:
            return await OffloadMeter(session, url, key, model).measure(mover, how, tell)
        finally:
            await (mover.into(1.0) if before == "gpu" else mover.out(keep=False))
            await mover.close()
