"""The tiered queue by example: orders, tiers, promotion and demotion, what is handed out."""

import math

import pytest

from predictor.queues import FEW, TieredQueue
from predictor.share import Share
from predictor.waiting import Waiting


def filled(order: str, rows: list[tuple[str, float, float, float]], **options: float) -> TieredQueue:
    """Rows of id, arrival, cost, deadline; tokens are 1,000 for each second of cost."""
    queue = TieredQueue(order, **options)  # type: ignore[arg-type]
    for name, arrival_s, cost_s, deadline_s in rows:
        queue.add(Waiting(name, arrival_s, cost_s, int(cost_s * 1000), deadline_s), 0.0)
    queue.retier(0.0)
    return queue


def popped(queue: TieredQueue, now_s: float = 0.0) -> str:
    names = []
    while (waiting := queue.pop(now_s)) is not None:
        names.append(waiting.id)
    return "".join(names)


ROWS = [("a", 0.0, 3.0, 9.0), ("b", 1.0, 1.0, 12.0), ("c", 2.0, 2.0, 4.0), ("d", 3.0, 5.0, 10.0)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fcfs", "abcd"),
        ("sjf", "bcad"),
        ("edf", "cadb"),
        # latest starts: c 2, d 5, a 6, b 11; c and d leave a 2 s of the 3 it needs, so a is late, and b is not
        ("lrb", "cdba"),
        # by deadline c 2, a 5, d 10 (just), b 11
        ("mh", "cadb"),
    ],
)
def test_orders(order: str, expected: str) -> None:
    assert popped(filled(order, ROWS, rho=0.0)) == expected


def test_moore_hodgson_lets_the_largest_go_and_serves_the_others_in_time() -> None:
    queue = filled("mh", [("a", 0, 4.0, 5.0), ("b", 0, 2.0, 6.0), ("c", 0, 2.0, 6.5)], rho=0.0, alpha=0.0, hysteresis=0.0)
    assert [waiting.id for waiting in queue.first(0.0)] == ["b", "c"]
    assert [waiting.id for waiting in queue.second(0.0)] == ["a"]


def second_chance(soon_s: float) -> list[str]:
    """Tier 1 of a long prompt that its guard alone makes late, and of one that is due so soon."""
    queue = TieredQueue("mh", rho=0.0)
    queue.add(Waiting("long", 0.0, 6.0, 60000, 5.0, work_s=3.0, mean_s=4.0), 0.0)
    queue.add(Waiting("short", 0.0, 1.0, 1000, soon_s), 0.0)
    queue.retier(0.0)
    return [waiting.id for waiting in queue.first(0.0)]


def test_whom_its_guard_alone_makes_late_stays_in_tier_one_if_that_makes_nobody_late() -> None:
    assert second_chance(9.0) == ["long", "short"]
    assert second_chance(5.5) == ["long", "short"]
    assert second_chance(4.9) == ["short", "long"]  # that leaves it 4 s of 5
    # what is taken out by its own guard must not make others late by theirs
    queue = TieredQueue("mh", rho=0.0)
    queue.add(Waiting("long", 0.0, 6.0, 60000, 5.0, work_s=3.0, mean_s=4.0), 0.0)
    queue.add(Waiting("guarded", 0.0, 2.5, 1000, 5.1, mean_s=1.0), 0.0)
    queue.retier(0.0)
    assert [waiting.id for waiting in queue.first(0.0)] == ["guarded"]


def test_alpha_lets_the_one_go_that_is_slow_for_its_size() -> None:
    rows = [("long", 4.0, 8000, 5.0), ("slow", 3.0, 300, 6.0)]
    tiers = {}
    for alpha in (0.0, 1.0):
        queue = TieredQueue("mh", alpha=alpha, hysteresis=0.0)
        for name, cost_s, tokens, deadline_s in rows:
            queue.add(Waiting(name, 0.0, cost_s, tokens, deadline_s), 0.0)
        queue.retier(0.0)
        tiers[alpha] = {waiting.id: waiting.tier for waiting in queue}
    assert tiers == {0.0: {"long": 2, "slow": 1}, 1.0: {"long": 1, "slow": 2}}


def test_work_that_is_shared_delays_others_less_than_its_cost() -> None:
    queue = TieredQueue("mh", hysteresis=0.0)
    queue.add(Waiting("a", 0.0, 2.0, 100, 3.0, work_s=0.5), 0.0)
    queue.add(Waiting("b", 0.0, 2.0, 100, 3.0, work_s=0.5), 0.0)
    queue.retier(0.0)
    assert queue.tiers == (2, 0)
    queue.retier(0.0, ahead_s=0.75)
    assert queue.tiers == (1, 1)


@pytest.mark.parametrize("order", ["lrb", "mh"])
def test_without_slos_it_is_shortest_job_first(order: str) -> None:
    rows = [(name, arrival_s, cost_s, math.inf) for name, arrival_s, cost_s, _ in ROWS]
    assert popped(filled(order, rows)) == popped(filled("sjf", rows)) == "bcad"


def test_demoted_when_time_runs_out_and_promoted_only_beyond_the_hysteresis() -> None:
    queue = TieredQueue("lrb", hysteresis=0.1)
    queue.add(Waiting("a", 0.0, 4.0, 10, 10.0), 0.0)
    assert queue.retier(0.0, stretch=2.6) == 1  # 10.4 s needed of 10
    assert queue.tiers == (0, 1)
    assert queue.retier(0.0, stretch=2.4) == 0  # a budget of 0.4 s is less than a tenth of the SLO
    assert queue.retier(0.0, stretch=2.0) == 1
    assert queue.tiers == (1, 0)
    assert queue.retier(10.0) == 1
    assert queue.tiers == (0, 1)


def test_a_new_estimate_keeps_the_tier_until_it_is_decided_anew() -> None:
    queue = filled("mh", [("a", 0.0, 20.0, 10.0)])
    queue.revise("a", 1.0, 0.0)
    assert queue.tiers == (0, 1)
    queue.retier(0.0)
    assert queue.tiers == (1, 0)


def test_several_replicas_hand_out_more_service() -> None:
    rows = [(str(i), 0.0, 2.0, 4.0) for i in range(8)]
    queue = filled("mh", rows, rho=0.0, hysteresis=0.0)
    assert queue.tiers == (2, 6)
    queue.retier(0.0, capacity=4.0)  # they begin 0.5 s after each other, and each still takes its 2 s
    assert queue.tiers == (5, 3)


def test_tier_one_does_without_the_share_of_tier_two() -> None:
    rows = [("a", 0.0, 1.0, 2.0), ("b", 0.0, 1.0, 2.0)]
    assert filled("mh", rows, rho=0.5, hysteresis=0.0).tiers == (2, 0)
    # beside a late one only half of the service is theirs: the second begins after 2 s
    assert filled("mh", [*rows, ("late", 0.0, 9.0, 1.0)], rho=0.5, hysteresis=0.0).tiers == (1, 2)


def test_after_its_age_nobody_overtakes() -> None:
    queue = filled("mh", [("old", 0.0, 50.0, 10.0)], age_s=30.0)
    queue.add(Waiting("new", 29.0, 1.0, 10, 40.0), 29.0)
    assert [queue.head(now_s).id for now_s in (29.0, 30.0)] == ["new", "old"]  # type: ignore[union-attr]
    assert [waiting.id for waiting in queue.first(30.0)] == ["old", "new"]
    assert queue.second(30.0) == []
    assert popped(queue, 30.0) == "oldnew"


def test_leaving_and_coming_back() -> None:
    queue = filled("lrb", ROWS)
    waiting = queue.remove("d")
    assert waiting is not None
    assert queue.remove("d") is None
    assert len(queue) == 3
    assert "d" not in queue
    queue.add(waiting, 0.5)
    assert [one.id for one in queue] == ["a", "b", "c", "d"]


def test_a_share_is_paid_in_whole_tokens() -> None:
    share = Share(0.1)
    given = []
    for _ in range(4):
        due = share.due(25)
        given.append(due)
        share.count(25 - due, due)
    assert given == [2, 3, 2, 3]


@pytest.mark.parametrize("bad", [{"order": "lifo"}, {"rho": 1.5}, {"alpha": -0.1}, {"age_s": 0.0}, {"hysteresis": -1.0}])
def test_what_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"order|out of range"):
        TieredQueue(**{"order": "mh", **bad})  # type: ignore[arg-type]


@pytest.mark.parametrize(("cost_s", "tokens"), [(-1.0, 1), (math.inf, 1), (1.0, -1)])
def test_a_request_without_a_cost_is_refused(cost_s: float, tokens: int) -> None:
    with pytest.raises(ValueError, match="request 'a'"):
        Waiting("a", 0.0, cost_s, tokens)


@pytest.mark.parametrize("order", ["lrb", "mh"])
def test_whether_few_or_many_change_place_their_order_is_the_same(order: str) -> None:
    rows = [(f"{number:03}", 0.0, 0.02 + number % 7 * 0.01, 1.0 + number % 90 * 0.1) for number in range(10 * FEW)]
    queues = [filled(order, rows), filled(order, rows)]
    assert queues[0].retier(0.5, stretch=30.0) > FEW  # at once
    for step in range(300):  # little by little
        queues[1].retier(0.5, stretch=1.0 + 29.0 * step / 299)
    for queue in queues:
        assert [waiting.tier for waiting in queue.first(0.5)] == [1] * queue.tiers[0]
        keys = [waiting.late_key for waiting in queue.second(0.5)]
        assert keys == sorted(keys)
        assert sum(queue.tiers) == len(rows)
    assert queues[0].retier(0.5, stretch=1.0) > FEW  # back
    assert queues[0].tiers[0] > queues[1].tiers[0]
