"""Predictions of a given skill: their errors are what the skill says, the ends are a constant and the truth."""

import math
from random import Random
from statistics import fmean

import pytest

from gateway.sim.foretold import foretold
from gateway.sim.workload import SimRequest
from predictor.request import LengthEstimate

CONSTANT = LengthEstimate(1, 1, 1, "not told")


def requests(count: int = 20_000) -> list[SimRequest]:
    rng = Random(5)
    lengths = [max(1, round(rng.lognormvariate(5.0, 1.0))) for _ in range(count)]
    return [SimRequest(str(i), float(i), 100, tokens, CONSTANT) for i, tokens in enumerate(lengths)]


def log_mae(told: list[SimRequest]) -> float:
    return fmean([abs(math.log(one.output_tokens / one.lengths.q50)) for one in told])


@pytest.mark.parametrize("skill", [0.2, 0.45, 0.8])
def test_the_error_is_what_the_skill_says(skill: float) -> None:
    constant = log_mae(foretold(requests(), 0.0, 1))
    told = foretold(requests(), skill, 1)
    assert log_mae(told) == pytest.approx(constant * math.sqrt(1.0 - skill), rel=0.03)
    covered = fmean([one.output_tokens <= one.lengths.q90 for one in told])
    assert covered == pytest.approx(0.9, abs=0.01)
    assert all(one.lengths.q10 <= one.lengths.q50 <= one.lengths.q90 for one in told)


def test_the_ends_are_a_constant_and_the_truth() -> None:
    some = requests(2000)
    assert len({one.lengths for one in foretold(some, 0.0, 1)}) == 1
    for one in foretold(some, 1.0, 1):
        assert one.lengths.q10 == one.lengths.q50 == one.lengths.q90 == one.output_tokens


def test_skills_of_one_seed_share_their_luck() -> None:
    some = requests(200)
    assert foretold(some, 0.4, 1) == foretold(some, 0.4, 1)
    assert foretold(some, 0.4, 1) != foretold(some, 0.4, 2)
    errors = [[math.log(one.lengths.q50 / one.output_tokens) for one in foretold(some, skill, 1)] for skill in (0.4, 0.42)]
    assert fmean([abs(a - b) for a, b in zip(*errors, strict=True)]) < 0.1
