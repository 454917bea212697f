"""Faults that a whole fleet or one of its members has, judged by all four ledgers: a few cases of their own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tests.faults.checker import Kind, Verdict, View, check
from tests.faults.client import connect
from tests.faults.ledger import STAY, ClientRecord, Plan, Request, request
from tests.faults.matrix_run import SETTINGS
from tests.faults.phases import Fault
from tests.faults.rig import Group, Rig, run
from tests.faults.script import GOOD, Wish

COUNT = 24
PIPELINED = 12
Result = TypeVar("Result")
Play = Callable[[Rig, Group], Awaitable[Result]]
COMPLETE: frozenset[Kind] = frozenset(("complete",))
ERROR: frozenset[Kind] = frozenset(("error",))


async def judged(rig: Rig, requests: list[Request], right: frozenset[Kind]) -> tuple[Verdict, list[ClientRecord]]:
    """Send them all at once, and judge when everything is settled."""
    records = list(await asyncio.gather(*(rig.ask(one) for one in requests)))
    await rig.settled_for([one.id for one in requests], 30.0)
    await rig.at_rest(30.0)

    def allowed(record: ClientRecord, seen: View) -> frozenset[Kind]:
        return right

    return check(rig.ledgers, allowed), records


def some(stream: bool = False, wish: Wish = GOOD, plan: Plan = STAY, pad: int = 0) -> list[Request]:
    return [request(f"r{i}", "m", stream, wish, plan, asks_usage=i % 2 == 0, pad=pad) for i in range(COUNT)]


def with_rig(backends: int, play: Play[Result]) -> Result:
    """Run `play(rig, group)` with a gateway in front of so many backends of one model."""

    async def body() -> Result:
        rig = Rig({"m": backends}, SETTINGS, seed=1, inside=True)
        await rig.start()
        try:
            return await play(rig, rig.groups["m"])
        finally:
            await rig.stop()

    return run(body())


@pytest.mark.parametrize("status", [429, 503])
def test_one_of_three_backends_refuses_and_nobody_notices(status: int) -> None:
    async def play(rig: Rig, group: Group) -> Verdict:
        group.backends[0].mode = Wish(status=status, retry_after=7)
        return (await judged(rig, some(), COMPLETE))[0]

    verdict = with_rig(3, play)
    assert verdict.breaches == []
    assert verdict.runs == COUNT + verdict.second_runs_allowed


@pytest.mark.parametrize("status", [429, 503])
def test_a_lone_backends_refusal_goes_through_with_its_retry_after(status: int) -> None:
    async def play(rig: Rig, group: Group) -> tuple[Verdict, ClientRecord]:
        group.backends[0].mode = Wish(status=status, retry_after=7)
        verdict, records = await judged(rig, some()[:1], COMPLETE)
        return verdict, records[0]

    verdict, record = with_rig(1, play)
    assert verdict.breaches == []
    assert (record.status, record.headers[b"retry-after"], verdict.runs) == (status, b"7", 1)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("at", ["headers", "body"])
@pytest.mark.parametrize("do", ["rst", "fin"])
def test_a_fleet_that_reads_and_closes_runs_each_request_once(do: str, at: str, stream: bool) -> None:
    async def play(rig: Rig, group: Group) -> Verdict:
        for backend in group.backends:
            backend.mode = Wish(do=do, at=at)  # type: ignore[arg-type]
        return (await judged(rig, some(stream), ERROR))[0]

    verdict = with_rig(3, play)
    assert verdict.breaches == []
    assert verdict.runs == COUNT


def test_a_backend_that_goes_away_costs_no_request() -> None:
    async def play(rig: Rig, group: Group) -> Verdict:
        group.proxies[0].arm(Fault("refuse", "connect"))
        return (await judged(rig, some(stream=True), COMPLETE))[0]

    verdict = with_rig(3, play)
    assert verdict.breaches == []
    assert verdict.amplification == 1.0


def test_a_flood_of_interim_answers_ends_and_a_few_pass() -> None:
    async def play(rig: Rig, group: Group) -> tuple[Verdict, Verdict]:
        few = (await judged(rig, some(wish=Wish(do="flood", k=5)), COMPLETE))[0]
        rig.forget()
        return few, (await judged(rig, some(wish=Wish(do="flood", k=100)), ERROR))[0]

    few, many = with_rig(1, play)
    assert few.breaches == many.breaches == []


@pytest.mark.parametrize(
    "plan",
    [Plan(drip=10), Plan(expects_continue=True), Plan(stall_s=0.05)],
    ids=["drips", "waits for 100", "reads late"],
)
def test_odd_clients_are_served(plan: Plan) -> None:
    async def play(rig: Rig, group: Group) -> tuple[Verdict, list[ClientRecord]]:
        return await judged(rig, some(True, Wish(text=30_000), plan, pad=20_000), COMPLETE)

    verdict, records = with_rig(1, play)
    assert verdict.breaches == []
    assert all(record.continued for record in records) == plan.expects_continue


def test_a_client_that_never_reads_and_leaves_is_left_by_the_backend() -> None:
    async def play(rig: Rig, group: Group) -> Verdict:
        plan = Plan(leave="stalled", stall_s=0.5)  # by then the backend has begun, on a slow machine, too
        wish = Wish(do="hang", at="event", k=2)
        gone: frozenset[Kind] = frozenset(("gone",))
        return (await judged(rig, some(True, wish, plan)[:6], gone))[0]

    verdict = with_rig(1, play)
    assert verdict.breaches == []
    assert len(verdict.abort_s) == 6


def test_pipelined_requests_are_answered_in_order() -> None:
    async def play(rig: Rig, group: Group) -> list[bytes]:
        connection = await connect(rig.port, rig.ledgers)
        records = await connection.ask(some(True)[:PIPELINED], 10.0)
        connection.close()
        return [record.body for record in records]

    bodies = with_rig(3, play)
    assert len(bodies) == PIPELINED
    assert all(b'"id":"r%d"' % i in body for i, body in enumerate(bodies))
