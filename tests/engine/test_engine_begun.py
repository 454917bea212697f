"""A real vLLM server with CascadeScheduler and small steps: long prompts that are begun let a request with an earlier deadline
pass, without sidecars the gateway sends it there, and every text is the one that the engine gives it alone.

Who gets how many tokens of which step is tested exactly where the scheduler is stepped (begun_cases.py).
"""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.engine.conftest import running
from tests.engine.engine_http import SURELY_S, Json, Stream, ask, counter, wait_until
from tests.engine.engine_run import ROOT, Engines, Gateway, Server, start_all, stop_all

PATH = "/v1/completions"
# Steps of the instruct model take some ten ms each, so that its server finds time between them for who asks and is told: the
# small model's, two ms each, were seen to keep it from both until all prompts were done.
LONG, SHORT, CHUNK = 95, 8, 32  # numbers of some five tokens each; tokens
LONGS = 4
TRIES = 8
MODEL = "smollm2"


@pytest.fixture(scope="module")
def server(engines: Engines) -> Iterator[Server]:
    made = engines.server(
        "begun",
        MODEL,
        MODEL,
        (
            *("--scheduler-cls", "backends.vllm_cascade.CascadeScheduler"),
            *("--max-num-seqs", str(LONGS + 1), "--max-num-batched-tokens", str(CHUNK), "--no-enable-prefix-caching"),
        ),
        (("PYTHONPATH", str(ROOT)), ("LEEWAY_SNAPSHOT", str(engines.state_path("begun")))),
    )
    try:
        start_all(engines.portal, [made])
        yield made
    finally:
        stop_all(engines.portal, [made])


def prompt(seed: int, count: int) -> str:
    """Counting on, of which the model is sure: what is computed in other pieces, or beside others, tips no choice. One for each
    seed."""
    return ", ".join(str(100 * (1 + seed) + number) for number in range(count)) + ","


def body(seed: int, numbers: int, ttft_ms: int = 0) -> Json:
    made: Json = {
        "model": MODEL,
        "prompt": prompt(seed, numbers),
        "max_tokens": 8,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    return {**made, "vllm_xargs": {"leeway_v": 1, "leeway_ttft_ms": ttft_ms}} if ttft_ms else made


def text(server: Server, asked: Json) -> str:
    answer = ask(server.target, "POST", PATH, {**asked, "stream": False})
    assert answer.status == 200, answer.body
    return str(json.loads(answer.body)["choices"][0]["text"])


def streamed(stream: Stream) -> str:
    answer = stream.result()
    assert answer.status == 200, answer.body
    events = [json.loads(event.removeprefix(b"data: ")) for event in answer.events() if b"[DONE]" not in event]
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


def with_begun_prompts(server: Server, ask_later: Callable[[int], Stream], ask_sooner: Callable[[], Stream]) -> list[Stream]:
    """The short one and the long ones that it came to when one of them at least was begun: it did not wait for the others. In
    arrivals' order it would always be the last. A server that has no time for who asks until most prompts are done tells
    nothing, and is asked again."""
    came = []
    for _ in range(TRIES):
        wait_until(lambda: server.running_requests() == 0, SURELY_S, "the engine is idle")
        longs = [ask_later(seed) for seed in range(LONGS)]
        wait_until(partial(is_begun, server, longs), SURELY_S, "one is begun")
        sent_s = time.monotonic()
        short = ask_sooner()
        assert [stream.result().status for stream in (short, *longs)] == [200] * (1 + LONGS)
        # one may have had its first token when the short one was sent
        pending = sorted(stream.first_s for stream in longs if stream.first_s > sent_s)
        if len(pending) >= 2 and short.first_s < pending[1]:
            return [short, *longs]
        came.append((short.first_s - sent_s, [first_s - sent_s for first_s in pending]))
    raise AssertionError(f"it waited for what was begun, or came too late to be told: {came}")


def is_begun(server: Server, longs: list[Stream]) -> bool:
    """Whether one of them is, or was."""
    return counter(server.url, "vllm:num_requests_running") >= 1 or not all(stream.is_alive() for stream in longs)


def test_a_sooner_one_passes_prompts_that_are_begun_and_all_texts_stay(server: Server) -> None:
    alone = [text(server, body(LONGS, SHORT)), *(text(server, body(seed, LONG)) for seed in range(LONGS))]
    told = with_begun_prompts(
        server,
        lambda seed: Stream(server.target, PATH, body(seed, LONG, 600_000)),
        lambda: Stream(server.target, PATH, body(LONGS, SHORT, 30_000)),
    )
    assert [streamed(stream) for stream in told] == alone


def test_the_gateway_sends_it_there_though_prompts_are_pending(server: Server, folder: Path) -> None:
    rule = '[models."*"]\npolicy = "plan"\n'
    with running(Gateway(folder, "begun-gate", {"begun": server.url}, rule=rule, more='scheduling = "leeway"')) as gateway:
        with_begun_prompts(
            server,
            lambda seed: Stream(gateway.target, PATH, body(seed, LONG), {"x-slo-ttft-ms": "600000"}),
            lambda: Stream(gateway.target, PATH, body(LONGS, SHORT), {"x-slo-ttft-ms": "30000"}),
        )
