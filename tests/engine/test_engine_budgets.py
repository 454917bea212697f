"""A real vLLM server with CascadeScheduler, a KV store on disk within budgets, and KV events: the small random model.

Order, share, victims and promotion are tested exactly where the scheduler is stepped (test_engine_cascade.py); here, that
all of it happens in a server that serves.
"""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from backends.kv_feed import KvFeed
from predictor.kvview import KvView
from predictor.prefix import PrefixIndex
from tests.engine.conftest import running
from tests.engine.engine_http import SURELY_S, Json, Stream, ask, counter, half_done, wait_until
from tests.engine.engine_pace import times_slower
from tests.engine.engine_run import ROOT, Engines, Gateway, Server, free_port, start_all, stop_all

T = TypeVar("T")
PATH = "/v1/completions"
SLOTS = 4
TRIES = 12
RHO, SERVED, PROMPT = 0.2, 120, 800
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
                ("LEEWAY_RHO", str(RHO)),
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


def body(text: str | list[list[int]], tokens: int, **promise: float | str) -> Json:
    """`text`, or tokens of several prompts."""
    hints = {"leeway_v": 1, **{f"leeway_{name}": value for name, value in promise.items()}} if promise else {}
    made: Json = {"model": "tiny", "prompt": text, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    return {**made, "vllm_xargs": hints} if hints else made


class SpoiltError(Exception):
    """One of those that held the slots came to its end before the test had looked."""


class Holders:
    """Requests that hold all slots until they are left, if they do not end before: a step takes some two milliseconds, and they
    may have no more than 2048 tokens. They are not streamed, since that takes the server's time."""

    def __init__(self, server: Server, stack: ExitStack, **promise: float | str) -> None:
        self._server = server
        self._ended = self._count()
        self.held = [
            stack.enter_context(half_done(server.target, PATH, {**body(f"holder {at} ", 1900, **promise), "stream": False}))
            for at in range(SLOTS)
        ]
        self.wait(lambda: counter(server.url, "vllm:num_requests_running") == SLOTS, "all slots are taken")

    def _count(self) -> float:
        return counter(self._server.url, "vllm:request_success_total")

    def others(self, ended: int) -> None:
        """So many others have come to their ends, or will."""
        self._ended += ended

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Until it holds. Raises SpoiltError."""
        wait_until(lambda: condition() or self._count() > self._ended, SURELY_S, what)
        self.check(condition(), what)

    def check(self, holds: bool, what: object) -> None:
        """It holds. Raises SpoiltError if not, and that may be why."""
        if not holds and self._count() > self._ended:
            raise SpoiltError
        assert holds, what


def with_all_slots_taken(server: Server, case: Callable[[Holders], T], **promise: float | str) -> T:
    """What the case gives, of whom the slots are held with that promise. One that was spoilt is begun anew."""
    for _ in range(TRIES):
        wait_until(lambda: server.running_requests() == 0, SURELY_S, "the engine is idle")
        with suppress(SpoiltError), ExitStack() as stack:
            return case(Holders(server, stack, **promise))
    raise AssertionError("no case was over before the slots were free again")


def waiting(server: Server) -> float:
    return counter(server.url, "vllm:num_requests_waiting")


def test_plain_requests_are_served_as_ever(tiered: Tiered) -> None:
    streams = [Stream(tiered.server.target, PATH, body(f"plain request {number} ", 40)) for number in range(12)]
    answers = [stream.result() for stream in streams]
    assert [answer.status for answer in answers] == [200] * 12
    assert all(answer.body.count(b"data: {") >= 1 and b"[DONE]" in answer.body for answer in answers)


def each_in_its_turn(holders: Holders, streams: dict[str, Stream], order: tuple[str, ...]) -> None:
    """Who waits begins when a slot becomes free, in that order; each goes on for longer than that takes."""
    for at, name in enumerate(order):
        holders.held.pop().close()
        holders.wait(streams[name].first.is_set, f"{name} begins")
        early = [other for other in order[at + 1 :] if streams[other].first.is_set()]
        holders.check(not early, (name, early))


def test_what_waits_begins_by_tier_and_deadline(tiered: Tiered) -> None:
    """All slots are held by requests that can't afford to give way, and go one by one."""
    server = tiered.server
    bodies = {
        "doomed": body("doomed " + "word " * 200, 2, ttft_ms=1),
        "patient": body("patient ", 1200, ttft_ms=600_000),
        "sooner": body("sooner ", 1200, ttft_ms=300_000),
    }

    def case(holders: Holders) -> list[Stream]:
        streams: dict[str, Stream] = {}
        for name, asked in bodies.items():
            streams[name] = Stream(server.target, PATH, asked)
            holders.wait(lambda: waiting(server) == len(streams), f"{name} waits")
        each_in_its_turn(holders, streams, ("sooner", "patient", "doomed"))
        return [*streams.values()]

    streams = with_all_slots_taken(server, case, ttft_ms=60_000, tpot_ms=0.001, out_tokens=1900)
    assert [stream.result().status for stream in streams] == [200] * 3


def test_an_urgent_request_gets_the_slot_of_one_that_affords_it(tiered: Tiered) -> None:
    server = tiered.server

    def case(holders: Holders) -> None:
        before = counter(server.url, "vllm:num_preemptions_total")
        holders.others(1)
        answer = Stream(server.target, PATH, body("urgent ", 3, ttft_ms=1500)).result()
        assert answer.status == 200
        holders.wait(lambda: counter(server.url, "vllm:num_preemptions_total") > before, "somebody gave way")
        holders.wait(lambda: counter(server.url, "vllm:num_requests_running") == SLOTS, "who gave way is back")
        holders.check(counter(server.url, "vllm:num_preemptions_total") == before + 1, "and nobody else did")

    with_all_slots_taken(server, case, ttft_ms=60_000, tpot_ms=60_000, out_tokens=1900)


def test_tier_2_gets_its_share_of_prompt_tokens(tiered: Tiered) -> None:
    """All of both tiers wait before the first is served; prompts are of one length, so that their number tells the share while
    neither tier is done. Without one it would be nothing."""
    server = tiered.server
    prompts = {
        tier: [[tier, at // 100, at % 100, *(100 + n % 1000 for n in range(PROMPT - 3))] for at in range(count)]
        for tier, count in ((1, SERVED), (2, SERVED // 2))
    }

    def case(holders: Holders) -> tuple[list[int], list[Stream]]:
        served: list[int] = []
        said = {1: b"", 2: b""}

        def heard(tier: int, piece: bytes) -> None:
            said[tier] += piece
            served.extend([tier] * (said[tier].count(b'"finish_reason":"length"') - served.count(tier)))

        asked = {1: body(prompts[1], 1, ttft_ms=600_000), 2: body(prompts[2], 1)}
        streams = [Stream(server.target, PATH, asked[tier], on_piece=partial(heard, tier)) for tier in (2, 1)]
        holders.wait(lambda: waiting(server) == sum(map(len, prompts.values())), "all of both tiers wait")
        return served, streams

    served, streams = with_all_slots_taken(server, case, ttft_ms=60_000, tpot_ms=0.001, out_tokens=1900)
    assert [stream.result().status for stream in streams] == [200] * 2
    assert len(served) == sum(map(len, prompts.values()))
    assert 0.6 * RHO <= served[:SERVED].count(2) / SERVED <= 1.5 * RHO


def test_what_a_client_asks_the_gateway_for_orders_the_engine_s_queue(tiered: Tiered, folder: Path) -> None:
    server = tiered.server
    with running(Gateway(folder, "slo", {"tiered": server.url}, more='scheduling = "leeway"')) as gateway:

        def case(holders: Holders) -> list[Stream]:
            streams: dict[str, Stream] = {}
            for name, ttft_ms in (("patient", 600_000), ("sooner", 300_000)):
                streams[name] = Stream(gateway.target, PATH, body(name, 1200), {"x-slo-ttft-ms": str(ttft_ms)})
                holders.wait(lambda: waiting(server) == len(streams), f"{name} waits")
            each_in_its_turn(holders, streams, ("sooner", "patient"))
            return [*streams.values()]

        streams = with_all_slots_taken(server, case, ttft_ms=60_000, tpot_ms=0.001, out_tokens=1900)
        assert [stream.result().status for stream in streams] == [200] * 2


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
    def forgotten() -> bool:
        answer = ask(server.target, "POST", "/reset_prefix_cache")
        assert answer.status == 200
        return answer.json() == {"success": True}  # not as long as any block is held

    wait_until(lambda: server.running_requests() == 0, SURELY_S, "the engine is idle")
    wait_until(forgotten, SURELY_S, "it has forgotten them")


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
    wait_until(lambda: re.search(r"0 of \d+ tokens are loaded", tiered.log()) is not None, SURELY_S, "that is logged")
    forget_prefixes(server)
    assert text_of(server, body(prompt, 24)) == first
    assert external_tokens(server) - loaded >= 128, "without a budget it loads, as without us"


def test_its_events_tell_what_it_holds(tiered: Tiered, folder: Path) -> None:
    server, view = tiered.server, KvView(PrefixIndex(1000))
    feed = KvFeed(tiered.events, tiered.replay, view)
    rule = '[models."*"]\npolicy = "plan"\n'
    published = f'kv_events = "{tiered.events}"\nkv_replay = "{tiered.replay}"'
    with running(Gateway(folder, "events", {"tiered": server.url}, rule=rule, more=published)) as gateway, reading(feed):
        wait_until(lambda: feed.connected, SURELY_S, "the events are read")
        long = "a long beginning that several prompts have in common " * 60
        for ending in ("one", "two"):
            answer = Stream(gateway.target, PATH, body(long + ending, 200)).result()
            assert answer.status == 200, answer.body
        wait_until(
            lambda: counter(gateway.admin, "leeway_backend_kv_joined_total") >= 2, SURELY_S, "prompts are joined with blocks"
        )
        wait_until(lambda: counter(gateway.admin, "leeway_backend_kv_tokens") >= 512, SURELY_S, "blocks are held")
        wait_until(lambda: view.tokens == counter(gateway.admin, "leeway_backend_kv_tokens"), SURELY_S, "both readers agree")
        assert (feed.ledger.gaps, feed.ledger.malformed) == (0, 0)
        forget_prefixes(server)
        text_of(server, body("something short", 2))  # events go out with a step
        wait_until(lambda: counter(gateway.admin, "leeway_backend_kv_tokens") < 128, SURELY_S, "the gateway has forgotten them")
        wait_until(lambda: view.tokens < 128, SURELY_S, "and so has the other reader")


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
        self._thread.join(SURELY_S)
        self._loop.close()


def test_tiers_are_cheap(tiered: Tiered) -> None:
    """By the engine's own account: thread CPU time a step, in the hundred steps that were disturbed least."""
    Stream(tiered.server.target, PATH, body("on and on ", 400)).result()

    def costs() -> list[str]:
        return re.findall(r"tiers take ([\d.]+) us a step", tiered.log())

    wait_until(lambda: bool(costs()), SURELY_S, "the engine says what tiers cost")
    assert min(map(float, costs())) <= 50.0 * times_slower()
