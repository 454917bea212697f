"""The desk's line: tiers, their share, ageing, tenants; and a plain list where nothing of that is known."""

from random import Random

import pytest

from gateway.config import ModelSpec, OrderName
from gateway.jobs import Job
from gateway.line import Capacity, Line
from gateway.plan import Ticket, order_key
from gateway.tenants import FAIR_LEAD_TOKENS
from predictor.request import LengthEstimate

NEVER = float("inf")
LENGTHS = LengthEstimate(10, 50, 100, "test")


class Waits:
    """A line, and its tickets by name."""

    def __init__(self, order: OrderName = "mh", rho: float = -1.0, age_s: float = 120.0, alpha: float = 0.5) -> None:
        self.rule = ModelSpec("m", "plan", order=order, rho=rho, age_s=age_s, alpha=alpha)
        self.line = Line(self.rule)
        self.tickets: dict[str, Ticket] = {}

    def come(
        self, name: str, *, at_s: float = 0.0, tokens: int = 100, cost_s: float = 1.0, due_s: float = NEVER, tenant: str = ""
    ) -> None:
        job = Job(name, "m", tokens, LENGTHS, at_s, deadline_s=due_s, tenant=tenant)
        ticket = self.tickets[name] = Ticket(job)
        ticket.key = order_key(ticket, self.rule)
        self.line.knows_slo = self.line.knows_slo or due_s < NEVER
        self.line.join(ticket, at_s, (cost_s, cost_s))

    def go(self, name: str, now_s: float) -> tuple[int, float]:
        return self.line.remove(self.tickets.pop(name), now_s, sent=True)

    def order(self, now_s: float = 0.0, replicas: int = 1) -> list[str]:
        return [ticket.job.id for ticket in self.line.in_order(now_s, 0.0, replicas)]


@pytest.mark.parametrize("order", ["mh", "lrb", "sjf"])
def test_without_deadlines_it_is_the_list_itself(order: OrderName) -> None:
    waits = Waits(order)
    for name, tokens in (("c", 300), ("a", 100), ("b", 200)):
        waits.come(name, tokens=tokens)
    assert waits.line.plain
    assert waits.line.in_order(5.0) is waits.line.tickets
    assert waits.order() == ["a", "b", "c"]
    assert waits.go("b", 1.0) == (1, 0.0)
    assert waits.order() == ["a", "c"]


def test_those_who_can_be_in_time_go_first_by_deadline() -> None:
    waits = Waits(rho=0.0)
    waits.come("no promise", tokens=1)
    waits.come("late", due_s=0.5)
    waits.come("second", due_s=5.0)
    waits.come("first", due_s=2.0)
    assert waits.order() == ["first", "second", "no promise", "late"]
    assert waits.line.tiers == (2, 2)


def test_as_many_as_possible_are_planned_in_time() -> None:
    """Four that fit one after another against one as long as they all with an earlier deadline."""
    waits = Waits(alpha=0.0)
    waits.come("long", due_s=4.3, cost_s=4.0, tokens=4000)
    for i in range(4):
        waits.come(f"s{i}", due_s=4.5, cost_s=1.0)
    assert waits.order()[-1] == "long"
    assert waits.line.tiers == (4, 1)
    assert waits.order(0.01, replicas=3)[0] == "long", "three replicas have time for all"
    assert waits.line.tiers == (5, 0)


def test_time_in_the_second_tier_is_told() -> None:
    waits = Waits(alpha=0.0)
    waits.come("a", due_s=1.2, cost_s=1.0)
    waits.come("b", due_s=1.3, cost_s=1.0)
    assert waits.order(0.0) == ["b", "a"]
    assert waits.line.tiers == (1, 1)
    assert waits.order(0.1) == ["b", "a"]
    assert waits.go("a", 0.25) == (2, pytest.approx(0.25))
    assert waits.go("b", 0.25) == (1, 0.0)
    assert len(waits.line) == 0


@pytest.mark.parametrize("rho", [0.1, 0.3])
def test_the_second_tier_gets_its_share_of_the_tokens(rho: float) -> None:
    waits = Waits(rho=rho)
    rng, now_s, names = Random(1), 0.0, iter(range(100_000))
    sent = {1: 0, 2: 0}
    for _ in range(1500):
        while waits.line.tiers[0] < 5 or waits.line.tiers[1] < 5 or len(waits.line) < 10:
            due_s = now_s + (1000.0 if rng.random() > rho else 0.001)
            waits.come(str(next(names)), at_s=now_s, tokens=rng.randrange(50, 2000), due_s=due_s, cost_s=0.01)
            waits.order(now_s)
        first = waits.order(now_s)[0]
        tokens = waits.tickets[first].job.prompt_tokens
        tier, _ = waits.go(first, now_s)
        sent[tier] += tokens
        now_s += 0.01
    assert sent[2] / (sent[1] + sent[2]) == pytest.approx(rho, rel=0.1)


def test_after_its_age_nobody_overtakes() -> None:
    waits = Waits(age_s=10.0)
    waits.come("old", at_s=0.0, tokens=9000)
    waits.come("late", at_s=1.0, due_s=1.5)
    waits.come("urgent", at_s=9.0, due_s=20.0)
    assert waits.order(9.5) == ["urgent", "late", "old"]
    assert waits.order(10.5) == ["old", "urgent", "late"]
    assert waits.order(11.5) == ["old", "late", "urgent"]


def test_by_deadline_alone() -> None:
    waits = Waits("edf")
    waits.come("none", tokens=1)
    waits.come("b", at_s=1.0, due_s=9.0)
    waits.come("a", at_s=2.0, due_s=5.0)
    waits.come("none too", at_s=3.0, tokens=1)
    assert waits.order(4.0) == ["a", "b", "none", "none too"]


def test_a_tenant_with_many_does_not_hold_up_another() -> None:
    waits = Waits()
    count = 40
    for i in range(count):
        waits.come(f"greedy{i}", tokens=400, tenant="greedy")
    assert waits.line.plain, "one tenant alone: nothing to share"
    for i in range(4):
        waits.come(f"small{i}", tokens=600, tenant="small")
    order = waits.order()
    lead = int(FAIR_LEAD_TOKENS / 500)
    assert order.index("small0") in range(lead, lead + 3)
    assert order.index("small3") < count - 5
    assert sorted(order) == sorted(waits.tickets)


def test_weights_share_in_proportion() -> None:
    waits = Waits()
    for i in range(240):
        for tenant, weight in (("one", 1.0), ("three", 3.0)):
            job = Job(f"{tenant}{i}", "m", 400, LENGTHS, 0.0, tenant=tenant, tenant_weight=weight)
            ticket = waits.tickets[job.id] = Ticket(job)
            ticket.key = order_key(ticket, waits.rule)
            waits.line.join(ticket, 0.0, (0.0, 0.0))
    sent = {"one": 0, "three": 0}
    for _ in range(300):
        first = waits.line.in_order(1.0)[0]
        sent[first.job.tenant] += 1
        waits.line.remove(first, 1.0, sent=True)
    assert 2.3 < sent["three"] / sent["one"] < 3.4


def test_who_comes_back_has_saved_nothing_up() -> None:
    waits = Waits()
    for i in range(100):
        waits.come(f"busy{i}", tokens=4000, tenant="busy")
    waits.come("idle0", tokens=10, tenant="idle")
    for i in range(50):
        waits.go(f"busy{i}", 1.0)
    waits.go("idle0", 1.0)
    for i in range(50):
        waits.come(f"idle{i + 1}", at_s=2.0, tokens=4000, tenant="idle")
    first = [name.startswith("busy") for name in waits.order(2.0)[:20]]
    assert 5 <= sum(first) <= 15, "both are served from now on"


def test_the_pace_of_a_line_is_learned() -> None:
    capacity = Capacity()
    assert capacity.of(4) == 4.0
    now_s = 0.0
    capacity.waits(now_s)
    for _ in range(200):
        now_s += 0.5
        capacity.left(0.5, True, False, now_s)
    assert capacity.of(4) == pytest.approx(1.0, rel=0.05)
    assert capacity.of(0) == pytest.approx(1.0, rel=0.05)
    for _ in range(400):
        now_s += 0.5
        capacity.left(0.0, True, False, now_s)
    assert capacity.of(4) == pytest.approx(0.2), "never below a share of the replicas"


def test_nobody_is_lost_or_twice_in_any_order() -> None:
    rng = Random(7)
    for order in ("mh", "lrb", "edf", "sjf", "fcfs"):
        waits, now_s, number = Waits(order, age_s=3.0), 0.0, 0
        for _ in range(600):
            now_s += rng.random() * 0.1
            if rng.random() < 0.6 or not waits.tickets:
                number += 1
                due_s = NEVER if rng.random() < 0.3 else now_s + rng.random() * 4
                tenant = rng.choice(["", "a", "b"])
                tokens = rng.randrange(1, 4000)
                waits.come(str(number), at_s=now_s, tokens=tokens, cost_s=tokens / 4000, due_s=due_s, tenant=tenant)
            else:
                waits.line.remove(waits.tickets.pop(rng.choice(list(waits.tickets))), now_s, sent=rng.random() < 0.7)
            told = waits.order(now_s, 2)
            assert sorted(told) == sorted(waits.tickets)
            assert sum(waits.line.tiers) == len(told)
