"""Requests that stay inside an engine which is paused for another model, and go on after it, in virtual time."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import looptime

from gateway.config import Queue, Timeouts
from gateway.residency import NEVER, Step
from gateway.swap_config import Swaps
from tests.wire.kit import Case, Rig, chat, run, until, virtual_pause
from tests.wire.peer import Answer
from tests.wire.swap_kit import ask, config, engines, history, moved, sleep, sleeper, states, swapper, when, whole

TOKEN_S = 0.45  # besides the step's 0.05
LONG, SHORT = 120, 60  # tokens: a minute, and half a minute
IDLE_S = 5.0  # far less than the pause
SWAPS = Swaps(plan_s=0.2, dwell_s=1.0, starve_s=30.0)


def share(case: Case) -> None:
    """Run a case with models a (long answers) and b on one device, whose engines may keep requests."""
    made = engines("a", "b", tokens=LONG, token_s=TOKEN_S, sleep_s=1.0, wake_s=2.0)
    timeouts = Timeouts(idle_s=IDLE_S, first_byte_s=IDLE_S)
    settings = replace(config("a", "b", swaps=SWAPS), queue=Queue(timeout_s=300.0), timeouts=timeouts)
    spec = partial(sleeper, keeps=True)
    run(case, settings, backends=0, engines=made, spec=spec, on=looptime.new_event_loop, limit_s=900.0)


def text_of(answer: Answer) -> str:
    """What a stream said."""
    assert whole(answer, LONG)
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in answer.events if b'"delta"' in event]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


def test_streams_go_on_after_the_visit_of_another_model() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        paused = [ask(rig, "a") for _ in range(3)]
        await until(lambda: rig.engines[0].in_flight == 3)
        await virtual_pause(2.0)
        visitor = ask(rig, "b", max_tokens=SHORT)
        await when(lambda: states(rig)["e-a"] == "asleep", 100.0, lambda: swapper(rig).history)
        assert rig.engines[0].in_flight == 3, "they are in its engine"
        assert not any(task.done() for task in paused)
        assert whole(await visitor, SHORT)
        assert all(whole(answer, LONG) for answer in await asyncio.gather(*paused))
        assert rig.engines[0].aborted == rig.engines[1].aborted == 0
        assert rig.engines[0].seen_asleep == rig.engines[1].seen_asleep == 0
        assert 2 <= len(history(rig)) <= 6
        assert {outcome for *_, outcome in history(rig)} == {"done"}

    share(case)


def test_the_text_is_that_of_an_undisturbed_run() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        plain = ask(rig, "a", stream=False)
        stream = ask(rig, "a")
        await until(lambda: rig.engines[0].in_flight == 2)
        visitor = ask(rig, "b", max_tokens=10)
        assert whole(await visitor, 10)
        assert not stream.done()
        paused = text_of(await stream)
        assert (await plain).json["choices"][0]["message"]["content"] == paused
        steps = len(history(rig))
        assert steps >= 2
        assert text_of(await ask(rig, "a")) == paused
        assert len(history(rig)) == steps

    share(case)


def test_who_leaves_meanwhile_is_let_go() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        stays = ask(rig, "a")
        peer = await rig.connect()
        peer.ask({**chat(stream=True), "model": "a"})
        await until(lambda: rig.engines[0].in_flight == 2)
        visitor = ask(rig, "b", max_tokens=10)
        await when(lambda: states(rig)["e-a"] == "asleep", 100.0)
        peer.close()
        await until(lambda: rig.engines[0].in_flight == 1)
        await until(lambda: rig.app.plane.lodging.lodgers["e-a"].kept == 1)
        assert whole(await visitor, 10)
        assert whole(await stays, LONG)
        assert (rig.engines[0].aborted, rig.engines[0].finished) == (1, rig.engines[0].requests_seen - 1)

    share(case)


def test_who_runs_on_for_long_is_paused_and_others_end() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        short, long = ask(rig, "a", max_tokens=3), ask(rig, "a")
        await until(lambda: rig.engines[0].in_flight == 2)
        step = Step("gpu0", "b", 1.0, ("a",), "drain", 0.0, 10.0, NEVER, 3.0, pause_s=6.0)
        swapper(rig)._carry_out(step, "a test", by_hand=True)
        moved_s = (await moved(rig, 1)).drained_s
        assert 5.9 <= moved_s <= 7.0 and short.done() and whole(await short, 3)
        assert (states(rig)["e-a"], rig.app.plane.lodging.lodgers["e-a"].kept, long.done()) == ("asleep", 1, False)
        assert whole(await long, LONG), "it is brought back for who is kept"
        assert rig.engines[0].aborted == 0

    share(case)


def test_nobody_waits_for_the_pause_where_requests_end_before() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        short = ask(rig, "a", max_tokens=3)
        await until(lambda: rig.engines[0].in_flight == 1)
        step = Step("gpu0", "b", 1.0, ("a",), "drain", 0.0, 10.0, NEVER, 3.0, pause_s=30.0)
        swapper(rig)._carry_out(step, "a test", by_hand=True)
        assert (await moved(rig, 1)).drained_s < 5.0 and whole(await short, 3)
        assert rig.app.plane.lodging.lodgers["e-a"].kept == 0

    share(case)


def test_nobody_is_brought_back_for_who_left() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        peer = await rig.connect()
        peer.ask({**chat(stream=True), "model": "a"})
        await until(lambda: rig.engines[0].in_flight == 1)
        visitor = ask(rig, "b", max_tokens=10)
        await when(lambda: states(rig)["e-a"] == "asleep", 100.0)
        peer.close()
        assert whole(await visitor, 10)
        await virtual_pause(60.0)
        assert history(rig) == [("b", ("a",), "done")]

    share(case)
