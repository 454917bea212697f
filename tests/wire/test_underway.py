"""GET /v1/requests/ID of requests that wait or run: told to their own key alone, until they are over, and then as ever."""

import asyncio
import hashlib
from dataclasses import replace
from typing import Any

import pytest

from gateway.config import BackendSpec, ClassSpec, KeySpec, ModelSpec
from gateway.spending import STAGES
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.scripted import DONE, FINISH, Call, ScriptedBackend, event

ONE, TWO = "sk-underway-one", "sk-underway-two"
KEYS = tuple(KeySpec(hashlib.sha256(name.encode()).hexdigest(), name) for name in (ONE, TWO))
PLANNED = replace(CONFIG, keys=KEYS, models=(ModelSpec("m", "plan", rho=0.0),), classes=(ClassSpec("chat", ttft_ms=60_000),))


def one_at_once(spec: BackendSpec) -> BackendSpec:
    return replace(spec, max_in_flight=1)


class Steps:
    """A backend's play: the first event when `begin` is set, the rest when `end` is."""

    def __init__(self) -> None:
        self.begin, self.end = asyncio.Event(), asyncio.Event()
        self.calls: list[Call] = []

    async def __call__(self, call: Call) -> None:
        self.calls.append(call)
        await self.begin.wait()
        call.start_events()
        call.events(event("x"))
        await self.end.wait()
        call.end_events(FINISH, DONE)


async def ask_of(rig: Rig, name: str) -> dict[str, Any]:
    answer = await rig.ask(path=f"/v1/requests/{name}", method="GET")
    assert answer.status == 200, answer
    record = dict(answer.json)
    assert sum(record["spent_ms"].values()) == pytest.approx(record["duration_ms"], abs=0.2)
    assert set(record["spent_ms"]) <= set(STAGES)
    return record


def sent(rig: Rig, name: str, **headers: str) -> asyncio.Task[Any]:
    return asyncio.create_task(rig.ask(chat("0", stream=True), headers={"x-request-id": name, **headers}))


def test_a_request_is_told_of_from_the_line_to_its_end() -> None:
    backend, steps = ScriptedBackend("b0"), Steps()

    async def case(rig: Rig) -> None:
        backend.play = steps
        asked = [sent(rig, "runs", **{"x-slo-class": "chat"})]
        await until(lambda: len(steps.calls) == 1)
        for number, (name, ttft) in enumerate((("second", "50000"), ("first", "30000"), ("late", "1")), 1):
            asked.append(sent(rig, name, **{"x-slo-ttft-ms": ttft}))
            await until(lambda count=number: rig.app.plane.held == count)

        runs = await ask_of(rig, "runs")
        assert (runs["state"], runs["backend"], runs["end"], runs["status"], runs["attempts"]) == (
            "running",
            "b0",
            None,
            None,
            1,
        )
        assert (runs["expected_start_ms"], runs["slo"]["kept"]) == (0.0, None)
        assert 0 < runs["slo"]["budget_left_ms"] < 60_000
        assert "decode" not in runs["spent_ms"] or runs["spent_ms"]["decode"] == 0
        waits = {name: await ask_of(rig, name) for name in ("second", "first", "late")}
        for record in waits.values():
            assert (record["state"], record["backend"], record["attempts"]) == ("waiting", None, 0)
            assert list(record["spent_ms"]) == list(STAGES[: STAGES.index("retry")])
            assert record["expected_start_ms"] >= 1000
        assert 0 < waits["second"]["slo"]["budget_left_ms"] <= 50_000
        assert waits["late"]["slo"]["budget_left_ms"] < 0
        again = await ask_of(rig, "second")
        assert again["slo"]["budget_left_ms"] <= waits["second"]["slo"]["budget_left_ms"]

        steps.begin.set()
        await until(
            lambda: backend.calls[0].end == "open" and rig.app.plane.underway._placements["runs"].account.first_byte_s >= 0
        )
        assert (await ask_of(rig, "runs"))["state"] == "streaming"
        steps.end.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        await until(lambda: not len(rig.app.plane.underway))
        over = {name: await ask_of(rig, name) for name in ("runs", "second", "first", "late")}
        assert {(record["state"], record["end"], record["status"]) for record in over.values()} == {
            ("finished", "complete", 200)
        }
        assert "ahead" not in over["late"]
        assert over["late"]["slo"]["tier"] == 2

    run(case, PLANNED, backends=(backend,), spec=one_at_once, key=ONE)


def test_places_and_tiers_are_told_as_the_line_was_reckoned_last() -> None:
    backend, steps = ScriptedBackend("b0"), Steps()

    async def case(rig: Rig) -> None:
        backend.play = steps
        steps.begin.set()
        asked = [sent(rig, "a")]
        await until(lambda: len(steps.calls) == 1)
        for number, (name, ttft) in enumerate((("b", "20000"), ("d", "1"), ("c", "30000")), 1):
            asked.append(sent(rig, name, **{"x-slo-ttft-ms": ttft}))
            await until(lambda count=number: rig.app.plane.held == count)
        ((_, desk),) = rig.app.plane.desks
        order = [ticket.job.request_id for ticket in desk.line.in_order(rig.app.plane.now())]
        assert order == ["b", "c", "d"]
        told = {name: await ask_of(rig, name) for name in order}
        assert [told[name]["ahead"] for name in order] == [0, 1, 2]
        assert [told[name]["slo"]["tier"] for name in order] == [1, 1, 2]
        assert told["d"]["spent_ms"]["queue_2"] >= 0
        assert told["b"]["expected_start_ms"] <= told["d"]["expected_start_ms"]
        steps.end.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}

    run(case, PLANNED, backends=(backend,), spec=one_at_once, key=ONE)


@pytest.mark.parametrize("policy", ["plan", "round_robin"])
def test_nobody_else_is_told_of_it(policy: str) -> None:
    backend, steps = ScriptedBackend("b0"), Steps()

    async def case(rig: Rig) -> None:
        backend.play = steps
        asked = [sent(rig, "mine-1")]
        await until(lambda: len(steps.calls) == 1)
        asked.append(sent(rig, "mine-2"))
        await until(lambda: rig.app.plane.held == 1)
        assert ((await ask_of(rig, "mine-1"))["state"], (await ask_of(rig, "mine-2"))["state"]) == ("running", "waiting")
        for name in ("mine-1", "mine-2", "nobody's"):
            rig.key = TWO
            assert (await rig.ask(path=f"/v1/requests/{name}", method="GET")).error["code"] == "request_not_found"
            rig.key = ""
            assert (await rig.ask(path=f"/v1/requests/{name}", method="GET")).status == 401
        rig.key = ONE
        steps.begin.set()
        steps.end.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}

    config = replace(PLANNED, models=(ModelSpec("m", policy),))  # type: ignore[arg-type]
    run(case, config, backends=(backend,), spec=one_at_once, key=ONE)


def test_whatever_its_end_nothing_stays_under_way() -> None:
    backend, steps = ScriptedBackend("b0"), Steps()

    async def case(rig: Rig) -> None:
        backend.play = steps
        peers = [await rig.connect() for _ in range(2)]
        for number, peer in enumerate(peers):
            peer.ask(chat("0", stream=True), headers={"x-request-id": f"leaves-{number}"})
            await until(lambda count=number: len(steps.calls) + rig.app.plane.held == count + 1)
        assert len(rig.app.plane.underway) == 2
        for peer in peers:
            peer.leave()
        await until(lambda: not len(rig.app.plane.underway))
        refused = await rig.ask(chat("0", model="unknown"), headers={"x-request-id": "refused"})
        assert refused.status == 404
        assert not len(rig.app.plane.underway)
        for number in range(2):
            assert (await ask_of(rig, f"leaves-{number}"))["end"] == "client_gone"
        steps.begin.set()
        steps.end.set()

    run(case, PLANNED, backends=(backend,), spec=one_at_once, key=ONE)
