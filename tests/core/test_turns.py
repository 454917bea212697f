"""Whose turn it is: by what was sent since he came, the heaviest later, and nothing of it where promises are known."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ModelSpec
from gateway.desk import Desk, EngineView
from gateway.handicap import KNOWN
from gateway.jobs import Dispatch, Job
from gateway.plan import Ticket, order_key
from gateway.turns import LATER, Turns
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate


def ticket(name: str, tokens: int = 1, at_s: float = 0.0) -> Ticket:
    return Ticket(Job(name, "m", tokens, LengthEstimate(tokens, tokens, tokens, "test"), at_s))


class Waits:
    """A line by size whose first one is sent on demand, as the desk's."""

    def __init__(self, after: float) -> None:
        self.rule = ModelSpec("m", "plan", order="sjf", age_rate=0.0, turn_after=after)
        self.turns = Turns(after, 1000.0)
        self.line: list[Ticket] = []
        self.came_to_s: dict[str, float] = {}
        self.sent_s = 0.0

    @property
    def waiting_s(self) -> float:
        return sum(each.work_s for each in self.line)

    def come(self, made: Ticket, work_s: float) -> Ticket:
        self.turns.came(made, work_s)
        self.line.append(made)
        self.came_to_s[made.job.id] = self.sent_s
        return made

    def go(self) -> Ticket:
        self.turns.due(0.0)
        first = min(self.line, key=lambda each: order_key(each, self.rule))
        self.line.remove(first)
        self.turns.left(first, True)
        self.sent_s += first.work_s
        return first

    def passed_s(self, made: Ticket) -> float:
        """Work that was sent since it came."""
        return self.sent_s - self.came_to_s[made.job.id]


def test_a_large_one_is_passed_until_it_has_seen_the_line_of_now_go() -> None:
    waits = Waits(1.0)
    large = waits.come(ticket("large", 100), 2.0)
    passing = 0
    for number in range(20):  # as fast as work is sent: the line is that of the large one and of one small one
        waits.come(ticket(f"small {number}"), 1.0)
        if waits.go() is large:
            break
        passing += 1
    assert passing == 3  # as much work as waits then: itself and the one that came last


@pytest.mark.parametrize(("after", "first"), [(0.0, "large"), (1000.0, "small")])
def test_the_two_ends(after: float, first: str) -> None:
    waits = Waits(after)
    waits.come(ticket("large", 100), 5.0)
    waits.come(ticket("small", 1), 1.0)
    assert waits.go().job.id == first


def test_turns_are_in_the_order_of_arrival() -> None:
    waits = Waits(0.0)
    for name, tokens in (("a", 50), ("b", 100), ("c", 1)):
        waits.come(ticket(name, tokens), float(tokens))
    assert [waits.go().job.id for _ in range(3)] == ["a", "b", "c"]


def test_who_gives_up_does_not_count_as_sent() -> None:
    turns = Turns(1.0, 1000.0)
    waiting, gone, sent = ticket("waiting"), ticket("gone"), ticket("sent")
    for each in (waiting, gone, sent):
        turns.came(each, 1.0)
    turns.left(gone, False)
    assert turns.due(1.0) == []
    turns.left(sent, True)
    assert turns.due(1.0) == [waiting]
    assert turns.due(1.0) == []  # told once


def test_after_so_long_nobody_passes_any_more() -> None:
    waits = known(1000.0)
    heavy = waits.come(ticket("heavy", 900, 5.0), 3.0)
    waits.come(ticket("short", 1, 6.0), 0.5)
    assert waits.turns.due(1004.9) == []
    assert waits.turns.due(1005.0) == [heavy]
    assert waits.go() is heavy


def known(after: float) -> Waits:
    """A line that has seen enough to know who is heavy."""
    waits = Waits(after)
    for number in range(KNOWN):
        waits.come(ticket(f"known {number}"), 1.0)
        waits.go()
    return waits


def test_the_heaviest_stand_back_and_get_their_turn_later() -> None:
    waits = known(1.0)
    heavy = waits.come(ticket("heavy", 1), 3.0)  # as short as the others by its key
    other = waits.come(ticket("other", 500), 1.0)
    assert (heavy.group, other.group) == (1, 0)
    sent = []
    while heavy in waits.line:
        waits.come(ticket(f"more {len(sent)}", 1), 1.0)
        sent.append(waits.go())
    assert sent[-1] is heavy
    assert other in sent
    assert waits.passed_s(heavy) - heavy.work_s >= LATER * waits.waiting_s


def test_the_lightest_pass_turns() -> None:
    waits = Waits(0.0)  # everybody else's turn is at once
    for number in range(2 * KNOWN):  # one in two takes a hundredth of the others' work
        waits.come(ticket(f"known {number}"), 1.0 if number % 2 else 0.01)
        waits.go()
    waits.come(ticket("other", 100), 1.0)
    light = waits.come(ticket("light", 1), 0.005)
    assert light.group == -1
    assert waits.go() is light


def test_the_heaviest_go_when_nobody_else_waits() -> None:
    waits = known(1.0)
    heavy = waits.come(ticket("heavy", 900), 3.0)
    assert waits.go() is heavy


WORKS = st.lists(st.tuples(st.floats(0.01, 10.0), st.integers(0, 2)), min_size=1, max_size=120)


@given(WORKS, st.sampled_from((0.3, 0.8, 2.0)))
def test_nobody_is_passed_once_it_is_his_turn_and_none_gets_it_early(arrivals: list[tuple[float, int]], after: float) -> None:
    """After his turn came only such go before him as had theirs before; a turn comes with the work that makes it due."""
    waits = Waits(after)
    had: list[Ticket] = []
    for number, (work_s, goes) in enumerate(arrivals):
        waits.come(ticket(f"{number}", max(1, int(work_s * 100))), work_s)
        for _ in range(min(goes, len(waits.line))):
            limit_s = after * waits.waiting_s
            for each in waits.turns.due(0.0):
                assert waits.passed_s(each) >= limit_s - 1e-6
                had.append(each)
            left = [each for each in had if each in waits.line]
            gone = waits.go()
            assert not left or gone is left[0]


PROFILE = StepProfile(0.010, 100e-6, 50e-6, 0.0)
LIMITS = EngineLimits(1000, 16, 8, 512, 8192)


def left_in_order(rule: ModelSpec, promise_s: float = 0.0) -> list[str]:
    """A desk's line worked off by one replica, one prompt at a time: a large one, and small ones that come all the time."""
    desk = Desk(rule, Random(1))
    desk.added("a", EngineView(PROFILE, LIMITS))
    order: list[str] = []

    def job(name: str, tokens: int, at_s: float) -> Job:
        made = Job(name, "m", tokens, LengthEstimate(4, 4, 4, "test"), at_s)
        return replace(made, deadline_s=at_s + promise_s) if promise_s else made

    actions = desk.arrived(job("first", 4000, 0.0), 0.0) + desk.arrived(job("large", 6000, 0.0), 0.0)
    for number in range(40):
        now_s = 0.1 * (number + 1)
        actions += desk.arrived(job(f"small {number}", 2000, now_s), now_s)
        sent = [action.job.id for action in actions if isinstance(action, Dispatch)]
        order += sent
        actions = []
        for name in sent:
            actions += desk.first_token(name, now_s) + desk.finished(name, 4, now_s)
    return order


def test_a_desk_gives_turns() -> None:
    by_size = left_in_order(ModelSpec("m", "plan", order="sjf", ahead_tokens=0, age_rate=0.0, turn_after=0.0))
    by_turns = left_in_order(ModelSpec("m", "plan", order="sjf", ahead_tokens=0, age_rate=0.0))
    assert "large" not in by_size
    assert "large" in by_turns


def test_where_promises_are_known_they_decide() -> None:
    rule = ModelSpec("m", "plan", order="mh", ahead_tokens=0, age_rate=0.0)
    assert left_in_order(rule, 0.5) == left_in_order(replace(rule, turn_after=0.0), 0.5)
