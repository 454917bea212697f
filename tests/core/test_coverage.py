"""Quantiles of scores that drift: they go on covering what they promise, answers that were cut off among them."""

import random
from collections.abc import Callable

import pytest

from predictor.coverage import TAILS, WINDOW, Coverage


def run(count: int, score: Callable[[random.Random, int], float], cut_at: float | None = None) -> list[dict[float, bool]]:
    """What lay below each quantile, by the truth."""
    rng = random.Random(1)
    coverage = Coverage()
    found = []
    for number in range(count):
        truth = score(rng, number)
        told = {quantile: coverage.factor(quantile) for quantile in TAILS}
        found.append({quantile: truth <= factor for quantile, factor in told.items()})
        cut = cut_at is not None and truth > cut_at
        shown = cut_at if cut and cut_at is not None else truth
        coverage.saw(shown, {quantile: shown <= factor for quantile, factor in told.items()}, cut)
    return found


@pytest.mark.parametrize(
    "score",
    [
        lambda rng, number: rng.gauss(0.0, 1.0),
        lambda rng, number: rng.gauss(number / 500, 1.0),
        lambda rng, number: rng.gauss(0.0, 0.2 + 3.0 * (number > 3000)),
        lambda rng, number: rng.gauss(0.0, 1.0) + 2.0 * ((number // 700) % 2),
        lambda rng, number: rng.expovariate(1.0),
        lambda rng, number: float(rng.randrange(3)),
    ],
    ids=["still", "drift", "wider", "to and fro", "skewed", "ties"],
)
def test_every_window_of_2000_is_covered(score: Callable[[random.Random, int], float]) -> None:
    found = run(6000, score)
    ties = score(random.Random(0), 0) in (0.0, 1.0, 2.0)
    for at in range(0, 4001, 250):
        shares = {quantile: sum(one[quantile] for one in found[at : at + 2000]) / 2000 for quantile in TAILS}
        assert 0.88 <= shares[0.9] <= (1.0 if ties else 0.92)
        assert ties or 0.07 <= shares[0.1] <= 0.13


def test_before_anything_was_seen_the_spread_is_the_foretold_one() -> None:
    assert {quantile: Coverage().factor(quantile) for quantile in TAILS} == TAILS


def test_answers_that_were_cut_off_do_not_pull_it_down() -> None:
    found = run(3000, lambda rng, _: rng.gauss(0.0, 1.0), cut_at=1.0)
    assert sum(one[0.9] for one in found[1000:]) / 2000 > 0.86


def test_only_the_last_scores_are_held() -> None:
    coverage = Coverage()
    for number in range(3 * WINDOW):
        coverage.saw(float(number), dict.fromkeys(TAILS, True), cut=number % 7 == 0)
    assert len(coverage._sorted) == len(coverage._latest) == WINDOW
    assert sorted(coverage._latest) == coverage._sorted
