"""Step time, limits, presets and the records of a request."""

import dataclasses
import math

import pytest

from predictor.profile import PRESETS, EngineLimits, StepProfile, preset
from predictor.request import Estimate, LengthEstimate, Request, Timeline

PROFILE = StepProfile(base_s=0.010, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0001)
LIMITS = EngineLimits(kv_blocks=8, block_size=16, max_num_seqs=4, max_num_batched_tokens=32, max_model_len=128)


def test_step_time_is_the_sum_of_its_terms() -> None:
    assert PROFILE.step_s(0, 0, 0) == 0.010
    assert PROFILE.step_s(prefill_tokens=7, decode_seqs=0, kv_tokens=0) == pytest.approx(0.010 + 0.007)
    assert PROFILE.step_s(prefill_tokens=7, decode_seqs=3, kv_tokens=50) == pytest.approx(0.010 + 0.007 + 0.006 + 0.005)


def test_the_h_form_is_flat_up_to_its_knee_and_counts_pairs() -> None:
    knee = dataclasses.replace(PROFILE, form="h", knee_tokens=8, pair_s=1e-5, decode_base_s=0.5)
    assert knee.step_s(8, 0, 0) == 0.010
    assert knee.step_s(10, 0, 0, pairs=50.0) == pytest.approx(0.010 + 2 * 0.001 + 50e-5)
    assert knee.step_s(7, 3, 50) == pytest.approx(0.010 + 2 * 0.001 + 0.5 + 3 * 0.002 + 50 * 0.0001)


@pytest.mark.parametrize("change", [{"form": "cubic"}, {"form": "linear", "knee_tokens": 1}])
def test_a_form_is_known_and_only_h_has_a_knee(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="form"):
        dataclasses.replace(PROFILE, **change)


@pytest.mark.parametrize("form", ["linear", "h"])
def test_coefficients_and_scale_follow_the_form(form: str) -> None:
    profile = StepProfile(1.0, 2.0, 3.0, 4.0, pair_s=5.0, knee_tokens=6 * (form == "h"), decode_base_s=7.0, form=form)
    assert profile.coefficients == ((1.0, 2.0, 0.0, 0.0) if form == "linear" else (1.0, 0.0, 2.0, 6.0)) + (7.0, 3.0, 4.0, 5.0)
    assert profile.scaled(1.5).step_s(9, 2, 30, 4.0) == pytest.approx(1.5 * profile.step_s(9, 2, 30, 4.0))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(StepProfile)])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_a_coefficient_must_not_be_negative(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        dataclasses.replace(PROFILE, **{name: value})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"kv_blocks": 0}, "kv_blocks"),
        ({"block_size": 0}, "block_size"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": 33}, "max_num_batched_tokens"),
        ({"max_model_len": 129}, "max_model_len"),
        ({"watermark_blocks": 8}, "watermark_blocks"),
        ({"order": "alphabetical"}, "vllm, sglang"),
    ],
)
def test_limits_that_could_never_serve_are_refused(change: dict[str, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(LIMITS, **change)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (128, 8)])
def test_blocks_are_whole(tokens: int, blocks: int) -> None:
    assert LIMITS.blocks_for(tokens) == blocks


def test_presets_by_name() -> None:
    assert set(PRESETS) == {"demo-fast", "demo-slow", "instant"}
    fast, slow, instant = (preset(name).profile.step_s(512, 8, 4000) for name in ("demo-fast", "demo-slow", "instant"))
    assert instant == 0.0 < fast < slow
    with pytest.raises(ValueError, match="demo-fast, demo-slow, instant"):
        preset("warp")


def test_timeline_defines_the_latencies() -> None:
    timeline = Timeline("r", arrived_s=1.0, dispatched_s=1.5, first_token_s=2.0, finished_s=5.0, output_tokens=4)
    assert (timeline.ttft_s, timeline.tpot_s, timeline.e2e_s) == (1.0, 1.0, 4.0)
    waiting = Timeline("r", arrived_s=1.0)
    assert (waiting.ttft_s, waiting.tpot_s, waiting.e2e_s) == (None, None, None)
    single = Timeline("r", arrived_s=1.0, first_token_s=2.0, finished_s=2.0, output_tokens=1)
    assert single.tpot_s is None
    assert single.e2e_s == 1.0


def test_an_unknown_estimate_is_a_value_that_never_wins() -> None:
    known = Estimate(ttft_s=1.0, tpot_s=0.1, e2e_s=2.0)
    assert known.is_known
    assert not Estimate.unknown.is_known
    assert not Estimate.unknown.e2e_s < known.e2e_s
    assert not Estimate.unknown.e2e_s > known.e2e_s


def test_records_refuse_nonsense() -> None:
    assert LengthEstimate(1, 5, 9, "histogram").q50 == 5
    with pytest.raises(ValueError, match="quantiles"):
        LengthEstimate(5, 4, 9, "histogram")
    with pytest.raises(ValueError, match="output_tokens"):
        Request("r", prompt_tokens=1, output_tokens=0, arrival_s=0.0)
