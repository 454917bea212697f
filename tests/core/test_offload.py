"""The offload curve: harmonic against a public sweep, refined online, context, and what fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.belief import LinearBelief
from predictor.offload import Footprint, MeasuredEnd, OffloadCurve, OffloadFit, from_ends, from_measured

# A 14B model (Q4, 48 layers) on an RTX 5060 Ti, llama.cpp: layers on the GPU and tokens per second.
SWEEP = ((0, 2.89), (8, 3.58), (16, 4.24), (24, 5.61), (32, 7.26), (40, 12.5), (48, 43.18))


def test_two_ends_foretell_the_public_sweep() -> None:
    curve = from_ends(SWEEP[-1][1], SWEEP[0][1])
    errors = [abs(curve.rate_per_s(layers / 48) / rate - 1) for layers, rate in SWEEP[1:-1]]
    assert sum(errors) / len(errors) < 0.05 and max(errors) < 0.1


def test_a_wrong_guess_is_corrected_by_what_is_measured() -> None:
    fit = OffloadFit(from_ends(60.0, 1.5))
    before = fit.uncertainty(0.9)
    for _ in range(3):
        for layers, rate in SWEEP:
            fit.observe(layers / 48, rate)
    assert fit.curve().rate_per_s(40 / 48) == pytest.approx(12.5, rel=0.1)
    assert fit.uncertainty(0.9) < before / 3


def test_longer_context_makes_offloading_dearer() -> None:
    curve = OffloadCurve(gpu_s=0.02, cpu_s=0.3, gpu_ctx_s=1e-7, cpu_ctx_s=2e-5)
    assert curve.ratio(20_000) > curve.ratio(0)
    assert curve.rate_per_s(0.8, 20_000) < curve.rate_per_s(0.8)


@given(st.floats(0, 1), st.floats(1, 100), st.floats(1.01, 50))
def test_the_rate_lies_below_the_straight_line_and_between_the_ends(fraction: float, cpu: float, times: float) -> None:
    curve = from_ends(cpu * times, cpu)
    rate = curve.rate_per_s(fraction)
    assert cpu * (1 - 1e-9) <= rate <= (cpu + fraction * (cpu * times - cpu)) * (1 + 1e-9)


def test_first_token_waits_for_the_prompt_on_both_sides() -> None:
    curve = OffloadCurve(0.02, 0.3, gpu_prompt_s=0.001, cpu_prompt_s=0.02)
    assert curve.ttft_s(1.0, 1000) == pytest.approx(1.02)
    assert curve.ttft_s(0.5, 1000) == pytest.approx(10.5 + 0.16)


def test_the_largest_fraction_is_in_whole_layers_and_fits() -> None:
    model = Footprint(weight_bytes=16e9, kv_bytes_per_token=1e5, layers=32, overhead_bytes=1e9)
    fraction = model.largest_fraction(10e9, kv_tokens=20_000)
    assert fraction == 16 / 32 and model.fits(10e9, fraction, 20_000) and not model.fits(10e9, fraction + 1 / 32, 20_000)
    assert model.largest_fraction(0.5e9) == 0.0 and model.largest_fraction(1e12) == 1.0


def test_a_curve_without_time_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        OffloadCurve(0.0, 1.0)


def test_a_belief_forgets_but_never_knows_less_than_at_first() -> None:
    belief = LinearBelief((1.0, 0.0), (1.0, 1.0), keep=0.5)
    for _ in range(50):
        belief.observe((1.0, 0.0), 3.0, 0.1)
    assert belief.predict((1.0, 0.0)).mean == pytest.approx(3.0, abs=0.02)
    assert belief.predict((0.0, 1.0)).sd <= 1.0 + 1e-9


def test_what_was_measured_at_both_ends_gives_back_the_curve() -> None:
    truth = OffloadCurve(0.01, 0.05, 1e-6, 2e-5, 1e-4, 3e-3)
    ends = []
    for fraction in (1.0, 0.0):
        contexts, prompts = (32.0, 500.0), (20, 480)
        token_s = tuple((context, truth.token_s(fraction, context)) for context in contexts)
        ends.append(MeasuredEnd(token_s, tuple((prompt, truth.ttft_s(fraction, prompt)) for prompt in prompts)))
    found = from_measured(*ends)
    for fraction in (0.0, 0.3, 1.0):
        assert found.token_s(fraction, 2000.0) == pytest.approx(truth.token_s(fraction, 2000.0))
        assert found.ttft_s(fraction, 1000) == pytest.approx(truth.ttft_s(fraction, 1000))


@pytest.mark.parametrize(
    ("points", "base_s"),
    [(((10.0, 0.02),), 0.02), (((10.0, 0.03), (500.0, 0.01)), 0.02), (((100.0, 0.01), (200.0, 0.02)), 0.015)],
    ids=["one point", "falling", "from nothing"],
)
def test_a_line_that_cannot_be_is_drawn_flat(points: tuple[tuple[float, float], ...], base_s: float) -> None:
    end = MeasuredEnd(points)
    curve = from_measured(end, end)
    assert (curve.gpu_s, curve.gpu_ctx_s, curve.gpu_prompt_s) == (pytest.approx(base_s), 0.0, 0.0)


def test_a_prompt_without_a_constant_part_starts_from_nothing() -> None:
    end = MeasuredEnd(((40.0, 0.02),), ((20.0, 0.15), (360.0, 3.6)))
    assert from_measured(end, end).gpu_prompt_s == pytest.approx(0.01, rel=0.01)
