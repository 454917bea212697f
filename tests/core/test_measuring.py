"""What a calibration asks, and what it makes of the answers; the table of shipped profiles from another's tables."""

import pytest

from gateway.profile_fit import Choice, choices, steps_of, table_lines
from predictor.calibrate import Step
from predictor.catalog import ProfileError, parse
from predictor.measuring import PromptAsk, Prompted, Streamed, StreamsAsk, overhead_s, plan, reduce, stream_step, suspects
from predictor.profile import StepProfile

TRUTH = StepProfile(6.6e-3, 18e-6, 6e-6, 41e-9, pair_s=900e-12, knee_tokens=160, form="h")


def test_a_plan_asks_what_the_engine_can_answer_in_one_step() -> None:
    asks = plan(max_model_len=4096, max_num_seqs=16, max_num_batched_tokens=512)
    prompts = [ask.prompt_tokens for ask in asks if isinstance(ask, PromptAsk)]
    streams = [ask for ask in asks if isinstance(ask, StreamsAsk)]
    assert prompts == [8, 32, 64, 128, 256, 512]
    assert StreamsAsk(16, 1024) in streams
    assert all(ask.streams <= 16 for ask in streams)
    assert isinstance(asks[0], PromptAsk)
    assert isinstance(asks[1], StreamsAsk), "in turn, so that a short time has both"
    assert all(ask.prompt_tokens < 60 for ask in plan(64, 4, 64))


def stream(prompt: int, begin_s: float, gap_s: float, tokens: int, bunch: int = 1) -> Streamed:
    """A stream whose tokens come so many at a time."""
    counts = [*range(1, tokens + 1, bunch)]
    return Streamed(prompt, tuple((begin_s + gap_s * (count - 1), count) for count in counts))


def test_a_step_is_read_where_all_streams_decode() -> None:
    alone_then_together = [stream(32, 0.0, 0.010, 48), stream(32, 0.2, 0.010, 48)]
    step = stream_step(alone_then_together)
    assert step is not None
    assert (step.decode_seqs, step.step_s) == (2, pytest.approx(0.010))
    assert step.kv_tokens == pytest.approx(2 * 32 + (21 + 48) / 2 + (1 + 28) / 2)


def test_tokens_that_come_in_bunches_do_not_matter() -> None:
    step = stream_step([stream(32, 0.0, 0.002, 48, bunch=4), stream(32, 0.001, 0.002, 48, bunch=3)])
    assert step is not None
    assert step.step_s == pytest.approx(0.002)


def test_streams_that_never_met_tell_nothing() -> None:
    assert stream_step([stream(32, 0.0, 0.001, 10), stream(32, 5.0, 0.001, 10)]) is None
    assert stream_step([Streamed(8, ((0.0, 1),))]) is None


def answers(before_s: float) -> tuple[list[Prompted], list[Streamed]]:
    prompts = [
        Prompted(tokens, before_s + TRUTH.step_s(tokens, 0, 0, tokens * tokens / 2) * slow)
        for tokens in (8, 32, 64, 128, 256, 512, 1024, 2048)
        for slow in (1.0, 1.3)
    ]
    streams = [stream(context, 0.0, 0.0, 2) for context in (32,)]
    return prompts, streams


def test_a_profile_comes_out_of_the_answers() -> None:
    prompts, _ = answers(before_s=0.015)
    steps = []
    for count, context in ((1, 32), (4, 32), (16, 32), (4, 1024), (16, 1024), (32, 1024)):
        gap_s = TRUTH.step_s(0, count, count * (context + 24.5))
        step = stream_step([stream(context, 0.0, gap_s, 48)] * count)
        assert step is not None
        steps.append(step)
    profile, error, before_s, used = reduce(prompts, steps)
    assert error < 0.01
    assert before_s == pytest.approx(0.015, abs=1e-4)
    assert before_s == overhead_s(prompts, steps)
    assert len(used) == 8 + 6
    for shape in ((0, 8, 8000, 0.0), (300, 8, 8000, 300 * 150), (2000, 0, 0, 2e6)):
        assert profile.step_s(*shape) == pytest.approx(TRUTH.step_s(*shape), rel=0.03)


def test_what_took_longer_than_more_work_is_asked_again() -> None:
    prompts = [Prompted(8, 0.02), Prompted(64, 0.35), Prompted(64, 0.34), Prompted(128, 0.18), Prompted(256, 0.17)]
    few, many, deep = StreamsAsk(4, 32), StreamsAsk(16, 32), StreamsAsk(1, 1024)
    steps = {few: Step(0, 4, 200, 0, 0.07), many: Step(0, 16, 800, 0, 0.05), deep: Step(0, 1, 1050, 0, 0.04)}
    assert suspects(prompts, steps) == [PromptAsk(64), few], "5 % more is no reason, nor is less work of another kind"
    assert suspects([*prompts, Prompted(64, 0.1)], {many: steps[many]}) == []


def test_half_a_measurement_is_none() -> None:
    prompts, _ = answers(0.0)
    with pytest.raises(ValueError, match="both"):
        reduce(prompts, [])
    with pytest.raises(ValueError, match="both"):
        reduce([], [])


class Formula:
    """Operator tables that are a formula, in ms."""

    def decode_step_latency(self, gen_tokens: int, isl: int, osl: int) -> float:
        return TRUTH.step_s(0, gen_tokens, gen_tokens * isl) * 1e3

    def predict_prefill_latency(self, bs: int, isl: int, prefix: int = 0) -> float:
        tokens = isl - prefix
        return TRUTH.step_s(tokens, 0, 0, tokens * (prefix + tokens / 2)) * 1e3

    def mixed_step_latency(self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int) -> float:
        return TRUTH.step_s(ctx_tokens, gen_tokens, gen_tokens * isl, ctx_tokens * isl / 2) * 1e3


def test_a_table_is_fitted_to_the_operator_tables() -> None:
    steps = steps_of(Formula())
    assert len(steps) > 200
    text = table_lines("llama-3.1-8b/tp1/h100", steps) + table_lines("qwen3-32b/tp1/l40s", steps)
    knee = parse(text.partition('[profiles."qwen3')[0])["llama-3.1-8b/tp1/h100"]
    assert (knee.step.knee_tokens, knee.error) == (160, 0.0)
    assert knee.step.step_s(700, 30, 30_000, 1e6) == pytest.approx(TRUTH.step_s(700, 30, 30_000, 1e6), rel=0.002)
    assert parse(text.partition('[profiles."qwen3')[0], "linear")["llama-3.1-8b/tp1/h100"].error < 0.15
    assert "room as with 8-bit ones" in text, "32B weights in 16 bits do not fit into 48 GB"


def test_choices_are_by_name() -> None:
    assert Choice("llama-3.1-70b", "h100") in choices([], [])
    assert Choice("llama-3.1-70b", "l40s") not in choices([], []), "without a link between GPUs its figures are useless"
    assert [choice.name for choice in choices(["qwen3-8b"], ["h200"])] == ["qwen3-8b/tp1/h200"]
    for models, gpus in ((["gpt-17"], []), ([], ["abacus"])):
        with pytest.raises(ProfileError, match="is not among"):
            choices(models, gpus)
