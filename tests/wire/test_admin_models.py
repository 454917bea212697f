"""What the control plane shows and does of models that share a device, on simulated engines that sleep and wake."""

import asyncio
import json
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import looptime
import pytest

from gateway import admin_schema
from gateway.admin_models import to_its_end
from gateway.config import BackendSpec, GatewayConfig, ModelSpec
from gateway.residency import SwapPlan
from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps, SwapSpec
from tests.wire.kit import CONFIG, Rig, chat, metric, run, until
from tests.wire.peer import Answer
from tests.wire.swap_kit import ENGINE, SWAPS, sleep

A, B = "org/a:1b", "b"
NAMES = {"e-a": A, "e-b": B}
FOOTPRINT = FootprintSpec(weight_gb=16.0, kv_kb_per_token=100.0, kv_tokens=10_000, overhead_gb=0.5)
assert admin_schema  # loaded before time is virtual


def config(swaps: Swaps = SWAPS) -> GatewayConfig:
    rules = tuple(ModelSpec(model, footprint=FOOTPRINT) for model in (A, B))
    return replace(CONFIG, models=rules, swaps=swaps, devices=(DeviceSpec("gpu0", 20.0, "rtx-5000-ada"),))


def sleeper(spec: BackendSpec) -> BackendSpec:
    return replace(spec, models=(NAMES[spec.name],), swap=SwapSpec("gpu0", "sleep"))


def share(case: Callable[[Rig], Awaitable[None]], configured: GatewayConfig | None = None) -> None:
    """Two engines that share a device, the second asleep; time is virtual."""

    async def asleep(rig: Rig) -> None:
        await sleep(rig, "e-b")
        await case(rig)

    engines = tuple(replace(ENGINE, name=name, models=(model,), sleep_s=0.5, wake_s=1.0) for name, model in NAMES.items())
    made = configured or config()
    run(asleep, made, backends=0, engines=engines, spec=sleeper, on=looptime.new_event_loop, limit_s=120.0)


async def said(rig: Rig, method: str, path: str, body: object = None, status: int = 200) -> Any:
    """A JSON answer of the control listener."""
    answer = await rig.admin(method, path, body)
    assert answer.status == status, answer
    return json.loads(answer.body)


async def code(rig: Rig, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and machine word of an error."""
    answer = await rig.admin(method, path, body)
    return answer.status, json.loads(answer.body)["error"]["code"]


def ask(rig: Rig, model: str) -> "asyncio.Task[Answer]":
    return asyncio.create_task(rig.ask({**chat(stream=True), "model": model}))


async def steps(rig: Rig, count: int) -> list[dict[str, Any]]:
    """The last steps, newest first, once there were so many and nothing moves."""
    swapper = rig.app.operations.swapper
    assert swapper is not None
    await until(lambda: len(swapper.history) >= count and not swapper.moving, 30.0, lambda: swapper.history)
    return list((await said(rig, "GET", "/admin/plan"))["history"])


def test_models_say_where_they_lie_and_what_moving_them_costs() -> None:
    async def case(rig: Rig) -> None:
        listed = await said(rig, "GET", "/admin/models")
        b, a = listed["models"]
        assert (listed["total"], a["model"], b["model"]) == (2, A, B)
        size = {"weight_gb": 16.0, "kv_gb": 1.0, "overhead_gb": 0.5, "whole_gb": 17.5, "layers": 1, "can_split": False}
        assert a["footprint"] == size
        (there,), (away,) = a["lodgers"], b["lodgers"]
        assert (there["backend"], there["device"], there["phase"], there["place"]) == ("e-a", "gpu0", "in", "gpu")
        assert there["here_s"] > 0
        assert (away["phase"], away["place"], away["here_s"], away["ready_s"]) == ("out", "asleep1", None, None)
        assert (a["expected_start_s"], a["pinned"], a["pinned_by"]) == (0.0, False, "file")
        into = away["into"]
        assert (into["start"], into["end"], into["seen"]) == ("asleep1", "gpu", 0)
        assert 0 < into["low_s"] < into["mean_s"] < into["high_s"]
        assert b["expected_start_s"] >= into["mean_s"]
        assert (await said(rig, "GET", f"/admin/models/{A}"))["model"] == A, "slashes and colons as they are"
        assert (await said(rig, "GET", "/admin/models/org%2Fa%3A1b"))["model"] == A
        assert await code(rig, "GET", "/admin/models/org") == (404, "no_such_model")
        assert await code(rig, "POST", f"/admin/models/{A}") == (405, "method_not_allowed")

    share(case)


def test_the_plan_shows_who_lies_where_who_comes_and_what_became_of_it() -> None:
    async def case(rig: Rig) -> None:
        plan = await said(rig, "GET", "/admin/plan")
        (device,) = plan["devices"]
        assert (device["taken_gb"], device["free_gb"], device["moving"]) == (17.5, 2.5, False)
        assert [(one["model"], one["phase"]) for one in device["residents"]] == [(A, "in")]
        assert (plan["age_s"], plan["plan"]["steps"], plan["history"]) == (None, [], [])
        running = ask(rig, A)
        await until(lambda: rig.engines[0].requests_seen == 1)
        waiting = ask(rig, B)
        lodging = rig.app.plane.lodging
        await until(lambda: bool(lodging.plan.steps))
        plan = await said(rig, "GET", "/admin/plan")
        step = plan["plan"]["steps"][0]
        assert (step["model"], step["leaves"], step["device"]) == (B, [A], "gpu0")
        assert plan["plan"]["saved_s"] > 0
        assert plan["plan"]["saved_s"] == pytest.approx(plan["plan"]["idle_cost_s"] - plan["plan"]["cost_s"], abs=0.002)
        sleeps, wakes = plan["plan"]["actions"][:2]
        assert (sleeps["kind"], sleeps["model"], sleeps["reason"]) == ("sleep", A, f"makes room for {B}")
        assert (wakes["kind"], wakes["model"]) == ("wake", B)
        assert wakes["reason"].startswith("1 wait; saves ")
        b = await said(rig, "GET", f"/admin/models/{B}")
        assert b["waiting"] == 1
        assert b["expected_start_s"] > 0
        assert [(await running).status, (await waiting).status] == [200, 200]
        (moved,) = await steps(rig, 1)
        assert (moved["model"], moved["leaves"], moved["outcome"], moved["reason"]) == (B, [A], "done", "")
        assert "saves" in moved["why"]
        assert 1.5 <= moved["took_s"] < 1.7, "half a second to sleep, one to wake"
        (lodger,) = (await said(rig, "GET", f"/admin/models/{B}"))["lodgers"]
        assert (lodger["phase"], lodger["into"]["seen"]) == ("in", 1)

    share(case)


def test_an_operator_loads_and_unloads_after_a_dry_run() -> None:
    async def case(rig: Rig) -> None:
        told = await said(rig, "POST", f"/admin/models/{B}/load", {"dry_run": True})
        assert (told["dry_run"], told["step"]["model"], told["step"]["leaves"]) == (True, B, [A])
        assert (await said(rig, "GET", "/admin/plan"))["history"] == []
        told = await said(rig, "POST", f"/admin/models/{B}/load", {"device": "gpu0"}, status=202)
        assert (told["dry_run"], told["step"]["model"]) == (False, B)
        assert await code(rig, "POST", f"/admin/models/{A}/load") == (409, "device_busy")
        (moved,) = await steps(rig, 1)
        assert (moved["model"], moved["outcome"], moved["why"]) == (B, "done", "asked for by an operator")
        assert await code(rig, "POST", f"/admin/models/{B}/load") == (409, "no_room"), "it is there"
        assert await code(rig, "POST", f"/admin/models/{A}/unload") == (409, "not_loaded")
        assert (await said(rig, "POST", f"/admin/models/{B}/unload", {"dry_run": True}))["step"]["leaves"] == [B]
        await said(rig, "POST", f"/admin/models/{B}/unload", status=202)
        moved, _ = await steps(rig, 2)
        assert (moved["model"], moved["leaves"], moved["outcome"]) == ("", [B], "done")
        (device,) = (await said(rig, "GET", "/admin/plan"))["devices"]
        assert (device["residents"], device["taken_gb"]) == ([], 0.0)
        assert await code(rig, "POST", f"/admin/models/{B}/load", {"device": "gpu1"}) == (422, "invalid_value")
        assert await code(rig, "POST", f"/admin/models/{B}/load", {"devices": "gpu0"}) == (422, "invalid_value")
        assert await code(rig, "POST", "/admin/models/c/load") == (404, "no_such_model")

    share(case)


def test_a_pinned_model_stays_and_is_told_who_pinned_it() -> None:
    async def case(rig: Rig) -> None:
        pinned = await said(rig, "POST", f"/admin/models/{A}/pin", {"pinned": True})
        assert (pinned["pinned"], pinned["pinned_by"]) == (True, "operator")
        assert await code(rig, "POST", f"/admin/models/{B}/load") == (409, "no_room")
        pinned = await said(rig, "POST", f"/admin/models/{A}/pin", {"pinned": None})
        assert (pinned["pinned"], pinned["pinned_by"]) == (False, "file")
        assert (await said(rig, "POST", f"/admin/models/{B}/load", {"dry_run": True}))["step"]["leaves"] == [A]
        assert await code(rig, "POST", f"/admin/models/{A}/pin", {}) == (422, "invalid_value")
        assert await code(rig, "POST", "/admin/models/c/pin", {"pinned": True}) == (404, "no_such_model")

    share(case)


def test_what_if_plans_for_supposed_demand_and_moves_nothing() -> None:
    async def case(rig: Rig) -> None:
        nothing = await said(rig, "POST", "/admin/plan")
        assert (nothing["steps"], nothing["saved_s"]) == ([], 0.0)
        crowd = {"models": {B: {"waiting": 40, "rate_per_s": 2.0, "slack_s": 5}}}
        found = await said(rig, "POST", "/admin/plan", crowd)
        assert (found["steps"][0]["model"], found["steps"][0]["leaves"]) == (B, [A])
        assert found["saved_s"] > 0
        kept = await said(rig, "POST", "/admin/plan", {**crowd, "pinned": [A]})
        assert (kept["steps"], kept["saved_s"]) == ([], 0.0)
        assert kept["cost_s"] == found["idle_cost_s"]
        assert await code(rig, "POST", "/admin/plan", {"models": {"c": {}}}) == (422, "invalid_value")
        assert await code(rig, "POST", "/admin/plan", {"models": {B: {"waiting": -1}}}) == (422, "invalid_value")
        plan = await said(rig, "GET", "/admin/plan")
        assert (plan["age_s"], plan["history"]) == (None, [])
        assert rig.state(rig.engines[0]) == "ready"

    share(case)


def test_a_model_may_be_asked_what_it_does_and_costs() -> None:
    async def case(rig: Rig) -> None:
        here, away = await said(rig, "GET", f"/admin/plan/{A}?prompt_tokens=100"), await said(rig, "GET", f"/admin/plan/{B}")
        assert (here["model"], here["prompt_tokens"], here["fraction"], here["decode_tokens_per_s"]) == (A, 100, 1.0, None)
        (there,), (out,) = here["devices"], away["devices"]
        assert (there["fits"], out["fits"], out["could_fit"], out["preempt"]) == (True, False, True, None)
        moves = (await said(rig, "GET", f"/admin/models/{A}"))["lodgers"][0]
        assert there["preempt"]["mean_s"] == pytest.approx(moves["into"]["mean_s"] + moves["out"]["mean_s"], abs=0.002)
        assert await code(rig, "GET", "/admin/plan/other") == (404, "no_such_model")
        for query in ("fraction=2", "fraction=nan", "prompt_tokens=-1", "prompt_tokens=x"):
            assert await code(rig, "GET", f"/admin/plan/{B}?{query}") == (422, "invalid_value"), query

    share(case)


def test_metrics_count_swaps_and_say_who_lies_where() -> None:
    async def case(rig: Rig) -> None:
        text = await rig.metrics()
        assert 'leeway_model_resident{device="gpu0",model="org/a:1b"} 1.0' in text
        assert 'leeway_model_resident{device="gpu0",model="b"} 0.0' in text
        assert metric(text, "leeway_model_expected_start_seconds") > 0
        assert 'leeway_model_expected_start_seconds{model="org/a:1b"} 0.0' in text
        assert metric(text, "leeway_swaps_total") == 0
        assert (await ask(rig, B)).status == 200
        await steps(rig, 1)
        text = await rig.metrics()
        assert 'leeway_swaps_total{model="b",outcome="done"} 1.0' in text
        assert 'leeway_model_resident{device="gpu0",model="b"} 1.0' in text
        assert metric(text, "leeway_swap_seconds_total") > 0
        assert metric(text, "leeway_swap_prediction_error") > 0
        assert metric(text, "leeway_model_load_seconds") > 0

    share(case)


def test_who_waits_is_told_when_the_model_is_expected() -> None:
    async def case(rig: Rig) -> None:
        expected_s = rig.app.plane.lodging.expected_s(B, rig.app.plane.now())
        assert expected_s is not None
        assert expected_s > 1.0
        refused = await rig.ask({**chat(), "model": B}, headers={"x-leeway-admit": "now"})
        assert (refused.status, refused.error["code"]) == (429, "would_wait")
        assert int(refused.headers[b"retry-after"]) >= expected_s
        refused = await rig.ask({**chat(), "model": B}, headers={"x-llm-d-inference-ttl": "1s"})
        assert (refused.status, refused.error["code"]) == (503, "model_not_loaded")
        assert int(refused.headers[b"retry-after"]) == math.ceil(expected_s)
        peer = await rig.connect()
        peer.ask({**chat(stream=True), "model": B}, headers={"x-leeway-wait-status": "sse"})
        seen = await peer.seen(b"leeway.status")
        told = json.loads(seen.partition(b"data: ")[2].partition(b"\n")[0])
        assert (told["state"], told["waiting"]) == ("waiting", 1)
        assert 0 < told["expected_start_ms"] <= told["expected_wait_ms"]
        record = (await rig.ask(path=f"/v1/requests/{told['id']}", method="GET")).json
        assert record["state"] == "waiting"
        assert 0 < record["expected_start_ms"] <= told["expected_wait_ms"]
        answer = await peer.answer()
        assert (answer.status, answer.whole, b"[DONE]" in answer.body) == (200, True, True)
        record = (await rig.ask(path=f"/v1/requests/{told['id']}", method="GET")).json
        assert record["spent_ms"]["swap"] >= 1500, "half a second to sleep, one to wake"

    share(case)


def test_without_devices_there_is_nothing_to_tell() -> None:
    async def case(rig: Rig) -> None:
        for method, path in (
            ("GET", "/admin/models"),
            ("GET", "/admin/models/m"),
            ("GET", "/admin/plan"),
            ("GET", "/admin/plan/m"),
        ):
            assert await code(rig, method, path) == (404, "no_devices")
        for path in ("/admin/models/m/load", "/admin/models/m/unload", "/admin/plan"):
            assert await code(rig, "POST", path) == (404, "no_devices")
        assert await code(rig, "POST", "/admin/models/m/pin", {"pinned": True}) == (404, "no_devices")
        text = await rig.metrics()
        assert "leeway_swap" not in text
        assert "leeway_model_" not in text

    run(case)


def test_a_what_if_that_nobody_waits_for_has_its_turn_until_it_ends() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> SwapPlan:
        begun.set()
        assert may_end.wait(10.0)
        return SwapPlan((), 0.0, 0.0)

    async def main() -> None:
        task = asyncio.create_task(to_its_end(work))
        await until(begun.is_set)
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)

    asyncio.run(main())
