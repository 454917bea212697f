"""Moves that stop half way, engines that die with requests in them, replicas that drain: what the swapper makes of that."""

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial

import aiohttp
import looptime
import pytest

from backends import vllm_sleep
from backends.base import ControlHttp, Reply
from backends.moves import MoveError
from backends.vllm_sleep import VllmSleep
from gateway import admin_schema
from gateway.config import BackendSpec, Queue, Timeouts
from gateway.swap_config import Swaps
from tests.wire.kit import Case, Rig, chat, run, until, virtual_pause
from tests.wire.swap_kit import ask, config, engines, history, moved, sleep, sleeper, states, swapper, when, whole

TOKEN_S = 0.45  # besides the step's 0.05
LONG, SHORT = 120, 4  # tokens: a minute, two seconds
IDLE_S = 5.0
SWAPS = Swaps(plan_s=0.2, dwell_s=1.0, starve_s=30.0)
assert admin_schema  # loaded before time is virtual


def deep(spec: BackendSpec) -> BackendSpec:
    """Its backend, whose weights are read again when it wakes up."""
    found = sleeper(spec)
    return replace(found, swap=replace(found.swap, level=2))


def share(case: Case, *, keeps: bool = False, tokens: int = SHORT) -> None:
    """Run a case with models a and b on one device that holds one."""
    made = engines("a", "b", tokens=tokens, token_s=TOKEN_S, sleep_s=1.0, wake_s=2.0)
    timeouts = Timeouts(idle_s=IDLE_S, first_byte_s=IDLE_S)
    settings = replace(config("a", "b", swaps=SWAPS), queue=Queue(timeout_s=300.0), timeouts=timeouts)
    spec = partial(sleeper, keeps=True) if keeps else deep
    run(case, settings, backends=0, engines=made, spec=spec, on=looptime.new_event_loop, limit_s=2000.0)


def fail(monkeypatch: pytest.MonkeyPatch, **times: int) -> Counter[str]:
    """Engines refuse these control requests so often; a sleep only of who is asleep. How often each was refused."""
    refused: Counter[str] = Counter()
    plain = vllm_sleep.tell

    async def tell(http: ControlHttp, path: str, body: dict[str, object] | None = None) -> Reply:
        name = path.partition("?")[0].strip("/")
        if refused[name] < times.get(name, 0) and (name != "sleep" or b"true" in (await http.get("/is_sleeping")).body):
            refused[name] += 1
            raise MoveError(f"{path} answered 500")
        return await plain(http, path, body)

    monkeypatch.setattr(vllm_sleep, "tell", tell)
    return refused


def test_weights_that_cannot_be_read_are_put_away_before_the_other_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        refused = fail(monkeypatch, collective_rpc=2)
        first = ask(rig, "b")
        told = await moved(rig, 1)
        assert (told.outcome, refused["collective_rpc"]) == ("failed", 2)
        assert not rig.app.plane.lodging.lodgers["e-b"].stuck
        assert states(rig)["e-a"] != "asleep"
        assert whole(await first, SHORT)

    share(case)


def test_memory_that_could_not_be_put_away_counts_as_taken_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        fail(monkeypatch, collective_rpc=2, sleep=2)
        swapper(rig).load("b")
        assert (await moved(rig, 1)).outcome == "failed"
        lodger = rig.app.plane.lodging.lodgers["e-b"]
        assert (lodger.phase, lodger.stuck) == ("out", True)
        assert states(rig) == {"e-a": "asleep", "e-b": "asleep"}, "who left has no room to come back to"
        (device,) = (await rig.admin("GET", "/admin/plan")).json["devices"]
        assert [(one["model"], one["phase"], one["memory_gb"]) for one in device["residents"]] == [("b", "out", 16.0)]
        assert device["free_gb"] == 4.0
        (model,) = [one for one in (await rig.admin("GET", "/admin/models")).json["models"] if one["model"] == "b"]
        assert model["lodgers"][0]["stuck"]
        back = ask(rig, "a")
        await when(lambda: not lodger.stuck)
        assert whole(await back, SHORT)
        assert {one[0] for one in history(rig)[1:] if one[2] == "done"} <= {"", "a"}

    share(case)


def test_whose_move_stopped_half_way_comes_if_somebody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        fail(monkeypatch, collective_rpc=2, sleep=99)
        first = ask(rig, "b")
        assert (await moved(rig, 1)).outcome == "failed"
        assert rig.app.plane.lodging.lodgers["e-b"].stuck
        assert whole(await first, SHORT)
        assert history(rig)[1] == ("b", (), "done")
        assert not rig.app.plane.lodging.lodgers["e-b"].stuck

    share(case)


def test_an_operator_may_have_it_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        fail(monkeypatch, collective_rpc=2, sleep=2)
        swapper(rig).load("b")
        await moved(rig, 1)
        swapper(rig).unload("b")
        assert (await moved(rig, 2)).outcome == "done"
        assert not rig.app.plane.lodging.lodgers["e-b"].stuck

    share(case)


def test_nobody_is_brought_to_a_replica_that_drains() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        assert (await rig.admin("POST", "/admin/backends/e-b/drain")).status == 202
        waits = ask(rig, "b")
        await virtual_pause(20.0)
        assert history(rig) == []
        assert states(rig) == {"e-a": "ready", "e-b": "draining"}
        assert (await rig.admin("POST", "/admin/backends/e-b/undrain")).status == 200
        if (await waits).status != 200:  # it was refused, as nobody could serve it
            assert whole(await ask(rig, "b"), SHORT)
        assert history(rig) == [("b", ("a",), "done")]

    share(case)


def test_an_engine_that_died_on_its_device_makes_room() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        assert whole(await ask(rig, "a"), SHORT)
        await rig.engines[0].close()
        await when(lambda: states(rig)["e-a"] == "down")
        assert whole(await ask(rig, "b"), SHORT)
        assert history(rig) == [("b", ("a",), "done")]
        assert states(rig)["e-a"] == "asleep"

    share(case)


# -- requests that stay in an engine which is paused for another model


async def paused(rig: Rig) -> "tuple[asyncio.Task[object], asyncio.Task[object]]":
    """A stream of a that stays in its engine, and one of b that made it."""
    await sleep(rig, "e-b")
    stays = ask(rig, "a", max_tokens=LONG)
    await until(lambda: rig.engines[0].in_flight == 1)
    await virtual_pause(2.0)
    visitor = ask(rig, "b", max_tokens=LONG)
    await when(lambda: rig.app.plane.lodging.lodgers["e-a"].kept == 1 and states(rig)["e-b"] == "ready", 100.0)
    return stays, visitor  # type: ignore[return-value]


def test_requests_in_an_engine_that_dies_asleep_end_and_are_waited_for_no_more() -> None:
    async def case(rig: Rig) -> None:
        stays, visitor = await paused(rig)
        await rig.engines[0].close()
        assert not (await stays).whole  # type: ignore[attr-defined]
        assert whole(await visitor, LONG)  # type: ignore[arg-type]
        swapper(rig).see()
        assert rig.app.plane.lodging.lodgers["e-a"].kept == 0
        await virtual_pause(30.0)
        assert [one for one in history(rig) if one[2] != "done"] == []

    share(case, keeps=True, tokens=LONG)


def test_requests_in_an_engine_that_others_wake_up_are_not_counted_as_paused() -> None:
    async def case(rig: Rig) -> None:
        stays, visitor = await paused(rig)
        async with aiohttp.ClientSession(rig.engines[0].url) as client, client.post("/wake_up") as woken:
            assert woken.status == 200
        lodger = rig.app.plane.lodging.lodgers["e-a"]
        await when(lambda: lodger.phase == "in")
        assert lodger.kept == 0
        assert whole(await visitor, LONG)  # type: ignore[arg-type]
        assert whole(await stays, LONG)  # type: ignore[arg-type]

    share(case, keeps=True, tokens=LONG)


def test_requests_in_an_engine_that_never_comes_back_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = VllmSleep.into

    async def into(self: VllmSleep, fraction: float) -> None:
        if self._spec.model == "a":
            raise MoveError("it hangs")
        await plain(self, fraction)

    async def case(rig: Rig) -> None:
        stays, visitor = await paused(rig)
        monkeypatch.setattr(VllmSleep, "into", into)
        assert whole(await visitor, LONG)  # type: ignore[arg-type]
        assert not (await stays).whole  # type: ignore[attr-defined]
        assert rig.app.plane.lodging.hopeless("a")
        assert rig.app.plane.lodging.lodgers["e-a"].kept == 0

    share(case, keeps=True, tokens=LONG)


def test_after_its_end_nothing_is_moved_any_more() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        found = swapper(rig)
        await found.close()
        found.adopt()
        found._send_away(rig.app.plane.lodging.lodgers["e-a"])
        assert found.moving == frozenset()
        peer = await rig.connect()
        peer.ask({**chat(stream=True), "model": "b"})
        await virtual_pause(5.0)
        peer.close()
        assert history(rig) == []

    share(case)
