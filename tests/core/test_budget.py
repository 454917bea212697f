"""Budgets by hand-computed cases: what an SLO leaves, what remains to be done, the guard that observed errors set."""

import math
from random import Random

import pytest

from predictor.budget import (
    GAMMA_UNKNOWN,
    NO_SLO,
    Ahead,
    Estimator,
    Gamma,
    Load,
    Need,
    Releases,
    SloTarget,
    budget_s,
    deadline_s,
    decode_budget_s,
    full_load,
)
from predictor.prefill import StepCosts
from predictor.profile import EngineLimits

LIMITS = EngineLimits(kv_blocks=100, block_size=10, max_num_seqs=4, max_num_batched_tokens=104, max_model_len=1000)
COSTS = StepCosts(base_s=0.01, token_s=0.001, decode_s=0.002, kv_s=0.00001)
LOAD = Load(4, 500.0)  # a step takes 0.01 + 4 x 0.002 + 500 x 0.00001 = 0.023 s and has 100 tokens for prompts


def estimator(releases: Releases | None = None) -> Estimator:
    return Estimator(COSTS, LIMITS, LOAD, releases or Releases((), 4, 100))


def test_the_time_waited_counts() -> None:
    target = SloTarget(ttft_s=2.0)
    assert budget_s(target, 10.0, 10.0, 0.5, 1.2) == pytest.approx(1.4)
    assert budget_s(target, 10.0, 11.0, 0.5, 1.2) == pytest.approx(0.4)
    assert budget_s(target, 10.0, 11.5, 0.5, 1.2) == pytest.approx(-0.1)


def test_e2e_bounds_the_first_token_and_nothing_known_is_no_bound() -> None:
    assert deadline_s(SloTarget(ttft_s=5.0, e2e_s=8.0), 1.0, decode_s=6.0) == 3.0
    assert deadline_s(SloTarget(e2e_s=8.0), 1.0) == 9.0
    assert deadline_s(NO_SLO, 1.0) == math.inf
    assert not NO_SLO.known
    assert not SloTarget(tpot_s=0.1).known
    assert SloTarget(e2e_s=1.0).known


@pytest.mark.parametrize("name", ["ttft_s", "tpot_s", "e2e_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_limits_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        SloTarget(**{name: value})


def test_decode_budget_is_of_the_mean_over_the_answer() -> None:
    target = SloTarget(ttft_s=1.0, tpot_s=0.1, e2e_s=20.0)
    # 101 tokens from 5.0 may end at 15.0; 41 are there at 7.0, the other 60 take 0.05 s each
    assert decode_budget_s(target, 4.0, 5.0, 7.0, 41, 101, 0.05) == pytest.approx(5.0)
    # longer than foretold: one more token at least
    assert decode_budget_s(target, 4.0, 5.0, 16.0, 120, 101, 0.05) == pytest.approx(5.0 + 12.0 - 16.0 - 0.05)
    # the answer's end bounds it too: 24.0 instead of 45.0
    assert decode_budget_s(target, 4.0, 5.0, 7.0, 1, 401, 0.04) == pytest.approx(24.0 - 7.0 - 16.0)
    assert decode_budget_s(NO_SLO, 4.0, 5.0, 7.0, 1, 401, 0.04) == math.inf


def test_releases_of_slots_and_blocks() -> None:
    releases = Releases([(30, 5), (10, 2), (20, 40)], free_slots=1, free_blocks=10)
    assert releases.steps(1, 10) == 0
    assert releases.steps(2, 0) == 10
    assert releases.steps(3, 0) == 20
    assert releases.steps(1, 12) == 10
    assert releases.steps(1, 13) == 20
    assert releases.steps(9, 0) == 30  # more than there are: when all have ended
    assert Releases((), 0, 0).steps(1, 1) == 0


def test_a_prompt_beside_what_decodes_and_in_a_full_engine() -> None:
    # 150 tokens after 50: two steps of 0.023 s and 150 x 0.001; full: two steps of 0.01 + 4 x 0.002 + 1,000 x 0.00001
    # = 0.028 s with 100 tokens each
    expected = 0.5 * (2 * 0.023 + 0.150) + 0.5 * (2 * 0.028 + 0.200)
    assert estimator().prefill_s(Need(150, 50)) == pytest.approx(expected)
    assert estimator().work_s(Need(150, 50)) == pytest.approx(1.5 * 0.023 + 0.150)


def test_what_remains_waits_for_the_longest_of_release_work_and_restore() -> None:
    some = estimator(Releases([(10, 20), (40, 60)], free_slots=0, free_blocks=0))
    need = Need(50, blocks=5)
    prefill_s = some.prefill_s(need)
    slot_s = 0.5 * (10 * 0.023 + 10 * 0.028)
    assert some.remaining_s(need, Ahead()) == pytest.approx(slot_s + prefill_s)
    # two before it take the first slot and the blocks that come with it, so it waits for the second release
    assert some.remaining_s(need, Ahead(0.1, 1, 18)) == pytest.approx(4 * slot_s + prefill_s)
    assert some.remaining_s(need, Ahead(0.9)) == pytest.approx(0.9 + prefill_s)
    assert some.remaining_s(Need(50, restore_s=0.7), Ahead()) == pytest.approx(0.7 + prefill_s)


def test_a_full_engine_has_every_slot_and_block_in_use() -> None:
    assert full_load(LIMITS) == Load(4, 1000.0)


def test_gamma_is_the_quantile_once_enough_is_known() -> None:
    gamma = Gamma(share=0.9, enough=9, window=20)
    for ratio in (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7):
        gamma.saw("chat", 2.0, 2.0 * ratio)
    assert gamma.of("chat") == GAMMA_UNKNOWN
    gamma.saw("chat", 1.0, 0.9)
    assert gamma.of("chat") == pytest.approx(1.7)  # the ninth of nine: ceil(10 x 0.9)
    assert gamma.of("code") == GAMMA_UNKNOWN
    for _ in range(20):
        gamma.saw("chat", 1.0, 1.25)
    assert gamma.of("chat") == pytest.approx(1.25)  # the old ones are forgotten


def test_gamma_covers_nine_in_ten_of_what_follows() -> None:
    rng, gamma, covered = Random(7), Gamma(), 0
    for number in range(4000):
        actual_s = rng.lognormvariate(0.0, 0.5)
        covered += number >= 400 and actual_s <= gamma.of("chat")
        gamma.saw("chat", 1.0, actual_s)
    assert 0.88 < covered / 3600 < 0.92


def test_gamma_ignores_what_says_nothing_and_stays_in_bounds() -> None:
    gamma = Gamma(enough=1)
    for estimate_s, actual_s in ((0.0, 1.0), (1.0, math.inf), (math.nan, 1.0), (1.0, -1.0)):
        gamma.saw("chat", estimate_s, actual_s)
    assert gamma.of("chat") == GAMMA_UNKNOWN
    gamma.saw("chat", 1.0, 1000.0)
    assert gamma.of("chat") == Gamma.MOST
    assert Gamma(fixed=1.3).of("chat") == 1.3
