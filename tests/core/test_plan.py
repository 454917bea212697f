"""The late plan on small tables: order, holder, closed to those behind, memory, and early stopping."""

from collections.abc import Sequence
from math import inf, nan

import pytest

from gateway.config import ModelSpec
from gateway.jobs import Job
from gateway.plan import WALK, Lane, Ticket, UntrustedError, cheapest, opens_s, order_key, walk
from gateway.views import View
from predictor.mirror import Mirror
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate

PROFILE = StepProfile(0.010, 100e-6, 50e-6, 0.0)
LIMITS = EngineLimits(1000, 16, 8, 512, 8192)
RULE = ModelSpec("m", "plan", ahead_tokens=0, margin=0.0)


def job(name: str, prompt: int = 1000, output: int = 50, arrival_s: float = 0.0, prefix: tuple[int, ...] = ()) -> Job:
    return Job(name, "m", prompt, LengthEstimate(output, output, output, "test"), arrival_s, prefix, "", 100)


def ticket(asked: Job, rule: ModelSpec = RULE, avoid: frozenset[str] = frozenset()) -> Ticket:
    made = Ticket(asked, avoid)
    made.key = order_key(made, rule)
    return made


def lanes(count: int = 2, profiles: Sequence[StepProfile] = ()) -> list[Lane]:
    made = []
    for at in range(count):
        mirror = Mirror(profiles[at] if profiles else PROFILE, LIMITS)
        made.append(Lane(View("abcdefgh"[at], mirror=mirror), mirror))
    return made


def planned(line: Sequence[Ticket], there: Sequence[Lane], now_s: float = 0.0, rule: ModelSpec = RULE) -> list[tuple[str, str]]:
    for lane in there:
        lane.reset(rule, now_s)
    out = []
    for each, lane, hit_tokens, _ in walk(line, there, rule, now_s):
        lane.view.sent(now_s)
        lane.mirror.dispatched(each.job, hit_tokens, now_s)
        out.append((each.job.id, lane.name))
    return out


PREFIX = tuple(range(10))


def hold_prefix(lane: Lane, name: str = "old", output: int = 10) -> None:
    lane.mirror.dispatched(job(name, 1000, output, prefix=PREFIX), 0, 0.0)


@pytest.mark.parametrize(
    ("rule", "order"),
    [
        (RULE, "short cached old long"),
        (ModelSpec("m", "plan", order="fcfs"), "old short long cached"),
        (ModelSpec("m", "plan", age_rate=0.0), "short cached long old"),
        (ModelSpec("m", "plan", age_rate=100000.0), "old short long cached"),
    ],
)
def test_the_order_of_the_line(rule: ModelSpec, order: str) -> None:
    waiting = [
        ticket(job("old", 2000, 1000, arrival_s=0.0), rule),
        ticket(job("short", 100, 50, arrival_s=5.0), rule),
        ticket(job("long", 1000, 1200, arrival_s=5.1), rule),
        ticket(job("cached", 2000, 50, arrival_s=5.2, prefix=PREFIX), rule),
    ]
    waiting[3].best_hit = 1900
    keyed = sorted(waiting, key=lambda each: order_key(each, rule))
    assert " ".join(each.job.id for each in keyed) == order


def test_bounded_overtaking_goes_by_arrival_and_handicap() -> None:
    rule = ModelSpec("m", "plan", overtaking_s=20.0)
    old, short = Ticket(job("old", arrival_s=0.0)), Ticket(job("short", arrival_s=9.0))
    old.handicap_s, short.handicap_s = 20.0, 10.0
    assert order_key(short, rule) < order_key(old, rule)
    short.handicap_s = 11.5
    assert order_key(old, rule) < order_key(short, rule)


def test_each_idle_replica_gets_one_and_the_rest_waits() -> None:
    line = [ticket(job(name)) for name in "wxyz"]
    there = lanes(3)
    got = planned(line, there)
    assert [name for name, _ in got] == ["w", "x", "y"]
    assert {name for _, name in got} == {"a", "b", "c"}
    assert planned(line[3:], there) == []
    assert opens_s(there, RULE, 0.0) == pytest.approx(0.0612)


def test_one_waits_for_the_holder_of_its_prefix() -> None:
    there = lanes(2)
    hold_prefix(there[0])
    line = [ticket(job("again", prefix=PREFIX)), ticket(job("other"))]
    assert planned(line, there, 0.001) == [("other", "b")], "900 of 1000 tokens are worth the wait for a"
    assert planned(line[:1], there, 0.0625) == [("again", "a")], "its last chunk is under way: a is open"


@pytest.mark.parametrize(("prompt", "goes_to"), [(3000, "a"), (7400, "b")])
def test_memory_that_is_long_waited_for_sends_one_elsewhere(prompt: int, goes_to: str) -> None:
    """The faster one is cheaper, unless its KV is full for a thousand steps."""
    slow = StepProfile(0.013, 130e-6, 50e-6, 0.0)
    there = lanes(2, (PROFILE, slow))
    for lane, tokens in zip(there, (prompt, 100), strict=True):
        for name in ("one", "two"):
            lane.mirror.dispatched(job(name, tokens, 1000), 0, 0.0)
        for name in ("one", "two"):
            lane.mirror.first_token(name, 4.0)
    assert there[0].mirror.fits(job("new", 1500), 0.0) == (goes_to == "a")
    assert planned([ticket(job("new", 1500))], there, 4.5) == [("new", goes_to)]


@pytest.mark.parametrize(("slower", "names"), [(2.0, []), (1.3, [("new", "b")])])
def test_a_second_of_waiting_for_room_weighs_more_than_one_of_computing(slower: float, names: list[tuple[str, str]]) -> None:
    """Room on the full one is 0.15 s away. Elsewhere the prompt costs about 0.2 or 0.7 s more: less than three times that,
    or more."""
    there = lanes(2, (PROFILE, StepProfile(0.010 * slower, 100e-6 * slower, 50e-6, 0.0)))
    for lane, tokens in zip(there, (7400, 100), strict=True):
        for name in ("one", "two"):
            lane.mirror.dispatched(job(name, tokens, 15), 0, 0.0)
            lane.mirror.first_token(name, 4.0)
    asked = ticket(job("new", 1500))
    assert planned([asked], there, 4.0) == names
    assert there[0].frees_s(asked, 0.0, 4.0) == pytest.approx(0.15, rel=0.05)


def test_what_is_not_worth_the_wait_goes_elsewhere() -> None:
    there = lanes(2)
    hold_prefix(there[0])
    there[0].mirror.dispatched(job("queued", 8000), 0, 0.0)
    assert planned([ticket(job("again", prefix=PREFIX))], there, 0.001) == [("again", "b")]


def test_lambda_decides_how_long_one_waits() -> None:
    """Waiting for a costs about 0.12 s and saves 0.1 s of work: only its price to others makes it worth while."""
    for weight, names in ((0.0, [("again", "b")]), (3.0, [])):
        there = lanes(2)
        hold_prefix(there[0])
        rule = ModelSpec("m", "plan", work_weight=weight, ahead_tokens=0, margin=0.0)
        assert planned([ticket(job("again", prefix=PREFIX))], there, 0.001, rule) == names


def test_mu_keeps_work_away_from_decodes() -> None:
    for mu, winner in ((0.0, "a"), (1.0, "b")):
        there = lanes(2)
        for number in range(4):
            there[0].mirror.dispatched(job(str(number), 10, 1000), 0, 0.0)
        there[1].mirror.dispatched(job("big", 1024, 1000), 0, 0.0)
        for lane in there:
            for name in ("0", "1", "2", "3", "big"):
                lane.mirror.first_token(name, 0.15)
        rule = ModelSpec("m", "plan", mu=mu, ahead_tokens=0, margin=0.0, work_weight=0.0)
        for lane in there:
            lane.reset(rule, 0.15)
        there[1].head_s += 0.001
        best, _ = cheapest(ticket(job("new")), there, 0.05, 0.0)
        assert best is not None
        assert best.name == winner


def test_a_replica_that_the_head_waits_for_is_closed_to_those_behind() -> None:
    """The head does not fit into a's memory yet; a smaller one behind it would, but would keep it waiting."""
    there = lanes(1)
    there[0].mirror.dispatched(job("there", 200, 6000), 0, 0.0)
    there[0].mirror.first_token("there", 0.1)
    line = [ticket(job("head", 8000, 6000)), ticket(job("small", 100, 10))]
    assert planned(line, there, 0.2) == []
    assert planned(line[1:], there, 0.2) == [("small", "a")]
    there[0].mirror.finished("there", 0.3)
    there[0].mirror.finished("small", 0.3)
    assert planned(line, there, 0.3) == [("head", "a")], "an empty engine takes anything"


def test_a_full_batch_is_closed() -> None:
    there = lanes(1)
    for number in range(8):
        there[0].mirror.dispatched(job(str(number), 20, 1000), 0, 0.0)
        there[0].mirror.first_token(str(number), 0.1)
    assert planned([ticket(job("ninth", 20))], there, 0.2) == []
    assert opens_s(there, RULE, 0.2) == inf, "only an end opens it"
    there[0].mirror.finished("3", 0.3)
    assert planned([ticket(job("ninth", 20))], there, 0.3) == [("ninth", "a")]


def test_tokens_may_be_sent_ahead() -> None:
    there, rule = lanes(1), ModelSpec("m", "plan", ahead_tokens=1000, margin=0.0)
    assert planned([ticket(job(name)) for name in "xyz"], there, 0.0, rule) == [("x", "a"), ("y", "a")]


def test_avoided_and_unusable_replicas_are_no_candidates() -> None:
    there = lanes(2)
    assert planned([ticket(job("x"), avoid=frozenset("a"))], there) == [("x", "b")]
    assert planned([ticket(job("y"), avoid=frozenset("ab"))], there) == []
    there[0].view.max_in_flight = 0
    assert planned([ticket(job("z"), avoid=frozenset("b"))], there) == []


def test_no_more_than_the_first_are_walked() -> None:
    """Tickets that nobody can take do not keep the walk going for ever."""
    there = lanes(2)
    stuck = [ticket(job(str(number)), avoid=frozenset("ab")) for number in range(WALK)]
    assert planned([*stuck, ticket(job("behind"))], there) == []
    assert planned([*stuck[1:], ticket(job("behind"))], there) == [("behind", "a")]


def test_faster_replicas_get_more() -> None:
    slow = StepProfile(0.020, 400e-6, 50e-6, 0.0)
    there = lanes(2, [slow, PROFILE])
    assert planned([ticket(job("x"))], there) == [("x", "b")]
    assert planned([ticket(job("y"))], there, 0.001) == [], "waits for b rather than for a, four times slower"


@pytest.mark.parametrize(("bad", "cause"), [(nan, "nan"), (-1.0, "negative"), (inf, "garbage"), (1e9, "garbage")])
def test_a_score_that_is_no_number_stops_the_plan(bad: float, cause: str) -> None:
    there = lanes(2)
    for lane in there:
        lane.reset(RULE, 0.0)
    there[1].head_s = bad
    with pytest.raises(UntrustedError, match=cause):
        cheapest(ticket(job("x")), there, 0.05, 0.0)


def test_hits_are_looked_up_once_for_each_state_of_the_index() -> None:
    there = lanes(1)
    asked = ticket(job("x", prefix=PREFIX))
    assert asked.hit_tokens("a", there[0].mirror) == 0
    hold_prefix(there[0])
    assert asked.hit_tokens("a", there[0].mirror) == 900
    there[0].mirror.index._held.clear()
    assert asked.hit_tokens("a", there[0].mirror) == 900, "the same version: not looked up"
    there[0].mirror.index.forget()
    assert asked.hit_tokens("a", there[0].mirror) == 0


def test_the_wait_for_room_is_reckoned_once_for_each_picture_of_who_is_there() -> None:
    there = lanes(1)
    for name in ("one", "two"):
        there[0].mirror.dispatched(job(name, 7400, 1000), 0, 0.0)
        there[0].mirror.first_token(name, 4.0)
    waits = ticket(job("new", 1500))

    def wait_s(now_s: float) -> float:
        there[0].reset(RULE, now_s)
        return there[0].frees_s(waits, RULE.margin, now_s)

    before_s = wait_s(4.5)
    there[0].mirror.finished("one", 4.6)
    assert before_s > 1.0
    assert wait_s(4.7) == pytest.approx(before_s, rel=0.2), "the picture of a moment ago will do"
    assert wait_s(5.0) == 0.0, "an older one will not"
    waits.job = job("new", 1500, 15000)
    assert wait_s(5.1) > 0.0, "it is another question once the length is known better"
