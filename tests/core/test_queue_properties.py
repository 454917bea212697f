"""What holds of the tiered queue whatever comes: one tier each, nobody lost, ageing, tier 2's share, the optimum."""

import math
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.queues import ORDERS, TieredQueue
from predictor.waiting import Waiting

SLOW = settings(max_examples=60, deadline=None)
actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "pop", "remove", "retier", "revise"]),
        st.floats(0.0, 3.0),  # seconds that pass before
        st.floats(0.001, 4.0),  # cost
        st.one_of(st.floats(0.1, 10.0), st.just(math.inf)),  # SLO
        st.integers(0, 30),
    ),
    max_size=60,
)


def check(queue: TieredQueue, present: set[str], now_s: float) -> None:
    first, second = queue.first(now_s), queue.second(now_s)
    everybody = [waiting.id for waiting in (*first, *second)]
    assert len(everybody) == len(set(everybody))
    assert set(everybody) == present
    assert {waiting.id for waiting in queue} == present
    assert len(queue) == len(present) == sum(queue.tiers)
    head = queue.head(now_s)
    assert (head is None) == (not present)


@SLOW
@given(st.sampled_from(ORDERS), actions)
def test_everybody_is_in_exactly_one_tier_and_nobody_is_lost(order: str, steps: list[tuple]) -> None:
    queue, present, now_s = TieredQueue(order, age_s=20.0), set(), 0.0
    for number, (what, pause_s, cost_s, slo_s, which) in enumerate(steps):
        now_s += pause_s
        some = sorted(present)[which % len(present)] if present else ""
        if what == "add":
            queue.add(Waiting(str(number), now_s, cost_s, int(cost_s * 1000), now_s + slo_s), now_s)
            present.add(str(number))
        elif what == "pop" and present:
            taken = queue.pop(now_s)
            assert taken is not None
            present.remove(taken.id)
        elif what == "remove" and present:
            assert queue.remove(some) is not None
            present.remove(some)
        elif what == "revise" and present:
            queue.revise(some, cost_s, now_s)
        else:
            queue.retier(now_s, ahead_s=cost_s, capacity=1.0 + which, stretch=0.5 + cost_s)
        check(queue, present, now_s)


@pytest.mark.parametrize("order", ORDERS)
@SLOW
@given(st.integers(0, 10**6))
def test_after_its_age_no_later_arrival_overtakes(order: str, seed: int) -> None:
    """More come than go, so that many wait for longer than that, and others would be before them by their order."""
    rng, queue, now_s, age_s = Random(seed), TieredQueue(order, age_s=5.0), 0.0, 5.0
    passed_over = 0
    for number in range(80):
        now_s += rng.expovariate(2.0)
        cost_s, slo_s = rng.expovariate(1.0), rng.choice([2.0, 6.0, 20.0, math.inf])
        queue.add(Waiting(str(number), now_s, cost_s, int(cost_s * 1000), now_s + slo_s), now_s)
        if rng.random() < 0.3:
            queue.retier(now_s, ahead_s=cost_s)
        if rng.random() < 0.6:
            aged = [waiting.arrival_s for waiting in queue if now_s - waiting.arrival_s >= age_s]
            passed_over += bool(aged) and queue.leading(1) != [] and queue.leading(1)[0].arrival_s > min(aged)
            taken = queue.pop(now_s)
            assert taken is not None
            assert not aged or taken.arrival_s == min(aged)
    assert passed_over or order == "fcfs"


def backlog(queue: TieredQueue, sizes: list[int]) -> None:
    """Both tiers never empty: half of the requests are hopeless."""
    for number, tokens in enumerate(sizes):
        deadline_s = 1e6 if number % 2 else 0.5
        queue.add(Waiting(str(number), 0.0, 1e-6 if number % 2 else 1.0, tokens, deadline_s), 0.0)
    queue.retier(0.0)


def windows(batches: list[tuple[int, int]]) -> list[float]:
    """Tier 2's share in every 200 batches in a row."""
    return [
        sum(second for _, second in part) / sum(first + second for first, second in part)
        for part in (batches[i : i + 200] for i in range(len(batches) - 199))
    ]


@SLOW
@given(st.sampled_from([0.02, 0.1, 0.3]), st.lists(st.integers(64, 8192), min_size=230, max_size=260))
def test_tier_two_gets_its_share_of_cut_prompts(rho: float, budgets: list[int]) -> None:
    share = TieredQueue("mh", rho=rho).share
    batches = []
    for tokens in budgets:
        second = share.due(tokens)
        batches.append((tokens - second, second))
        share.count(*batches[-1])
    assert all(0.8 * rho <= part <= 1.2 * rho for part in windows(batches))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["lrb", "mh"]), st.sampled_from([0.05, 0.1, 0.3]), st.integers(0, 10**6))
def test_tier_two_gets_its_share_of_whole_prompts(order: str, rho: float, seed: int) -> None:
    rng = Random(seed)
    queue = TieredQueue(order, rho=rho, age_s=1e9)
    backlog(queue, [rng.randint(1, 2000) for _ in range(6000)])
    batches = []
    while min(queue.tiers) > 20 and len(batches) < 260:
        given_tokens = [0, 0]
        while sum(given_tokens) < 8192 and min(queue.tiers):
            taken = queue.pop(0.0)
            assert taken is not None
            given_tokens[taken.tier - 1] += taken.tokens
        batches.append((given_tokens[0], given_tokens[1]))
    assert len(batches) >= 200
    assert all(0.8 * rho <= part <= 1.2 * rho for part in windows(batches))


def most_in_time(jobs: list[tuple[int, int]]) -> int:
    """By trying every subset in the order of deadlines."""
    for count in range(len(jobs), 0, -1):
        for chosen in combinations(sorted(jobs, key=lambda job: job[1]), count):
            total, fine = 0, True
            for cost, deadline in chosen:
                total += cost
                fine = fine and total <= deadline
            if fine:
                return count
    return 0


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=8))
def test_moore_hodgson_is_optimal_on_one_machine(jobs: list[tuple[int, int]]) -> None:
    queue = TieredQueue("mh", rho=0.0, alpha=0.0, age_s=1e9, hysteresis=0.0)
    for number, (cost, deadline) in enumerate(jobs):
        queue.add(Waiting(str(number), 0.0, float(cost), cost, float(deadline)), 0.0)
    queue.retier(0.0)
    first = queue.first(0.0)
    assert len(first) == most_in_time(jobs)
    end_s = 0.0
    for waiting in first:
        end_s += waiting.cost_s
        assert end_s <= waiting.deadline_s


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30), st.floats(0.3, 1.0)), min_size=1, max_size=8))
def test_a_second_chance_harms_nobody(jobs: list[tuple[int, int, float]]) -> None:
    queue = TieredQueue("mh", rho=0.0, alpha=0.0, age_s=1e9, hysteresis=0.0)
    for number, (cost, deadline, part) in enumerate(jobs):
        queue.add(Waiting(str(number), 0.0, float(cost), cost, float(deadline), mean_s=cost * part), 0.0)
    queue.retier(0.0)
    begin_s, guarded = 0.0, 0
    for waiting in queue.first(0.0):
        assert begin_s + waiting.mean_s <= waiting.deadline_s + 1e-9
        guarded += begin_s + waiting.cost_s <= waiting.deadline_s + 1e-9
        begin_s += waiting.work_s
    assert guarded >= most_in_time([(cost, deadline) for cost, deadline, _ in jobs])


@pytest.mark.parametrize("order", ["lrb", "mh"])
@SLOW
@given(st.lists(st.floats(0.001, 9.0), max_size=20))
def test_without_slos_tiers_are_shortest_job_first(order: str, costs: list[float]) -> None:
    queues = [TieredQueue(name) for name in (order, "sjf")]
    for queue in queues:
        for number, cost_s in enumerate(costs):
            queue.add(Waiting(str(number), 0.1 * number, cost_s, 100), 0.1 * number)
        queue.retier(2.0)
    both = [[queue.pop(2.0).id for _ in costs] for queue in queues]  # type: ignore[union-attr]
    assert both[0] == both[1]
