"""What is left of an answer under way: on condition that it got so far."""

import random
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.lengths import remaining
from predictor.request import LengthEstimate
from predictor.rest import REPAIR_TOKENS, Rest, score_of_rest

CHAT = LengthEstimate(79, 245, 761, "m")  # log-normal 5.5, 0.884


@pytest.mark.parametrize("generated", [1, 40, 245, 400, 1500])
def test_agrees_with_sampling(generated: int) -> None:
    rng = random.Random(generated)
    drawn = (rng.lognormvariate(5.5, 0.884) for _ in range(200_000))
    longer = [tokens - generated for tokens in drawn if tokens > generated]
    assert Rest(CHAT).tokens(generated) == pytest.approx(median(longer), rel=0.04)


@given(st.integers(1, 2000), st.integers(0, 2000), st.integers(0, 5000), st.integers(1, 300_000))
def test_is_the_middle_of_what_remains(q10: int, more: int, most: int, generated: int) -> None:
    lengths = LengthEstimate(q10, q10 + more, q10 + more + most, "m")
    whole = generated + remaining(lengths, generated).q50
    assert generated + Rest(lengths).tokens(generated) == pytest.approx(whole, rel=0.02, abs=1)


def test_far_out_the_table_is_continued_without_a_jump() -> None:
    for p in (0.1, 0.5, 0.9):
        assert score_of_rest(5.0, p) == pytest.approx(score_of_rest(5.0001, p), abs=0.04)


def test_limit_is_no_doubt() -> None:
    """An answer that its limit will cut: what is left of the limit, and beyond it what the paper adds."""
    cut = Rest(LengthEstimate(20, 100, 100, "m"))
    assert [cut.tokens(generated) for generated in (0, 30, 99, 100, 120)] == [100, 70, 1, REPAIR_TOKENS, REPAIR_TOKENS]


@given(st.integers(1, 400), st.integers(0, 400), st.integers(0, 4000))
def test_whoever_is_further_ends_no_earlier(q10: int, more: int, most: int) -> None:
    rest = Rest(LengthEstimate(q10, q10 + more, q10 + more + most, "m"))
    ends = [generated + rest.tokens(generated) for generated in range(1, 600)]
    assert all(later >= earlier - 1 for earlier, later in pairwise(ends))
