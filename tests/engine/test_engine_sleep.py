"""vLLM's real sleep and wake-up with requests kept inside, while another model visits the device.

The gateway runs in this process, so that the test can say when the one is paused for the other; bringing it back is the
planner's own decision. (On a CPU vLLM pauses and goes on as elsewhere, but has no memory to give back.)
"""

import json
import os
from collections.abc import Iterator

import pytest

from gateway.app import App
from gateway.config import Admin, BackendSpec, GatewayConfig, Health, Listen, ModelSpec, Tagger
from gateway.moving import Moved
from gateway.residency import NEVER, Step
from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps, SwapSpec
from tests.engine.engine_http import SURELY_S, Answer, Json, Stream, Target, ask, wait_until
from tests.engine.engine_run import PROBE_S, Engines, Servers

TOKENS = 300
DWELL_S = 5.0  # the visitor stays so long at least: all that is looked at meanwhile takes less
GENERATE, EMBED = "/v1/completions", "/v1/embeddings"
BODY: Json = {
    "model": "smollm2",
    "prompt": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",  # so sure of itself that computing the KV anew tips no choice
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def config(servers: Servers) -> GatewayConfig:
    """Both models on one device that holds one."""
    made = (("smollm2", servers.smol_a), ("tiny-embed", servers.embed))
    swap = SwapSpec("cpu", "sleep", keeps=True)
    return GatewayConfig(
        listen=Listen(data="127.0.0.1:0", control="127.0.0.1:0"),
        admin=Admin(key="admin-key-of-the-tests"),
        health=Health(timeout_s=PROBE_S),
        tagger=Tagger(mode="off"),
        models=tuple(ModelSpec(model, footprint=FootprintSpec(weight_gb=0.27, overhead_gb=0.3)) for model, _ in made),
        devices=(DeviceSpec("cpu", 0.8),),
        swaps=Swaps(plan_s=0.1, dwell_s=DWELL_S),
        backends=tuple(BackendSpec(model, server.url, "vllm", models=(model,), swap=swap) for model, server in made),
    )


class Inside:
    """A gateway in the tests' event loop."""

    def __init__(self, engines: Engines, config: GatewayConfig) -> None:
        self._portal = engines.portal
        self._config = config

    def start(self) -> None:
        """Start it and wait until it knows where everybody is."""
        self._portal.run(self._start())
        self.target = Target(f"http://127.0.0.1:{self._app.plane.port}")

    async def _start(self) -> None:
        self._app = App(self._config, log_fd=os.open(os.devnull, os.O_WRONLY))
        await self._app.start()

    def close(self) -> None:
        """End it."""
        self._portal.run(self._app.close())

    def preempt(self, model: str, leaves: str) -> None:
        """Pause one with its requests for the other, now."""
        step = Step("cpu", model, 1.0, (leaves,), "preempt", 0.0, 1.0, NEVER, 1.0, pause_s=0.0)
        self._portal.run(self._begin(step))

    async def _begin(self, step: Step) -> None:
        swapper = self._app.operations.swapper
        assert swapper is not None
        await swapper._looked.wait()
        swapper._carry_out(step, "asked for by the test", by_hand=True)

    @property
    def history(self) -> list[Moved]:
        """The steps so far."""
        swapper = self._app.operations.swapper
        assert swapper is not None
        return list(swapper.history)


@pytest.fixture(scope="module")
def inside(engines: Engines, servers: Servers) -> Iterator[Inside]:
    """Both engines are awake afterwards, for whoever comes next."""
    asleep = servers.embed
    made = Inside(engines, config(servers))
    try:
        assert ask(asleep.target, "POST", "/sleep?level=1").status == 200
        made.start()
        yield made
        made.close()
    finally:
        for server in (servers.smol_a, servers.embed):
            ask(server.target, "POST", "/wake_up")


def sleeps(target: Target) -> bool:
    return bool(ask(target, "GET", "/is_sleeping").json()["is_sleeping"])


def said(answer: Answer) -> str:
    *events, last = answer.events()
    assert (answer.status, answer.broken, last) == (200, False, b"data: [DONE]")
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert chunks[-1]["usage"]["completion_tokens"] == TOKENS
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])


def test_streams_are_kept_while_another_model_visits(inside: Inside, servers: Servers) -> None:
    undisturbed = said(Stream(inside.target, GENERATE, BODY).result())
    stream = Stream(inside.target, GENERATE, BODY)
    assert stream.first.wait(SURELY_S)
    inside.preempt("tiny-embed", "smollm2")  # before somebody waits, for then the planner may move by itself
    waits = Stream(inside.target, EMBED, {"model": "tiny-embed", "input": "a text"})
    wait_until(lambda: sleeps(servers.smol_a.target), SURELY_S, "the engine sleeps")
    assert servers.smol_a.running_requests() == 1, "it has kept its request"
    visit = waits.result()
    assert (visit.status, len(json.loads(visit.body)["data"][0]["embedding"])) == (200, 128)
    assert stream.is_alive()
    text = said(stream.result())
    assert text == undisturbed
    wait_until(lambda: len(inside.history) >= 2, SURELY_S, "both steps are over")
    steps = [(step.model, step.leaves, step.outcome) for step in inside.history]
    assert steps == [("tiny-embed", ("smollm2",), "done"), ("smollm2", ("tiny-embed",), "done")]
    assert sleeps(servers.embed.target)
    assert not sleeps(servers.smol_a.target)
