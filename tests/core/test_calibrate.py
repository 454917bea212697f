"""Online correction of step times, and the fit of a whole profile."""

import random
from dataclasses import replace

import pytest

from predictor.calibrate import FACTOR_MAX, FACTOR_MIN, Step, StepCorrection, fit, mean_error
from predictor.profile import StepProfile
from predictor.sighting import Sighting, StepWork
from predictor.snapshot import Snapshot
from predictor.spread import Spread
from tests.core.states import PAPER, PAPER_LIMITS

H100 = StepProfile(6.72e-3, 19.4e-6, 13.6e-6, 41.3e-9, pair_s=808e-12, knee_tokens=192, form="h")


def shape(rng: random.Random) -> tuple[int, int, int, float]:
    """A step of an engine in use: decoders, now and then a piece of prompt with them."""
    decodes = rng.randint(1, 64)
    prefill = rng.choice([0, 0, rng.randint(1, 512)])
    return prefill, decodes, decodes * rng.randint(50, 2000), prefill * rng.randint(0, 3000) * 1.0


def run(correction: StepCorrection, truth: StepProfile, steps: int, noise: float = 0.03, seed: int = 1) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        work = shape(rng)
        correction.observe(*work, truth.step_s(*work) * (1 + rng.gauss(0, noise)))


def error(correction: StepCorrection, truth: StepProfile) -> float:
    rng = random.Random(99)
    works = [shape(rng) for _ in range(200)]
    return mean_error(correction.profile, [Step(*work, truth.step_s(*work)) for work in works])


@pytest.mark.parametrize(("factor", "overhead_s"), [(1.0, 0.0), (1.4, 0.0), (0.7, 0.004), (3.0, 0.02)])
def test_a_factor_and_an_overhead_are_found(factor: float, overhead_s: float) -> None:
    truth = replace(PAPER.scaled(factor), base_s=PAPER.base_s * factor + overhead_s)
    correction = StepCorrection(PAPER)
    run(correction, truth, 300)
    assert error(correction, truth) < 0.03
    assert correction.error < 0.06
    assert 1.0 < correction.spread < 1.2
    assert correction.steps == 300


def test_it_is_usable_from_the_first_step() -> None:
    truth = PAPER.scaled(1.5)
    correction = StepCorrection(PAPER)
    before = error(correction, truth)
    assert correction.observe(0, 40, 20_000, 0.0, truth.step_s(0, 40, 20_000))
    assert error(correction, truth) < before, "one step helps already"
    run(correction, truth, 20)
    assert error(correction, truth) < 0.1


def test_steps_all_alike_do_not_lead_astray() -> None:
    """From decode steps alone nobody can tell overhead from factor; prompts must not be priced absurdly after it."""
    truth = PAPER.scaled(1.3)
    correction = StepCorrection(PAPER)
    for _ in range(5000):
        correction.observe(0, 40, 20_000, 0.0, truth.step_s(0, 40, 20_000))
    assert correction.profile.step_s(0, 40, 20_000) == pytest.approx(truth.step_s(0, 40, 20_000), rel=0.03)
    assert 0.9 < correction.profile.step_s(512, 0, 0, 131_072.0) / truth.step_s(512, 0, 0, 131_072.0) < 1.1


def test_it_follows_a_change() -> None:
    correction = StepCorrection(PAPER)
    run(correction, PAPER, 1000)
    run(correction, PAPER.scaled(1.6), 1500, seed=2)
    assert error(correction, PAPER.scaled(1.6)) < 0.03


def test_stalls_are_clipped_and_nonsense_is_ignored() -> None:
    correction = StepCorrection(PAPER)
    rng = random.Random(4)
    for number in range(600):
        work = shape(rng)
        stalled = 0.2 if number % 100 == 50 else 0.0
        correction.observe(*work, PAPER.step_s(*work) + stalled)
    assert error(correction, PAPER) < 0.06
    steps = correction.steps
    for step_s in (0.0, -1.0, float("nan"), float("inf")):
        assert not correction.observe(0, 4, 100, 0.0, step_s)
    assert not correction.observe(0, 0, 0, 0.0, 1.0)
    assert correction.steps == steps


def test_the_factor_is_bounded() -> None:
    for truth, bound in ((PAPER.scaled(1000.0), FACTOR_MAX), (PAPER.scaled(0.001), FACTOR_MIN)):
        correction = StepCorrection(PAPER)
        run(correction, truth, 400)
        assert FACTOR_MIN <= correction.factor <= FACTOR_MAX
        if bound == FACTOR_MIN:
            assert correction.factor == bound


def test_a_profile_without_time_stays_usable() -> None:
    correction = StepCorrection(StepProfile(0, 0, 0, 0))
    for _ in range(200):
        correction.observe(0, 4, 100, 0.0, 0.01)
    assert correction.profile.step_s(0, 4, 100) == pytest.approx(0.01, rel=0.1)


def test_a_published_step_is_taken_in() -> None:
    state = Snapshot(0.0, PAPER_LIMITS, (), (), 1052)
    correction = StepCorrection(PAPER)
    work = StepWork(prefill_tokens=100, decode_seqs=10, kv_tokens=5000, pairs=5000)
    took_s = 2 * PAPER.step_s(100, 10, 5000, 5000)
    assert correction.saw(Sighting(1, "e", state, past=work, past_s=took_s))
    assert not correction.saw(Sighting(2, "e", state, past=work)), "a state without a word on the past"
    assert repr(correction).startswith("<StepCorrection x ")


def test_spread_is_where_nine_in_ten_stay() -> None:
    spread = Spread(window=100)
    assert (spread.q10, spread.q90, spread.median) == (1.0, 1.0, 1.0)
    for number in range(300):
        spread.saw(1.0, 1.0 + (number % 100) / 100)
    assert spread.q90 == pytest.approx(1.9, abs=0.02)
    assert spread.median == pytest.approx(1.5, abs=0.02)
    assert spread.q10 == 1.0, "at most 1"
    for number in range(100):
        spread.saw(1.0, 0.5 + number / 100)
    assert (spread.q10, spread.q90) == (pytest.approx(0.6, abs=0.02), pytest.approx(1.4, abs=0.02))
    spread.saw(0.0, 1.0)
    spread.saw(1.0, float("nan"))
    for _ in range(100):
        spread.saw(2.0, 1.0)
    assert spread.q90 == 1.0, "an interval upwards is never below the prediction"


@pytest.mark.parametrize("truth", [PAPER, H100, replace(H100, form="linear", knee_tokens=0)])
def test_a_whole_profile_is_fitted(truth: StepProfile) -> None:
    rng = random.Random(5)
    works = [shape(rng) for _ in range(150)] + [(tokens, 0, 0, tokens * tokens / 2) for tokens in (16, 64, 128, 256, 512)]
    steps = [Step(*work, truth.step_s(*work) * (1 + rng.gauss(0, 0.02))) for work in works]
    found, misfit = fit(steps, form="h")
    assert misfit < 0.03
    clean = [Step(*work, truth.step_s(*work)) for work in works]
    assert mean_error(found, clean) < 0.015
    assert fit(steps, form="linear")[1] < (0.03 if truth.form == "linear" else 0.2)


def test_nothing_cannot_be_fitted_and_one_step_can() -> None:
    with pytest.raises(ValueError, match="no steps"):
        fit([])
    found, misfit = fit([Step(10, 0, 0, 50.0, 0.1)])
    assert misfit < 1e-6
    assert found.step_s(10, 0, 0, 50.0) == pytest.approx(0.1)
