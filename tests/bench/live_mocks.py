"""The replicas of the live bench: eight simulated vLLM servers in one process, in real time.

    python -m tests.bench.live_mocks FIRST_PORT

Prints "ready" once all listen. SIGTERM ends it, and then it prints one JSON line: steps, hits and queries of the prefix
caches, preemptions, and how late the process ran (a step booked late would be a slower engine than the model says).
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Callable

import uvloop

from backends.mock import MockConfig, MockEngine
from predictor.profile import EngineLimits, StepProfile
from tests.bench.live_trace import answer_tokens
from tests.bench.process import first_in_line

REPLICAS = 8
MODEL = "m"
# Llama-3.1-70B on four H100 (profile llama-3.1-70b/tp4/h100), with an eighth of its KV, as prompts have an eighth of their
# tokens, and vLLM's own step budget.
PROFILE = StepProfile(
    base_s=0.016197, prefill_token_s=5.7751e-5, decode_seq_s=8.5373e-6, kv_token_s=2.6201e-8, pair_s=1.4371e-9,
    knee_tokens=128, form="h",
)  # fmt: skip
LIMITS = EngineLimits(kv_blocks=3136, block_size=16, max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=32768)
SAMPLE_S = 0.02


class Lateness:
    """How late timers fire, sampled all the time."""

    def __init__(self) -> None:
        self.seen_s: list[float] = []
        self._due_s = 0.0

    def start(self) -> None:
        self._next(asyncio.get_running_loop().time())

    def _next(self, now_s: float) -> None:
        self._due_s = now_s + SAMPLE_S
        asyncio.get_running_loop().call_at(self._due_s, self._fired)

    def _fired(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self.seen_s.append(now_s - self._due_s)
        self._next(now_s)

    def quantile_s(self, share: float) -> float:
        ordered = sorted(self.seen_s) or [0.0]
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def replica(port: int, output_tokens: Callable[[str], int]) -> MockEngine:
    """One of the eight."""
    name = f"mock{port}"
    return MockEngine(
        MockConfig(name, (MODEL,), port=port, profile=PROFILE, limits=LIMITS, output_tokens=output_tokens, dev_mode=False)
    )


async def serve(first_port: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    engines = [replica(first_port + number, answer_tokens) for number in range(REPLICAS)]
    for engine in engines:
        await engine.start()
    gc.collect()
    gc.freeze()
    lateness = Lateness()
    lateness.start()
    print("ready", flush=True)
    await ended.wait()
    print(json.dumps(report(engines, lateness)), flush=True)
    for engine in engines:
        await engine.close()


def report(engines: list[MockEngine], lateness: Lateness) -> dict[str, object]:
    """What the bench wants to know of a run."""
    return {
        "late_p99_ms": round(lateness.quantile_s(0.99) * 1e3, 2),
        "late_max_ms": round(lateness.quantile_s(1.0) * 1e3, 2),
        "preemptions": sum(engine.instance.preemptions for engine in engines),
        "requests": [engine.requests_seen for engine in engines],
        "finished": sum(engine.finished for engine in engines),
        "cached_tokens": sum(engine.serving.cached_tokens for engine in engines),
        "prompt_tokens": sum(engine.serving.prompt_tokens for engine in engines),
    }


if __name__ == "__main__":
    first_in_line()
    uvloop.run(serve(int(sys.argv[1])))
