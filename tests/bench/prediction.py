"""How well a live engine's next requests are foretold. `make bench-prediction`

One vLLM server on the CPU (SmolLM2) whose scheduler publishes its state, and an oracle as in the sidecar. Each request is
foretold at the instant at which it is sent; errors are |foretold - seen| / seen, seen by the client. Some traffic teaches
the step times (a profile is fitted to them), then:

states   the engine is brought into a state (idle to a full batch with a queue), one request is sent, nobody comes later:
         what the model is worth. Requests of one shape are compared pair by pair: which state is the better one?
open     an open loop up to what the engine can do, fixed lengths (`ignore_eos`) that everybody knows; nobody knows who
         will come later, but how much later arrivals cost is learnt (predictor.outcomes)
natural  the same with answers that end by themselves, foretold by running quantiles

The last line is JSON; figures without a suffix are those of `states`. Needs LEEWAY_ENGINE and LEEWAY_ENGINE_MODELS, as
`make test-engine` does.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median

import aiohttp

from backends.shared_source import SharedRecordSource
from backends.vllm_local import LocalVllm, VllmLaunch, find_engine
from predictor.calibrate import Step, StepCorrection, fit, mean_error
from predictor.lengths import RunningQuantiles
from predictor.oracle import Oracle
from predictor.profile import StepProfile
from predictor.request import LengthEstimate
from predictor.sighting import Sighting
from predictor.wire import Ask

ROOT = Path(__file__).parents[2]
RATES_PER_S = (0.7, 1.4, 2.1)
SHAPE = (120, 40)  # prompt and output tokens of every third request: these are ranked
STATES = 24
BUSY_MAX = 22  # requests at the engine in the busiest state: 16 run, the others wait
VOCABULARY = range(1000, 40_000)
APART = 1.2
QUESTIONS = (
    "Name three cities in Italy.",
    "What is the capital of France? Answer briefly.",
    "Write two sentences about the sea.",
    "Explain in one paragraph how a bicycle stays upright.",
    "List the planets.",
    "Tell me a short story about a lighthouse keeper and a storm.",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: foretold and seen seconds, and its shape."""

    shape: tuple[int, int]
    told_ttft_s: float
    told_e2e_s: float
    ttft_s: float
    e2e_s: float
    sent_s: float
    in_flight: int


async def pause(wait_s: float) -> None:
    """Let real time pass: this measures a clock that is not ours."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), wait_s)


class Watcher:
    """Reads every state that the engine publishes: for the oracle, and the steps for fitting."""

    def __init__(self, path: str) -> None:
        self._source = SharedRecordSource(path)
        self.oracle: Oracle | None = None
        self.pace: StepCorrection | None = None
        self.steps: list[Step] = []
        self.told_steps: list[tuple[float, float]] = []  # told and seen seconds
        self._last: Sighting | None = None

    def look(self) -> Sighting:
        """The newest state; a step that ended is taken down."""
        found = self._source.look(time.monotonic())
        if found is not self._last:
            self._last = found
            past = found.past
            if found.past_s and past.prefill_tokens + past.decode_seqs:
                if self.pace is not None:
                    told_s = self.pace.profile.step_s(past.prefill_tokens, past.decode_seqs, past.kv_tokens, past.pairs)
                    self.told_steps.append((told_s, found.past_s))
                self.steps.append(Step(past.prefill_tokens, past.decode_seqs, past.kv_tokens, past.pairs, found.past_s))
            if self.oracle is not None:
                self.oracle.saw(found)
        return found

    async def run(self) -> None:
        """Look often enough to miss no step."""
        while True:
            self.look()
            await pause(0.003)

    def learn(self) -> tuple[StepProfile, float]:
        """Fit a profile to the steps seen so far, and foretell with it from now on."""
        profile, error = fit(typical(self.steps), "h")
        self.pace = StepCorrection(profile)
        self.oracle = Oracle(self.pace)
        assert self._last is not None
        self.oracle.saw(self._last)
        return profile, error


def typical(steps: Sequence[Step]) -> list[Step]:
    """Steps without those that another program held up: of each shape, those up to the median and a half."""
    shapes: dict[tuple[int, int], list[Step]] = {}
    for step in steps:
        shapes.setdefault((step.prefill_tokens // 64, step.decode_seqs), []).append(step)
    kept = []
    for alike in shapes.values():
        middle_s = median(step.step_s for step in alike)
        kept += [step for step in alike if step.step_s < 1.5 * middle_s]
    return kept


class Driver:
    """Sends requests and takes down what became of them."""

    def __init__(self, url: str, watcher: Watcher, seed: int) -> None:
        self._url = url
        self._watcher = watcher
        self._rng = Random(seed)
        # a kept connection may be one that the server closes just now
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self._client = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300))
        self._serial = 0
        self.outcomes: list[Outcome] = []
        self.lengths = RunningQuantiles()
        self.arrivals_go_on = False

    async def close(self) -> None:
        await self._client.close()

    async def open_loop(self, rate_per_s: float, seconds: float, send: Callable[[int], Awaitable[None]]) -> None:
        """Poisson arrivals, then wait until all have ended."""
        loop = asyncio.get_running_loop()
        tasks, at_s, number = [], loop.time(), 0
        end_s = at_s + seconds
        while at_s < end_s:
            at_s += self._rng.expovariate(rate_per_s)
            await pause(max(0.0, at_s - loop.time()))
            tasks.append(asyncio.ensure_future(send(number)))
            number += 1
        await asyncio.gather(*tasks)

    async def state(self, number: int) -> None:
        """Bring the engine into a state, and see what becomes of one more request there."""
        rng = self._rng
        before = len(self.outcomes)
        busy = round(BUSY_MAX * number / (STATES - 1))
        others = [asyncio.create_task(self.fixed(1)) for _ in range(busy)]
        await pause(rng.uniform(0.3, 0.5 + 0.15 * busy))
        await self.fixed(0)
        target = self.outcomes[-1]
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        del self.outcomes[before:]
        self.outcomes.append(target)
        while self._watcher.look().busy:
            await pause(0.02)

    async def fixed(self, number: int) -> None:
        """A prompt that nothing shares, and a length that everybody knows."""
        rng = self._rng
        prompt, tokens = SHAPE
        if number % 3:
            prompt = min(900, max(8, round(rng.lognormvariate(math.log(100), 0.9))))
            tokens = min(150, max(4, round(rng.lognormvariate(math.log(40), 0.6))))
        body = {"prompt": [rng.choice(VOCABULARY) for _ in range(prompt)], "max_tokens": tokens, "ignore_eos": True}
        await self._send("/v1/completions", body, prompt, LengthEstimate(tokens, tokens, tokens, "known"), (prompt, tokens))

    async def natural(self, number: int) -> None:
        """A question that is answered until the model stops; the length is foretold by those before."""
        question = f"({self._rng.randrange(10**6)}) " + QUESTIONS[number % len(QUESTIONS)]
        estimate = self.lengths.estimate("smollm2", question[-12:])
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 120}
        body["temperature"] = 0.7
        shape = (number % len(QUESTIONS), 0)
        tokens, finish = await self._send("/v1/chat/completions", body, 45 + len(question) // 5, estimate, shape)
        self.lengths.saw("smollm2", question[-12:], tokens, truncated=finish == "length")

    async def _send(
        self, path: str, body: dict[str, object], prompt: int, lengths: LengthEstimate, shape: tuple[int, int]
    ) -> tuple[int, str]:
        self._serial += 1
        name = f"bench-{self._serial}"
        hints = {"leeway_v": 1, "leeway_out_tokens": lengths.q50}
        body = {"model": "smollm2", "stream": True, **body, "vllm_xargs": hints}
        ask = Ask(name, "smollm2", prompt, lengths)
        self._watcher.look()
        oracle = self._watcher.oracle
        reply = None if oracle is None else oracle.reply(ask, time.monotonic())
        if oracle is not None and self.arrivals_go_on:
            oracle.reserve(ask, time.monotonic())
        elif oracle is not None:
            oracle.reservations.make(ask, time.monotonic())  # nothing is to be learnt of what later arrivals cost
        began_s, first_s, last_s, pieces, finish = time.monotonic(), 0.0, 0.0, 0, ""
        async with self._client.post(self._url + path, json=body, headers={"X-Request-Id": name}) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                choice = json.loads(line[6:])["choices"][0]
                finish = choice["finish_reason"] or finish
                if choice.get("text") or choice.get("delta", {}).get("content") or choice["finish_reason"]:
                    last_s = time.monotonic()
                    first_s = first_s or last_s
                    pieces += 1
        if reply is not None:
            told, there = reply.estimate, reply.running + reply.waiting
            seen_s = (first_s - began_s, last_s - began_s)
            self.outcomes.append(Outcome(shape, told.ttft_s, told.e2e_s, *seen_s, began_s, there))
        return pieces, finish


def figures(outcomes: Sequence[Outcome], suffix: str = "") -> dict[str, float]:
    """Median errors, and how often the better of two states was named."""
    assert all(math.isfinite(one.told_e2e_s) for one in outcomes), "something could not be foretold"
    right = pairs = 0
    for one, two in itertools.combinations(outcomes, 2):
        if one.shape == two.shape and max(one.e2e_s, two.e2e_s) > APART * min(one.e2e_s, two.e2e_s):
            pairs += 1
            right += (one.told_e2e_s < two.told_e2e_s) == (one.e2e_s < two.e2e_s)
    return {
        f"ttft_err_median{suffix}": median(abs(one.told_ttft_s / one.ttft_s - 1.0) for one in outcomes),
        f"e2e_err_median{suffix}": median(abs(one.told_e2e_s / one.e2e_s - 1.0) for one in outcomes),
        f"ttft_bias_median{suffix}": median(one.told_ttft_s / one.ttft_s - 1.0 for one in outcomes),
        f"e2e_bias_median{suffix}": median(one.told_e2e_s / one.e2e_s - 1.0 for one in outcomes),
        f"rank_right{suffix}": right / max(1, pairs),
        f"pairs{suffix}": pairs,
        f"requests{suffix}": len(outcomes),
    }


def noise(steps: Sequence[Step]) -> float:
    """Median relative distance of a decode step from the median one of its batch size: what no model can foretell."""
    sizes: dict[int, list[float]] = {}
    for step in steps:
        if not step.prefill_tokens:
            sizes.setdefault(step.decode_seqs, []).append(step.step_s)
    away = [abs(step_s / median(alike) - 1.0) for alike in sizes.values() if len(alike) > 4 for step_s in alike]
    return median(away) if away else math.nan


async def measure(url: str, state: str, seconds: float, seed: int, dump: str) -> dict[str, float]:
    watcher = Watcher(state)
    driver = Driver(url, watcher, seed)
    watching = asyncio.create_task(watcher.run())
    try:
        return await drive(watcher, driver, seconds, dump)
    finally:
        watching.cancel()
        await driver.close()


async def drive(watcher: Watcher, driver: Driver, seconds: float, dump: str) -> dict[str, float]:
    out: dict[str, float] = {}
    for rate in (0.7, 1.8):
        await driver.open_loop(rate, seconds * 0.7, driver.fixed)
    profile, out["fit_error"] = watcher.learn()
    print(f"{profile}\nfit error {out['fit_error']:.1%} over {len(watcher.steps)} steps", file=sys.stderr)
    learnt = len(watcher.steps)
    numbers = list(range(STATES))
    Random(0).shuffle(numbers)
    for number in numbers:
        await driver.state(number)
    out |= figures(driver.outcomes)
    print(json.dumps(rounded(out)), file=sys.stderr)
    states = list(driver.outcomes)
    driver.outcomes.clear()
    driver.arrivals_go_on = True
    for rate in RATES_PER_S:
        before = len(driver.outcomes)
        await driver.open_loop(rate, seconds, driver.fixed)
        print(f"{rate:4.1f}/s {json.dumps(rounded(figures(driver.outcomes[before:])))} {watcher.oracle!r}", file=sys.stderr)
    out |= figures(driver.outcomes, "_open")
    out["step_err_median"] = median(abs(told_s / seen_s - 1.0) for told_s, seen_s in watcher.told_steps)
    out["step_bias"] = sum(told_s for told_s, _ in watcher.told_steps) / sum(seen_s for _, seen_s in watcher.told_steps) - 1.0
    out["step_noise_median"] = noise(watcher.steps[learnt:])
    out["profile_error_after"] = mean_error(profile, typical(watcher.steps[learnt:]))
    if dump:
        everything = {
            "states": [asdict(one) for one in states],
            "open": [asdict(one) for one in driver.outcomes],
            "steps": watcher.told_steps,
        }
        Path(dump).write_text(json.dumps(everything))
    await driver.open_loop(RATES_PER_S[0], seconds, driver.natural)  # lengths are known by then
    driver.outcomes.clear()
    for rate in RATES_PER_S[:2]:
        await driver.open_loop(rate, seconds, driver.natural)
    out |= figures(driver.outcomes, "_natural")
    return out


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


async def run(seconds: float, seed: int, dump: str) -> dict[str, float]:
    engine, models = (Path(os.environ.get(name, ROOT / default)) for name, default in (
        ("LEEWAY_ENGINE", ".engine"), ("LEEWAY_ENGINE_MODELS", ".models")))  # fmt: skip
    python, checkpoint = find_engine(engine, models)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        state = f"{folder}/state"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        launch = VllmLaunch(
            python, checkpoint, "smollm2", port,
            ("--scheduler-cls", "backends.vllm_scheduler.SnapshotScheduler"),
            (("PYTHONPATH", str(ROOT)), ("LEEWAY_SNAPSHOT", state)),
        )  # fmt: skip
        vllm = LocalVllm(launch, Path(folder) / "vllm.log", os.environ)
        await vllm.start()
        try:
            await vllm.wait_ready()
            return await measure(launch.url, state, seconds, seed, dump)
        finally:
            await vllm.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=25.0, help="of traffic at each rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dump", default="", help="file for every request of the fixed lengths")
    arguments = parser.parse_args()
    print(json.dumps(rounded(asyncio.run(run(arguments.seconds, arguments.seed, arguments.dump)))))


if __name__ == "__main__":
    main()
