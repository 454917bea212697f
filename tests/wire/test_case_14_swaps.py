"""Cases 14.1 and 14.2: models that share one device, in virtual time, on simulated engines that need time to sleep and wake.

14.1: A B A A C A B C with streams of 5 s; 14.2: a request for a model that sleeps. (14.3: test_case_14_order.py.)
"""

import asyncio
import math
from dataclasses import replace

import looptime
import pytest

from gateway.config import GatewayConfig, Queue
from gateway.swap_config import Swaps
from tests.wire.kit import Case, Rig, chat, run, until, virtual_pause
from tests.wire.swap_kit import ask, config, engines, history, sleep, sleeper, states, whole

TOKENS = 100
STREAM_S = 5.0
SLEEP_S, WAKE_S = 1.0, 3.0
STARVE_S = 60.0
SWAPS = Swaps(plan_s=0.2, dwell_s=1.0, starve_s=STARVE_S)
ARRIVALS = "abaacabc"


def share(case: Case, *models: str, settings: GatewayConfig | None = None, wake_s: float = WAKE_S) -> None:
    """Run a case with these models on one device that holds one; afterwards, nobody was ever sent to an engine asleep."""

    async def checked(rig: Rig) -> None:
        await case(rig)
        assert [engine.seen_asleep for engine in rig.engines] == [0] * len(models), "sent to an engine that slept"
        assert all(not engine.aborted for engine in rig.engines)

    made = engines(*models, tokens=TOKENS, sleep_s=SLEEP_S, wake_s=wake_s)
    settings = settings or replace(config(*models, swaps=SWAPS), queue=Queue(timeout_s=300.0))
    run(checked, settings, backends=0, engines=made, spec=sleeper, on=looptime.new_event_loop, limit_s=600.0)


async def spent(rig: Rig, request_id: str) -> dict[str, float]:
    """Where a request's time went, in seconds."""
    told = (await rig.ask(path=f"/v1/requests/{request_id}", method="GET")).json
    return {"ttft": told["ttft_ms"] / 1e3, **{name: value / 1e3 for name, value in told["spent_ms"].items()}}


# In turn, each change of the model would be a swap: six for these eight requests. Whoever is brought serves all who wait for
# it, so that a round (a swap, and the streams that it lets begin) makes at most one swap: where all arrive within the first
# round, each absent model is brought once; else there are no more swaps than rounds that the arrivals span.
ROUND_S = SLEEP_S + WAKE_S + STREAM_S


@pytest.mark.parametrize("gap_s", [0.5, 2.0, 4.0])
def test_14_1_streams_of_three_models_on_one_device(gap_s: float) -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b", "e-c")
        asked = []
        for i, model in enumerate(ARRIVALS):
            asked.append(ask(rig, model, f"r{i}", ignore_eos=True, max_tokens=TOKENS))
            await virtual_pause(gap_s)
        assert all(whole(answer, TOKENS) for answer in await asyncio.gather(*asked))
        swaps = len(history(rig))
        assert {outcome for _, _, outcome in history(rig)} == {"done"}
        assert swaps <= max(len(set(ARRIVALS)) - 1, math.ceil((len(ARRIVALS) - 1) * gap_s / ROUND_S)) <= 4
        waits = [await spent(rig, f"r{i}") for i in range(len(ARRIVALS))]
        for i, wait in enumerate(waits):
            assert wait["ttft"] <= STARVE_S
            line = await rig.access(f"r{i}")
            assert line.get("swap_ms", 0.0) == pytest.approx(wait["swap"] * 1e3, abs=0.1)
            assert wait["swap"] + wait["queue_1"] + wait["prefill"] == pytest.approx(wait["ttft"], abs=0.01)
            assert wait["queue_1"] < 0.3, "whoever waits, waits for a swap"
        waited = [wait["swap"] for wait in waits if wait["swap"]]
        assert len(waited) >= swaps
        assert sum(wait >= SLEEP_S + WAKE_S for wait in waited) >= swaps, "the whole penalty, for who was there before"

    share(case, "a", "b", "c")


def test_a_model_that_is_always_asked_for_starves_nobody() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        hot = []
        rare = None
        for i in range(120):
            hot.append(ask(rig, "a", f"a{i}"))
            if i == 20:
                rare = ask(rig, "b", "b0")
            await virtual_pause(1.0)
        assert rare is not None
        assert whole(await rare, TOKENS)
        assert all(whole(answer, TOKENS) for answer in await asyncio.gather(*hot))
        assert 0 < (await spent(rig, "b0"))["swap"] <= STARVE_S
        assert max([(await spent(rig, f"a{i}"))["ttft"] for i in range(120)]) <= STARVE_S
        assert len(history(rig)) <= 4

    share(case, "a", "b")


def test_14_2_a_request_for_a_model_that_sleeps_wakes_it() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        running = ask(rig, "a")
        await until(lambda: rig.engines[0].requests_seen > 1)
        answer = await ask(rig, "b", "b0")
        assert whole(answer, TOKENS)
        assert whole(await running, TOKENS)
        assert history(rig) == [("b", ("a",), "done")]
        assert states(rig) == {"e-a": "asleep", "e-b": "ready"}
        assert (await spent(rig, "b0"))["swap"] >= SLEEP_S + WAKE_S

    share(case, "a", "b")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_14_2_a_model_that_cannot_be_there_in_time(busy: bool) -> None:
    """503 at once, with the seconds after which it will be there: who comes again then is served."""
    queue_s = 0.5
    wake_s = 1.25  # about what the profile of the host foretells

    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        running = ask(rig, "a") if busy else None
        if busy:
            await until(lambda: rig.engines[0].in_flight == 1)
        tries = 0
        while (answer := await rig.ask({**chat("hi"), "model": "b", "max_tokens": 5})).status != 200:
            tries += 1
            assert (answer.status, answer.error["code"]) == (503, "model_not_loaded")
            retry_s = int(answer.headers[b"retry-after"])
            assert retry_s >= wake_s
            await virtual_pause(retry_s)
        assert 1 <= tries <= (2 if busy else 1)
        assert history(rig) == [("b", ("a",), "done")]
        if running is not None:
            assert whole(await running, TOKENS)

    settings = replace(config("a", "b", swaps=SWAPS), queue=Queue(timeout_s=queue_s))
    share(case, "a", "b", settings=settings, wake_s=wake_s)


def test_who_waited_in_vain_is_told_so() -> None:
    """Nobody moves the model (the planner is told not to): the wait's end is a 503 whose budget shows the swap."""

    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        answer = await ask(rig, "b", "b0")
        assert answer.status == 503
        assert int(answer.headers[b"retry-after"]) >= 1
        line = await rig.access("b0")
        assert line["swap_ms"] == pytest.approx(line["duration_ms"], abs=100.0)
        assert history(rig) == []

    settings = replace(config("a", "b", swaps=replace(SWAPS, mode="dry")), queue=Queue(timeout_s=5.0))
    share(case, "a", "b", settings=settings)
