"""The fluid of lateness against requests one by one."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.lateness import Demand, Prices, Window, lateness_s, turn

PLAIN = Prices(horizon_s=60.0, miss_s=0.0, late_weight=1.0, starve_s=math.inf)


def one_by_one(demand: Demand, windows: list[Window], prices: Prices, grain: float = 0.01) -> float:
    """The same with requests of size `grain`, in steps of a hundredth of a second."""
    arrivals = [(-1.0, slack) for count, slack in demand.waiting for _ in range(round(count / grain))]
    total = round(demand.rate_per_s * prices.horizon_s / grain)
    arrivals += [((i + 0.5) * grain / demand.rate_per_s, demand.slack_s) for i in range(total)]
    cost, place, now_s, step_s, credit = 0.0, 0, 0.0, 0.01, 0.0
    used = [0.0] * len(windows)
    while place < len(arrivals):
        for i, window in enumerate(windows):
            if window.open_s <= now_s < window.close_s:
                credit += (window.start_per_s if used[i] < window.slots else window.steady_per_s) * step_s
                used[i] += window.start_per_s * step_s
        while place < len(arrivals) and credit >= grain and arrivals[place][0] <= now_s:
            arrived, slack = arrivals[place]
            late = now_s - max(arrived, 0.0) - (slack if arrived >= 0 else max(slack, 0.0))
            cost += grain * max(late, 0.0)
            credit -= grain
            place += 1
        if place < len(arrivals) and arrivals[place][0] > now_s:
            credit = 0.0
        now_s += step_s
    return cost


@pytest.mark.parametrize("seed", range(12))
def test_the_closed_form_is_the_sum_over_requests(seed: int) -> None:
    rng = random.Random(seed)
    groups = tuple(
        sorted(((float(rng.randint(1, 8)), rng.uniform(1, 20)) for _ in range(rng.randint(0, 3))), key=lambda g: g[1])
    )
    demand = Demand(groups, rng.choice((0.0, 0.3, 1.5)), rng.uniform(1, 10))
    gap_s = rng.uniform(2, 30)
    windows = [
        Window(0.0, gap_s, 0.0, 4.0, rng.uniform(0.5, 3)),
        Window(gap_s + rng.uniform(2, 40), math.inf, 0.0, 4.0, rng.uniform(1.6, 3)),
    ]
    assert lateness_s(demand, windows, PLAIN) == pytest.approx(one_by_one(demand, windows, PLAIN), rel=0.02, abs=0.5)


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 50), st.floats(0.1, 30), st.floats(0, 2), st.integers(0, 20))
def test_later_is_never_cheaper(open_s: float, more_s: float, rate: float, count: int) -> None:
    demand = Demand(((float(count), 5.0),) if count else (), rate)
    first, later = (lateness_s(demand, [Window(at, math.inf, 8, 4.0, 2.5)], Prices()) for at in (open_s, open_s + more_s))
    assert later >= first - 1e-6


def test_free_slots_take_a_burst_at_once() -> None:
    demand = Demand(((8.0, 3.0),))
    wide, narrow = Window(0, math.inf, 8, 4.0, 0.5), Window(0, math.inf, 0, 4.0, 0.5)
    assert lateness_s(demand, [wide], PLAIN) == 0.0
    assert lateness_s(demand, [narrow], PLAIN) == pytest.approx(0.5 * 13 * 13 / 2)


def test_a_miss_counts_once_and_what_is_late_already_counts_less() -> None:
    prices = Prices(miss_s=20.0, late_weight=0.25)
    window = [Window(10.0, math.inf, 1, 1e9, 1.0)]
    assert lateness_s(Demand(((1.0, 4.0),)), window, prices) == pytest.approx(26.0)
    assert lateness_s(Demand(((1.0, -4.0),)), window, prices) == pytest.approx(2.5)


def test_starving_is_dear() -> None:
    prices = Prices(miss_s=0.0, starve_s=30.0, starve_weight=100.0)
    window = [Window(10.0, math.inf, 1, 1e9, 1.0)]
    assert lateness_s(Demand(((1.0, 50.0),), oldest_s=25.0), window, prices) == pytest.approx(500.0)
    assert lateness_s(Demand(((1.0, 50.0),), oldest_s=15.0), window, prices) == 0.0


def test_two_replicas_share() -> None:
    demand = Demand((), 2.0, 0.0)
    one = [Window(0, math.inf, 0, 1.0, 1.0)]
    assert lateness_s(demand, one, PLAIN) > 0.0
    assert lateness_s(demand, [*one, Window(0, math.inf, 0, 1.5, 1.5)], PLAIN) == pytest.approx(0.0)


def test_each_kind_of_request_is_late_by_its_own_slack() -> None:
    window = [Window(30.0, math.inf, 8, 4.0, 2.5)]
    kinds = Demand((), 0.4, 99.0, classes=((0.7, 12.0), (0.3, 50.0)))
    each = [lateness_s(Demand((), 0.4, slack_s), window, PLAIN) for slack_s in (12.0, 50.0)]
    assert each[0] > 0
    assert lateness_s(kinds, window, PLAIN) == pytest.approx(0.7 * each[0] + 0.3 * each[1])


def test_turns_aged_then_urgent_then_late() -> None:
    waiting = {
        "aged": (0.0, 15.0),
        "late": (60.0, 75.0),
        "urgent": (90.0, 105.0),
        "patient": (70.0, 130.0),
        "later": (65.0, 80.0),
    }
    order = sorted(waiting, key=lambda name: turn(100.0, *waiting[name], aged_s=90.0))
    assert order == ["aged", "urgent", "patient", "late", "later"]
