"""Length quantiles from finished answers, cut-off ones among them, and what remains of an answer under way."""

import random
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.lengths import ANSWERS_MIN, RATIO, UNKNOWN, RunningQuantiles, capped, remaining, repaired
from predictor.request import LengthEstimate

CHAT = LengthEstimate(100, 250, 625, "model")


def chat_length(rng: random.Random) -> int:
    return max(1, round(rng.lognormvariate(5.5, 0.9)))


def close(left: float, right: float) -> bool:
    """Within one bin and the noise of a sample."""
    return right / (RATIO * 1.15) <= left <= right * RATIO * 1.15


def test_quantiles_follow_what_was_seen() -> None:
    rng = random.Random(1)
    table = RunningQuantiles()
    seen = [chat_length(rng) for _ in range(600)]
    for tokens in seen:
        table.saw("m", "", tokens)
    deciles = quantiles(seen, n=10)
    got = table.estimate("m")
    assert all(close(*pair) for pair in ((got.q10, deciles[0]), (got.q50, deciles[4]), (got.q90, deciles[8])))
    assert got.source == "model"


def test_a_cut_off_answer_counts_as_longer_than_it_is() -> None:
    """Half of the answers are cut at 256 tokens; the upper quantiles must not end there."""
    rng = random.Random(2)
    blind, aware, truth = RunningQuantiles(), RunningQuantiles(), []
    for number in range(2000):
        tokens = chat_length(rng)
        truth.append(tokens)
        limit = 256 if number % 2 else 100_000
        cut = min(tokens, limit)
        blind.saw("m", "", cut)
        aware.saw("m", "", cut, truncated=tokens > limit)
    deciles = quantiles(truth[-800:], n=10)
    assert close(aware.estimate("m").q90, deciles[8])
    assert close(aware.estimate("m").q50, deciles[4])
    assert blind.estimate("m").q90 < 0.8 * aware.estimate("m").q90


def test_where_all_are_cut_off_the_longest_seen_is_a_lower_bound() -> None:
    table = RunningQuantiles()
    for _ in range(20):
        table.saw("m", "", 100)
        table.saw("m", "", 500, truncated=True)
    assert 500 <= table.estimate("m").q90 <= 500 * RATIO
    assert table.estimate("m").q10 <= 100 * RATIO


def test_a_route_has_its_own_lengths_once_enough_are_known() -> None:
    table = RunningQuantiles()
    assert table.estimate("m", "k") == UNKNOWN
    for number in range(ANSWERS_MIN):
        assert table.estimate("m", "k") == UNKNOWN
        table.saw("m", "other", 1000 + number)
    assert table.estimate("m", "k").source == "model"
    for _ in range(ANSWERS_MIN + 1):
        table.saw("m", "k", 10)
    got = table.estimate("m", "k")
    assert (got.source, 8 <= got.q50 <= 12) == ("route", True)
    assert close(table.estimate("m", "other").q50, 1000)


def test_old_answers_fade() -> None:
    table = RunningQuantiles()
    for _ in range(2000):
        table.saw("m", "", 1000)
    for _ in range(2000):
        table.saw("m", "", 50)
    assert table.estimate("m").q90 < 100
    for _ in range(60_000):  # the weights are scaled back now and then
        table.saw("m", "", 200)
    assert close(table.estimate("m").q50, 200)


def test_the_table_is_bounded() -> None:
    table = RunningQuantiles(capacity=10)
    for number in range(100):
        table.saw("m", f"key{number}", 10)
    assert len(table) == 10
    table.saw("m", "key", 0)
    assert len(table) == 10, "an answer without tokens is none"


def test_a_limit_caps_every_quantile() -> None:
    assert capped(CHAT, 5000) is CHAT
    assert capped(CHAT, 200) == LengthEstimate(100, 200, 200, "model")
    assert capped(CHAT, 5) == LengthEstimate(5, 5, 5, "model")


def test_what_remains_shrinks_first_and_then_grows_with_a_heavy_tail() -> None:
    assert remaining(CHAT, 0) == CHAT
    early, late, far = (remaining(CHAT, generated) for generated in (50, 900, 50_000))
    assert early.q50 < CHAT.q50
    assert late.q50 > 200, "whoever has said 900 tokens is not about to end"
    assert far.q50 > late.q50
    assert (early.source, late.source) == ("model", "model")


def test_what_remains_agrees_with_sampling() -> None:
    rng = random.Random(3)
    estimate = LengthEstimate(79, 245, 761, "model")  # log-normal 5.5, 0.884
    longer = [tokens - 400 for tokens in (rng.lognormvariate(5.5, 0.884) for _ in range(60_000)) if tokens > 400]
    deciles = quantiles(longer, n=10)
    got = remaining(estimate, 400)
    assert got.q10 == pytest.approx(deciles[0], rel=0.1)
    assert got.q50 == pytest.approx(deciles[4], rel=0.1)
    assert got.q90 == pytest.approx(deciles[8], rel=0.1)


def test_a_length_without_doubt_is_followed_and_repaired_as_in_the_paper() -> None:
    sure = LengthEstimate(100, 100, 100, "oracle")
    assert remaining(sure, 40) == LengthEstimate(60, 60, 60, "oracle")
    assert remaining(sure, 100) == LengthEstimate(10, 10, 10, "oracle")
    assert repaired(CHAT, 250) == LengthEstimate(10, 10, 375, "model")


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 300_000))
def test_what_remains_is_always_an_estimate(q10: int, more: int, most: int, generated: int) -> None:
    estimate = LengthEstimate(q10, q10 + more, q10 + more + most, "any")
    assert remaining(estimate, generated).q10 >= 1
    assert repaired(estimate, generated).q10 >= 1


@given(st.lists(st.tuples(st.integers(1, 200_000), st.booleans()), min_size=9, max_size=60))
def test_any_answers_give_an_estimate_within_them(answers: list[tuple[int, bool]]) -> None:
    table = RunningQuantiles()
    for tokens, cut in answers:
        table.saw("m", "", tokens, truncated=cut)
    got = table.estimate("m")
    if got is not UNKNOWN:
        assert min(tokens for tokens, _ in answers) / RATIO - 1 <= got.q10
        assert got.q90 <= max(tokens for tokens, _ in answers) * RATIO + 1
