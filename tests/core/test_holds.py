"""When requests that run will be over: against what many drawn at random do, and for those that run for long."""

import math
import random

import pytest

from gateway.holds import NEVER, Holds

MEAN_LOG, DEVIATION = math.log(8.0), 0.7
KNOWN = Holds(MEAN_LOG, DEVIATION**2)


def drawn(ages_s: list[float], until_s: float) -> tuple[float, float]:
    """What requests of these ages do, on average over many."""
    rng, wait_s, left, times = random.Random(1), 0.0, 0, 3000
    for _ in range(times):
        more = []
        for age_s in ages_s:
            while (whole_s := rng.lognormvariate(MEAN_LOG, DEVIATION)) <= age_s:
                pass
            more.append(whole_s - age_s)
        wait_s += min(max(more), until_s)
        left += sum(one > until_s for one in more)
    return wait_s / times, left / times


@pytest.mark.parametrize("ages_s", [[0.0], [2.0, 4.0], [1.0] * 10, [0.0, 25.0]])
@pytest.mark.parametrize("until_s", [8.0, NEVER])
def test_the_last_of_several_is_awaited_as_long_as_it_takes(ages_s: list[float], until_s: float) -> None:
    wait_s, left = KNOWN.drain(ages_s, 1.0, until_s)
    expected_s, remaining = drawn(ages_s, until_s)
    assert wait_s == pytest.approx(expected_s, rel=0.08)
    assert left == pytest.approx(remaining, abs=0.08 * len(ages_s))


def test_who_has_run_for_long_runs_on_for_long() -> None:
    waits = [KNOWN.drain([age_s], 1.0)[0] for age_s in (15.0, 60.0, 240.0, 3600.0)]
    assert waits == sorted(waits) and waits[0] > 6.0 and math.isfinite(waits[-1])


def test_nobody_is_awaited_where_nobody_runs_and_neighbours_make_it_longer() -> None:
    assert KNOWN.drain([], 1.0) == (0.0, 0.0)
    assert KNOWN.drain([4.0], 2.0)[0] == pytest.approx(2 * KNOWN.drain([2.0], 1.0)[0])


def test_of_very_many_some_stand_for_all() -> None:
    few, many = KNOWN.drain([1.0] * 60, 1.0, 20.0), KNOWN.drain([1.0] * 120, 1.0, 20.0)
    assert many[1] == pytest.approx(2 * few[1]) and few[0] < many[0] <= 20.0


def test_a_first_guess_that_is_far_off_makes_no_drain_endless() -> None:
    holds = Holds(math.log(5.0))
    for i in range(4):
        holds.seen(0.01, 1 / (5 + i))
    assert holds.drain([0.0], 1.0)[0] < 2.0


def test_how_long_requests_take_is_learnt() -> None:
    rng, holds = random.Random(2), Holds(math.log(60.0))
    for i in range(2000):
        holds.seen(rng.lognormvariate(MEAN_LOG, DEVIATION), max(1 / (i + 1), 0.01))
    assert holds.log_s == pytest.approx(MEAN_LOG, abs=0.25)
    assert holds.spread == pytest.approx(DEVIATION**2, rel=0.4)
