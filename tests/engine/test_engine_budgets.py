"""A real vLLM server with CascadeScheduler, a KV store on disk within budgets, and KV events: the small random model.

Order, share, victims and promotion are tested exactly where the scheduler is stepped (test_engine_cascade.py); here, that
all of it happens in a server that serves.
"""

import asyncio
import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from backends.kv_feed import KvFeed
from predictor.kvview import KvView
from predictor.prefix import PrefixIndex
from tests.engine.conftest import running
from tests.engine.engine_http import Json, Stream, ask, counter, half_done, wait_until
from tests.engine.engine_run import ROOT, Engines, Gateway, Server, free_port, start_all, stop_all

PATH = "/v1/completions"
SLOTS = 4
SLOW_TOKENS_PER_S = 100.0  # what the disk is said to give: 384 tokens take 3.8 s


class Tiered:
    """The server, and where it publishes its KV events."""

    def __init__(self, engines: Engines) -> None:
        events, replay = free_port(), free_port()
        self.events, self.replay = f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}"
        store = engines.folder / "kv-store"
        store.mkdir()
        transfer = (
            '{"kv_connector": "BudgetedExampleConnector", "kv_connector_module_path": "backends.vllm_kv", "kv_role": "kv_both",'
            f' "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {{"shared_storage_path": "{store}",'
            f' "leeway_tokens_per_s": {SLOW_TOKENS_PER_S}}}}}'
        )
        published = (
            f'{{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:{events}",'
            f' "replay_endpoint": "tcp://*:{replay}"}}'
        )
        self.server = engines.server(
            "tiered",
            "tiny",
            "tiny",
            (
                *("--scheduler-cls", "backends.vllm_cascade.CascadeScheduler"),
                *("--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", "2048"),
                *("--kv-transfer-config", transfer, "--kv-events-config", published),
            ),
            (
                ("PYTHONPATH", str(ROOT)),
                ("LEEWAY_SNAPSHOT", str(engines.state_path("tiered"))),
                ("VLLM_SERVER_DEV_MODE", "1"),
            ),
        )

    def log(self) -> str:
        return self.server.log_path.read_text(errors="replace")


@pytest.fixture(scope="module")
def tiered(engines: Engines) -> Iterator[Tiered]:
    made = Tiered(engines)
    try:
        start_all(engines.portal, [made.server])
        yield made
    finally:
        stop_all(engines.portal, [made.server])


def body(text: str, tokens: int, **promise: float | str) -> Json:
    hints = {"leeway_v": 1, **{f"leeway_{name}": value for name, value in promise.items()}} if promise else {}
    made: Json = {"model": "tiny", "prompt": text, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    return {**made, "vllm_xargs": hints} if hints else made


def occupied(server: Server, stack: ExitStack, tokens: int, **promise: float | str) -> list[http.client.HTTPConnection]:
    """All slots decode for `tokens`."""
    wait_until(lambda: server.running_requests() == 0, 30.0, "the engine is idle")
    held = [
        stack.enter_context(half_done(server.target, PATH, body(f"occupant {number} ", tokens, **promise)))
        for number in range(SLOTS)
    ]
    wait_until(lambda: counter(server.url, "vllm:num_requests_running") == SLOTS, 30.0, "all slots are taken")
    return held


def test_plain_requests_are_served_as_ever(tiered: Tiered) -> None:
    streams = [Stream(tiered.server.target, PATH, body(f"plain request {number} ", 40)) for number in range(12)]
    answers = [stream.result() for stream in streams]
    assert [answer.status for answer in answers] == [200] * 12
    assert all(answer.body.count(b"data: {") >= 1 and b"[DONE]" in answer.body for answer in answers)


def test_what_waits_begins_by_tier_and_deadline(tiered: Tiered) -> None:
    """All slots are held by requests that can't afford to give way, and go one by one."""
    server = tiered.server
    bodies = {
        "doomed": body("doomed " + "word " * 200, 2, ttft_ms=1),
        "patient": body("patient ", 1200, ttft_ms=600_000),
        "sooner": body("sooner ", 1200, ttft_ms=300_000),
    }
    with ExitStack() as stack:
        occupants = occupied(server, stack, 1900, ttft_ms=60_000, tpot_ms=0.001, out_tokens=1900)
        streams: dict[str, Stream] = {}
        for name, asked in bodies.items():
            streams[name] = Stream(server.target, PATH, asked)
            wait_until(lambda: counter(server.url, "vllm:num_requests_waiting") == len(streams), 20.0, f"{name} waits")
        for name in ("sooner", "patient", "doomed"):
            others = [other for other in bodies if other != name and not streams[other].first.is_set()]
            occupants.pop().close()
            assert streams[name].first.wait(30.0), name
            assert not any(streams[other].first.is_set() for other in others), (name, others)
    assert [stream.result().status for stream in streams.values()] == [200] * 3


def test_an_urgent_request_gets_the_slot_of_one_that_affords_it(tiered: Tiered) -> None:
    server = tiered.server
    before = counter(server.url, "vllm:num_preemptions_total")
    with ExitStack() as stack:
        occupied(server, stack, 1900, ttft_ms=60_000, tpot_ms=60_000, out_tokens=1900)
        answer = Stream(server.target, PATH, body("urgent ", 3, ttft_ms=1500)).result()
        assert answer.status == 200
        wait_until(lambda: counter(server.url, "vllm:num_requests_running") == SLOTS, 10.0, "who gave way is back")
        assert counter(server.url, "vllm:num_preemptions_total") == before + 1


def test_what_a_client_asks_the_gateway_for_orders_the_engine_s_queue(tiered: Tiered, folder: Path) -> None:
    server = tiered.server
    with running(Gateway(folder, "slo", {"tiered": server.url}, more='scheduling = "leeway"')) as gateway, ExitStack() as stack:
        occupants = occupied(server, stack, 1900, ttft_ms=60_000, tpot_ms=0.001, out_tokens=1900)
        streams: dict[str, Stream] = {}
        for name, ttft_ms in (("patient", 600_000), ("sooner", 300_000)):
            streams[name] = Stream(gateway.target, PATH, body(name, 1200), {"x-slo-ttft-ms": str(ttft_ms)})
            wait_until(lambda: counter(server.url, "vllm:num_requests_waiting") == len(streams), 20.0, f"{name} waits")
        occupants.pop().close()
        assert streams["sooner"].first.wait(30.0)
        assert not streams["patient"].first.is_set()
        stack.close()
        assert [stream.result().status for stream in streams.values()] == [200] * 2


def external_tokens(server: Server) -> float:
    page = ask(server.target, "GET", "/metrics").body.decode()
    found = re.findall(
        r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} (\S+)', page, re.MULTILINE
    )
    return sum(map(float, found))


def text_of(server: Server, asked: Json) -> str:
    answer = ask(server.target, "POST", PATH, {**asked, "stream": False})
    assert answer.status == 200, answer.body
    text = answer.json()["choices"][0]["text"]
    assert isinstance(text, str)
    return text


def forget_prefixes(server: Server) -> None:
    wait_until(lambda: server.running_requests() == 0, 30.0, "the engine is idle")
    assert ask(server.target, "POST", "/reset_prefix_cache").status == 200


def test_kv_is_loaded_or_computed_by_budget_with_the_same_text(tiered: Tiered) -> None:
    server = tiered.server
    prompt = "the licence of this program is " * 50
    first = text_of(server, body(prompt, 24))
    forget_prefixes(server)
    loaded = external_tokens(server)
    assert text_of(server, body(prompt, 24, ttft_ms=60_000)) == first
    assert external_tokens(server) - loaded >= 128, "there was time to load"
    forget_prefixes(server)
    loaded = external_tokens(server)
    assert text_of(server, body(prompt, 24, ttft_ms=1_000)) == first
    assert external_tokens(server) == loaded, "there was none: computed again"
    assert re.search(r"0 of \d+ tokens are loaded", tiered.log())
    forget_prefixes(server)
    assert text_of(server, body(prompt, 24)) == first
    assert external_tokens(server) - loaded >= 128, "without a budget it loads, as without us"


def test_its_events_tell_what_it_holds(tiered: Tiered, folder: Path) -> None:
    server, view = tiered.server, KvView(PrefixIndex(1000))
    feed = KvFeed(tiered.events, tiered.replay, view)
    rule = '[models."*"]\npolicy = "plan"\n'
    published = f'kv_events = "{tiered.events}"\nkv_replay = "{tiered.replay}"'
    with running(Gateway(folder, "events", {"tiered": server.url}, rule=rule, more=published)) as gateway, reading(feed):
        wait_until(lambda: feed.connected, 10.0, "the events are read")
        long = "a long beginning that several prompts have in common " * 60
        for ending in ("one", "two"):
            answer = Stream(gateway.target, PATH, body(long + ending, 200)).result()
            assert answer.status == 200, answer.body
        wait_until(lambda: counter_of(gateway, "leeway_backend_kv_joined_total") >= 2, 30.0, "prompts are joined with blocks")
        held = counter_of(gateway, "leeway_backend_kv_tokens")
        assert held >= 512
        wait_until(lambda: view.tokens == counter_of(gateway, "leeway_backend_kv_tokens"), 30.0, "both readers agree")
        assert (feed.ledger.gaps, feed.ledger.malformed) == (0, 0)
        forget_prefixes(server)
        text_of(server, body("something short", 2))  # events go out with a step
        wait_until(lambda: counter_of(gateway, "leeway_backend_kv_tokens") < 128, 30.0, "the gateway has forgotten them")
        wait_until(lambda: view.tokens < 128, 30.0, "and so has the other reader")


def counter_of(gateway: Gateway, name: str) -> float:
    page = ask(gateway.admin, "GET", "/metrics").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith((name + "{", name + " ")))


class reading:  # noqa: N801 - used as a statement
    """Runs a feed in a thread for the block."""

    def __init__(self, feed: KvFeed) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(feed.run())
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10.0)
        self._loop.close()


def test_tiers_are_cheap(tiered: Tiered) -> None:
    """By the engine's own account: thread CPU time a step."""
    Stream(tiered.server.target, PATH, body("on and on ", 400)).result()

    def costs() -> list[str]:
        return re.findall(r"tiers take ([\d.]+) us a step", tiered.log())

    wait_until(lambda: bool(costs()), 5.0, "the engine says what tiers cost")
    assert float(costs()[-1]) <= 50.0
