"""Swaps that fail, are given up, or are asked for by an operator, in virtual time."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import looptime
import pytest

from backends.mock import MockEngine
from backends.moves import MoveError
from backends.vllm_sleep import VllmSleep
from gateway.config import Queue
from gateway.lodging import BAR_FIRST_S
from gateway.operator_errors import OperationError
from gateway.residency import NEVER, Step
from gateway.swap_config import Swaps
from tests.wire.kit import Case, Rig, chat, run, until, virtual_pause
from tests.wire.swap_kit import ask, config, engines, history, moved, sleep, sleeper, states, swapper, when, whole

TOKEN_S = 0.45  # besides the step's 0.05
LONG, SHORT = 120, 4  # tokens: a minute, two seconds
SWAPS = Swaps(plan_s=0.2, dwell_s=1.0, starve_s=20.0)


def share(case: Case, *models: str, tokens: int = LONG, swaps: Swaps = SWAPS, queue_s: float = 300.0) -> None:
    """Run a case with these models on one device that holds one."""
    made = engines(*models, tokens=tokens, token_s=TOKEN_S, sleep_s=1.0, wake_s=2.0)
    settings = replace(config(*models, swaps=swaps), queue=Queue(timeout_s=queue_s))
    run(case, settings, backends=0, engines=made, spec=sleeper, on=looptime.new_event_loop, limit_s=2000.0)


def test_a_drain_is_given_up_when_nobody_waits_any_more() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        running = ask(rig, "a")
        await until(lambda: rig.engines[0].in_flight == 1)
        peer = await rig.connect()
        peer.ask({**chat(stream=True), "model": "b"})
        more = []
        while states(rig)["e-a"] != "swapping":  # who is asked for all the time is not idle before long, and must be cut off
            more.append(ask(rig, "a", max_tokens=1))
            await virtual_pause(0.5)
        assert not running.done()
        peer.close()
        await when(lambda: states(rig)["e-a"] == "ready", 5.0)
        assert history(rig) == [("b", ("a",), "given up")]
        assert (await ask(rig, "a", max_tokens=1)).status == 200
        assert whole(await running, LONG)
        assert history(rig) == [("b", ("a",), "given up")]
        assert rig.engines[1].requests_seen == 0

    share(case, "a", "b")


def test_a_drain_that_takes_too_long_is_not_begun_anew_at_once() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        running = ask(rig, "a")
        await until(lambda: rig.engines[0].in_flight == 1)
        first = ask(rig, "b")
        await when(lambda: len(history(rig)) == 2, 60.0)
        assert history(rig) == [("b", ("a",), "given up")] * 2
        before, after = swapper(rig).history
        assert after.at_s - before.at_s - before.drained_s >= BAR_FIRST_S, "who stays is open meanwhile"
        assert "did not end in time" in rig.app.plane.lodging.why_barred("b", "gpu0")
        assert whole(await running, LONG)
        assert whole(await first, LONG)

    share(case, "a", "b", swaps=replace(SWAPS, drain_s=5.0))


def test_what_left_comes_back_where_the_load_fails() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        await rig.engines[1].close()
        first = ask(rig, "b")
        await when(lambda: len(history(rig)) == 1, 60.0)
        assert history(rig) == [("b", ("a",), "failed")]
        assert states(rig) == {"e-a": "ready", "e-b": "asleep"}
        assert whole(await ask(rig, "a"), SHORT)
        assert not first.done(), "it may still work"
        again = MockEngine(replace(rig.engines[1].config, port=int(rig.engines[1].url.rpartition(":")[2])))
        rig.engines[1] = again
        await again.start()
        assert whole(await first, SHORT)
        assert rig.engines[0].seen_asleep == rig.engines[1].seen_asleep == 0

    share(case, "a", "b", tokens=SHORT)


def test_a_load_that_fails_half_way_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_into = VllmSleep.into

    async def half(self: VllmSleep, fraction: float) -> None:
        await whole_into(self, fraction)
        raise MoveError("it lies there, and answers nobody")

    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        monkeypatch.setattr(VllmSleep, "into", half)
        first = ask(rig, "b")
        await when(lambda: len(history(rig)) == 1, 60.0)
        monkeypatch.undo()
        assert await swapper(rig)._movers["e-b"].where() == "asleep1", "else both would lie there"
        assert whole(await first, SHORT)

    share(case, "a", "b", tokens=SHORT)


def test_what_lay_there_in_part_comes_back_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[float] = []

    async def part_only(self: VllmSleep, fraction: float) -> None:
        came.append(fraction)
        if fraction == 1.0:
            raise MoveError("no room for all of it")

    async def case(rig: Rig) -> None:
        monkeypatch.setattr(VllmSleep, "into", part_only)
        lodger = rig.app.plane.lodging.lodgers["e-a"]
        lodger.fraction = 0.5
        step = Step("gpu0", "a", 1.0, ("a",), "drain", 0.0, 1.0, NEVER, 1.0)
        swapper(rig)._carry_out(step, "more of it would fit", by_hand=True)
        assert (await moved(rig, 1)).outcome == "failed"
        assert (came, lodger.fraction) == ([1.0, 1.0, 0.5], 0.5)
        await when(lambda: states(rig)["e-a"] == "asleep")  # as it really is

    share(case, "a", tokens=SHORT)


def test_repeated_failure_ends_in_honest_refusals() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        await rig.engines[1].close()
        for _ in range(3):
            answer = await ask(rig, "b")
            assert (answer.status, answer.error["code"]) == (503, "model_not_loaded")
            wait_s = int(answer.headers[b"retry-after"])
            assert wait_s >= 20
            assert whole(await ask(rig, "a"), SHORT), "the others are served meanwhile"
            await virtual_pause(wait_s)
        failures = [told for told in swapper(rig).history if told.outcome == "failed"]
        assert {told.model for told in failures} == {"b"}
        assert 3 <= len(failures) <= 7
        gaps_s = [after.at_s - before.at_s for before, after in pairwise(failures)]
        assert gaps_s == sorted(gaps_s), "tried again, later each time"
        assert all("connect" in told.reason.lower() for told in failures)

    share(case, "a", "b", tokens=SHORT)


def test_an_operator_takes_a_model_off_while_streams_run() -> None:
    async def case(rig: Rig) -> None:
        running = [ask(rig, "a") for _ in range(3)]
        await until(lambda: rig.engines[0].in_flight == 3)
        step = swapper(rig).unload("a")
        assert step.leaves == ("a",)
        with pytest.raises(OperationError) as refused:
            swapper(rig).unload("a")
        assert refused.value.code in ("device_busy", "not_loaded")
        late = ask(rig, "a", max_tokens=3)
        assert all(whole(answer, LONG) for answer in await asyncio.gather(*running))
        assert whole(await late, 3), "whoever asks for it brings it back"
        assert history(rig) == [("", ("a",), "done"), ("a", (), "done")]
        assert rig.engines[0].seen_asleep == 0

    share(case, "a")


def test_an_operator_brings_a_model_that_nobody_waits_for() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        running = ask(rig, "a")
        await until(lambda: rig.engines[0].in_flight == 1)
        assert swapper(rig).load("b").leaves == ("a",)
        assert whole(await running, LONG)
        assert (await moved(rig, 1)).outcome == "done"
        await when(lambda: states(rig) == {"e-a": "asleep", "e-b": "ready"})
        with pytest.raises(OperationError) as refused:
            swapper(rig).load("b")
        assert refused.value.code == "no_room"

    share(case, "a", "b")


def test_dry_moves_nothing_and_plans() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        waits = ask(rig, "b")
        await until(lambda: bool(rig.app.plane.lodging.plan.steps))
        (step,) = rig.app.plane.lodging.plan.steps
        assert (step.model, step.leaves) == ("b", ("a",))
        answer = await waits
        assert answer.status == 503
        assert int(answer.headers[b"retry-after"]) >= 1
        assert history(rig) == []
        assert states(rig) == {"e-a": "ready", "e-b": "asleep"}

    share(case, "a", "b", swaps=replace(SWAPS, mode="dry"), queue_s=10.0)


def test_nobody_leaves_for_a_model_whose_backend_is_gone() -> None:
    async def case(rig: Rig) -> None:
        step = Step("gpu0", "gone", 1.0, ("a",), "drain", 0.0, 1.0, NEVER, 1.0)
        swapper(rig)._carry_out(step, "planned before it went", by_hand=True)
        told = await moved(rig, 1)
        assert (told.outcome, told.reason) == ("given up", "its backend is gone")
        assert states(rig) == {"e-a": "ready"}

    share(case, "a", tokens=SHORT)
