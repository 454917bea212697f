"""The shipped profiles: complete, possible, as published; and files of one's own, checked before they are believed."""

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.calibrate import Step
from predictor.catalog import ProfileError, check, engine_profile, hardware_of, names, parse, render

OWN = """
[profiles."mine"]
h = { knee = 64, base_ms = 5, prefill_us = 10, decode_us = 2, kv_ns = 30, pair_ps = 400, error_pct = 3 }
limits = { kv_blocks = 1000, block_size = 16, max_num_seqs = 8, max_num_batched_tokens = 512, max_model_len = 4096 }
overhead_ms = 12
"""


@pytest.mark.parametrize("form", ["h", "linear"])
def test_every_shipped_profile_is_possible(form: str) -> None:
    assert len(names()) > 90
    for name in names():
        profile = engine_profile(name, form)
        assert profile.hardware is not None, "so that it was checked against it"
        assert 0 < profile.error < 0.2
        assert profile.limits.kv_blocks > 0
        assert 0.0005 < profile.step.step_s(0, 1, 1000) < 0.2
        assert profile.step.step_s(512, 8, 8000, 131_072) > profile.step.step_s(0, 8, 8000)


@pytest.mark.parametrize(
    ("name", "linear"),
    [
        ("llama-2-7b/tp1/h100", (5.95, 16.7, 27.9, 169.0)),
        ("llama-3.1-70b/tp4/h100", (14.23, 55.2, 37.8, 25.7)),
        ("qwen3-32b/tp1/gb200", (11.42, 38.4, 17.9, 33.4)),
    ],
)
def test_the_fitted_table_agrees_with_an_independent_fit_to_the_same_tables(
    name: str, linear: tuple[float, float, float, float]
) -> None:
    base_ms, prefill_us, decode_us, kv_ns = linear
    for form in ("linear", "h"):
        step = engine_profile(name, form).step
        for prefill, decodes, context in ((0, 16, 1024), (512, 32, 1024), (2048, 0, 0)):
            other_s = base_ms * 1e-3 + (prefill_us * prefill + decode_us * decodes) * 1e-6 + kv_ns * decodes * context * 1e-9
            assert step.step_s(prefill, decodes, decodes * context, prefill * prefill / 2) == pytest.approx(other_s, rel=0.15)


def test_figures_are_those_published() -> None:
    linear = engine_profile("llama-2-70b/tp4/a40", "linear").step
    assert linear.step_s(500, 10, 0) == pytest.approx(45.21e-3 + 295.6e-6 * 510)
    knee = engine_profile("llama-2-70b/tp4/a40").step
    assert [knee.step_s(tokens, 0, 0) for tokens in (1, 512, 2048)] == pytest.approx([63.9e-3, 180.8e-3, 690e-3], rel=0.01)
    paper = engine_profile("llama-2-7b/tp1/a30")
    assert paper.step.step_s(512, 48, 20_000, 0) == pytest.approx(
        1e-3 * (18.8 + 1.0 + 0.118 * (512 + 48 - 96) + 0.52 + 0.00207 * 48 + 0.000711 * 20_000)
    )
    assert (paper.limits.kv_blocks, paper.limits.max_num_seqs, paper.limits.watermark_blocks) == (1052, 48, 10)


def test_a_form_that_a_profile_lacks_is_replaced_by_the_one_it_has() -> None:
    assert engine_profile("qwen2-7b/tp1/a30").step.form == "linear"
    assert engine_profile("demo-fast").step.form == "linear"


def test_hardware_by_name() -> None:
    hardware = hardware_of("llama-3.1-8b/tp2/h100")
    assert hardware is not None
    assert hardware.hbm_bytes_per_s == 2 * 3350e9
    assert 50_000 * 16 < hardware.limits().kv_blocks * 16 < 2 * 80e9 / 131_072
    assert hardware_of("llama-3.1-8b/tp2/abacus") is None
    assert hardware_of("mine") is None
    assert hardware_of("llama-3.1-8b/two/h100") is None
    too_small = hardware_of("llama-3.1-70b/tp1/h100")
    assert too_small is not None
    with pytest.raises(ProfileError, match="do not fit"):
        too_small.limits()


def test_a_file_of_ones_own_goes_round(tmp_path: Path) -> None:
    (profile,) = parse(OWN).values()
    assert (profile.overhead_s, profile.error, profile.hardware) == (0.012, 0.03, None)
    measured = replace(profile, steps=(Step(0, 4, 400.0, 0.0, 0.0051), Step(512, 0, 0.0, 131_072.0, 0.0102)))
    path = tmp_path / "mine.toml"
    path.write_text(render(measured, "Measured\nhere."))
    again = engine_profile(str(path))
    assert again.step.step_s(100, 3, 999, 5e6) == pytest.approx(profile.step.step_s(100, 3, 999, 5e6), rel=1e-5)
    assert (again.limits, again.overhead_s) == (profile.limits, 0.012)
    assert [step.step_s for step in again.steps] == pytest.approx([0.0051, 0.0102])


def test_what_no_engine_can_do_is_refused() -> None:
    sound = engine_profile("llama-2-7b/tp1/a100")
    check(sound)
    with pytest.raises(ProfileError, match=r"12\.\d times the memory's bandwidth"):
        check(replace(sound, step=replace(sound.step, kv_token_s=sound.step.kv_token_s / 16.8)))
    with pytest.raises(ProfileError, match="reading the weights"):
        check(replace(sound, step=replace(sound.step, base_s=0.002)))
    steps = (Step(512, 0, 0.0, 1e5, 0.040), Step(1024, 0, 0.0, 4e5, 0.026), Step(2048, 0, 0.0, 2e6, 0.295))
    with pytest.raises(ProfileError, match="more work took less time"):
        check(replace(sound, steps=steps))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("not toml at all [", "not a profile"),
        ("profiles = 3", "expected tables"),
        (OWN.replace("h = {", "q = {"), "has no step form"),
        (OWN.replace("base_ms = 5", "base_ms = -5"), "base_s"),
        (OWN.replace("base_ms = 5", 'base_ms = "x"'), "mine"),
        (OWN.replace("base_ms", "base_minutes"), "base_minutes"),
        (OWN.replace("kv_blocks = 1000", "kv_blocks = 0"), "kv_blocks"),
        (OWN.replace("limits", "limit"), "limits are missing"),
        (OWN + "steps = [[1, 2], 3]", "mine"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_name(text: str, word: str) -> None:
    with pytest.raises(ProfileError, match=word):
        parse(text)


def test_a_name_that_is_not_known_gets_near_ones(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"llama-3\.1-8b/tp1/a100"):
        engine_profile("llama-3.1-8b/tp1/abacus")
    with pytest.raises(ProfileError, match="No such file"):
        engine_profile(str(tmp_path / "none.toml"))
    (tmp_path / "two.toml").write_text(OWN + OWN.replace('"mine"', '"other"'))
    with pytest.raises(ProfileError, match="holds 2 profiles"):
        engine_profile(str(tmp_path / "two.toml"))
