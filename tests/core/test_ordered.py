"""Engines that order their queues, in the gateway's picture and in the plan's price."""

import math
from dataclasses import replace
from random import Random

import pytest

from gateway.config import ModelSpec
from gateway.desk import Desk, Dispatch
from gateway.jobs import Job
from gateway.plan import Lane, opens_s
from gateway.views import View
from predictor.mirror import Mirror
from predictor.ordered import before, giver
from predictor.request import LengthEstimate
from predictor.seats import Seat
from tests.core.test_plan import LIMITS, PROFILE, RULE, planned, ticket

TOKEN_S, STEP_S, CHUNK = 100e-6, 0.010, 512


def job(name: str, prompt: int, due_s: float = math.inf, arrival_s: float = 0.0, output: int = 50) -> Job:
    return Job(name, "m", prompt, LengthEstimate(output, output, output, "test"), arrival_s, deadline_s=due_s)


def lane(scheduling: str, name: str = "a") -> Lane:
    mirror = Mirror(PROFILE, LIMITS)
    mirror.scheduling = scheduling
    return Lane(View(name, mirror=mirror), mirror)


def names(there: Lane) -> list[str]:
    return [seat.id for seat in there.mirror.filling]


@pytest.mark.parametrize(
    ("scheduling", "tier", "begun_due_s", "comes", "goes"),
    [
        ("leeway", 2, 1.0, job("new", 300, 2.0), True),  # tier 2 pauses for tier 1
        ("leeway", 1, 9.0, job("new", 300, 2.0), True),  # who is due later lets it pass
        ("leeway", 1, 2.0, job("new", 300, 9.0), False),
        ("leeway", 1, 2.0, job("new", 300), False),  # no promise: behind whoever has one
        ("leeway", 1, math.inf, job("new", 300), True),  # neither has: the least left first
        ("leeway", 1, math.inf, job("new", 7000), False),
        ("priority", 2, 1.0, job("new", 300, 2.0), False),  # who is begun keeps its place
        ("fcfs", 2, 1.0, job("new", 300, 2.0), False),
        ("", 2, 1.0, job("new", 300, 2.0), False),
    ],
)
def test_an_engine_is_open_to_whom_it_computes_first(
    scheduling: str, tier: int, begun_due_s: float, comes: Job, goes: bool
) -> None:
    there = lane(scheduling)
    there.mirror.dispatched(job("begun", 5000, begun_due_s), 0, 0.0, tier=tier)
    assert planned([ticket(comes)], [there], 0.2) == ([("new", "a")] if goes else [])
    if goes:
        assert names(there) == ["new", "begun"]
        assert there.mirror.opens_s(0.2, 0) < math.inf
    assert opens_s([there], RULE, 0.2) < 2.0, "by the passing of time"


def test_who_waits_for_its_turn_does_not_close_an_engine_to_those_before_it() -> None:
    there = lane("leeway")
    there.mirror.dispatched(job("begun", 5000, 5.0), 0, 0.0)
    line = [ticket(job("later", 900, 8.0)), ticket(job("sooner", 300, 2.0)), ticket(job("soonest", 200, 1.0))]
    assert planned(line, [there], 0.1) == [("sooner", "a"), ("soonest", "a")]
    assert names(there) == ["soonest", "sooner", "begun"]
    assert planned(line[:1], [there], 0.2) == []


def test_the_price_is_that_of_its_place() -> None:
    """Two engines with the same work; the one whose work would let it pass is the cheaper, by just that work."""
    both = lane("leeway", "a"), lane("leeway", "b")
    for there, due_s in zip(both, (2.0, 30.0), strict=True):
        there.mirror.dispatched(job("begun", 3000, due_s), 0, 0.0)
        there.reset(RULE, 0.0)
    asked = job("new", 400, 10.0)
    for there in both:
        there.aim(asked, 0, 0.0)
    behind, first = (there.ttft_s(400, 0) for there in both)
    assert first == pytest.approx(STEP_S + CHUNK * TOKEN_S + STEP_S + 400 * TOKEN_S)
    assert behind - first == pytest.approx((3000 - CHUNK) * TOKEN_S + 5 * STEP_S)
    assert planned([ticket(asked)], both) == [("new", "b")]


def test_stock_priorities_are_priced_by_the_numbers_that_were_sent() -> None:
    there = lane("priority")
    for name, due_s in (("runs", math.inf), ("late", 50.0), ("soon", 5.0)):
        there.mirror.dispatched(job(name, 1000, due_s), 0, 0.0 if name == "runs" else 0.01)
    assert names(there) == ["runs", "soon", "late"]
    there.reset(RULE, 0.02)
    waits = []
    for due_s in (1.0, 20.0, 60.0):
        there.aim(job("new", 100, due_s), 0, 0.02)
        waits.append(there.before_tokens)
    assert waits == [1000 - CHUNK, 2000 - CHUNK, 3000 - CHUNK]


def test_one_that_passes_is_foretold_at_its_place_and_the_others_later() -> None:
    """First tokens come in the order of computing; nobody is taken for computed by one that passed it, or for late."""
    mirror = lane("leeway").mirror
    mirror.dispatched(job("begun", 2000, 9.0), 0, 0.0)
    due_s = mirror.filling[0].due_s
    told_s = mirror.dispatched(job("new", 400, 2.0), 0, 0.02)
    assert told_s == pytest.approx(STEP_S + CHUNK * TOKEN_S - 0.02 + STEP_S + 400 * TOKEN_S)
    assert mirror.filling[1].due_s == pytest.approx(due_s + STEP_S + 400 * TOKEN_S)
    mirror.first_token("new", 0.02 + told_s)
    assert names_left(mirror) == {"begun"}
    mirror.look(0.02 + told_s)
    assert mirror.pending_tokens + 2 * CHUNK >= 2000 - CHUNK > mirror.pending_tokens > 0
    assert mirror.overdue_s == 0


def names_left(mirror: Mirror) -> set[str]:
    return {seat.id for seat in mirror.filling if seat.computed < seat.prompt_tokens}


def test_where_arrivals_count_nothing_changes() -> None:
    """Whatever is promised, figures and order are those of a mirror that knows no promises."""
    rng = Random(4)
    for scheduling in ("", "fcfs"):
        with_promises, without = lane(scheduling).mirror, lane("").mirror
        now_s = 0.0
        for number in range(60):
            now_s += rng.random() * 0.05
            asked = job(str(number), rng.randrange(10, 900), now_s + rng.uniform(0.1, 9.0))
            told = [mirror.dispatched(one, 0, now_s) for mirror, one in
                    ((with_promises, asked), (without, replace(asked, deadline_s=math.inf)))]  # fmt: skip
            assert told[0] == told[1]
            if rng.random() < 0.8 and without.filling:
                name = without.filling[0].id
                for mirror in (with_promises, without):
                    mirror.first_token(name, now_s)
            assert with_promises.pending_tokens == without.pending_tokens


def test_a_desk_sends_tier_1_to_an_engine_that_computes_tier_2() -> None:
    desk = Desk(ModelSpec("m", "plan", ahead_tokens=0, order="mh"), Random(1))
    view = View("a", mirror=lane("leeway").mirror)
    desk.sync([view])
    (first,) = desk.arrived(job("doomed", 6000, 0.05), 0.0)
    assert isinstance(first, Dispatch)
    assert desk.arrived(job("plain", 7000), 0.01) == []
    (second,) = desk.arrived(job("urgent", 300, 1.0), 0.02)
    assert isinstance(second, Dispatch)
    assert second.job.id == "urgent"
    assert second.estimate_s < 0.2
    assert desk.first_token("urgent", 0.2) == []
    assert [action.job.id for action in desk.finished("doomed", 50, 0.9)] == ["plain"]


def test_tokens_of_the_step_in_progress_are_before_nobody() -> None:
    queue = [((1, 5.0), 1000, 500.0), ((2, 70.0), 600, 60.0)]
    assert before(queue, (1, 4.0), 1100) == (0, 0.0)
    assert before(queue, (1, 6.0), 1100) == (500, 250.0), "500 of the 1600 are being computed"
    assert before(queue, (2, 900.0), 1100) == (1100, pytest.approx(560 * 1100 / 1600))
    assert before([], (1, 4.0), 0) == (0, 0.0)
    assert before(queue, (1, 4.0), 1900) == (300, 0.0), "what is computed again after a preemption is before everybody"


def test_the_largest_budget_beyond_its_redo_gives_its_slot() -> None:
    seats = []
    for name, tpot_s, prompt in (("tight", 0.0101, 64), ("loose", 0.5, 64), ("redo", 0.5, 8000)):
        seat = Seat(replace(job(name, prompt, output=100), tpot_s=tpot_s), 0, 0.0, None)
        seat.first_s, seat.computed, seat.reckoned = 0.0, prompt, 10
        seats.append(seat)
    gives, spare_s = giver(seats, STEP_S, TOKEN_S, 0.1)
    assert gives == "loose"
    assert spare_s == pytest.approx(0.5 * 99 - 0.1 - 90 * STEP_S - STEP_S - 74 * TOKEN_S)
    assert giver(seats[:1], STEP_S, 0.01, 0.1) == ("", 0.0), "it could not be computed again in time"
