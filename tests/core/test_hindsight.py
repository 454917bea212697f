"""What predictions change: places in the line, and choices of replica, beside a constant length's."""

from dataclasses import replace
from random import Random

import pytest

from gateway.config import ModelSpec
from gateway.desk import Desk, Dispatch, EngineView, Job
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate

STEPS = StepProfile(base_s=0.01, prefill_token_s=1e-4, decode_seq_s=1e-3, kv_token_s=1e-6)
LIMITS = EngineLimits(4096, 16, 64, 512, 8192)
CONSTANT = LengthEstimate(20, 250, 1000, "default")


def told(tokens: int) -> LengthEstimate:
    return LengthEstimate(tokens, tokens, tokens, "told")


def job(name: str, lengths: LengthEstimate = CONSTANT, prompt_tokens: int = 100) -> Job:
    return Job(name, "m", prompt_tokens, lengths, 0.0)


def busy_desk() -> Desk:
    """One engine with a long prompt under way: whoever comes waits."""
    desk = Desk(ModelSpec("m", "plan", order="sjf"), Random(1))
    desk.added("r0", EngineView(STEPS, LIMITS))
    assert desk.arrived(job("first", prompt_tokens=6000), 0.0)
    for name in ("a", "b", "c"):
        assert desk.arrived(job(name), 0.0) == []
    return desk


def sent(desk: Desk) -> list[str]:
    """The order in which the line leaves."""
    actions = desk.finished("first", 1, 1.0) + desk.tick(2.0)
    return [action.job.id for action in actions if isinstance(action, Dispatch)]


def test_a_short_one_passes_those_before_it() -> None:
    desk = busy_desk()
    assert desk.revise("c", told(50), 0.1) == []
    assert (desk.hindsight.compared, desk.hindsight.changed) == (1, 1)
    # it saves 2 x 250 tokens of waiting and costs the two 50 each
    mirror = desk._lanes.all[0].mirror
    assert desk.hindsight.gain_s == pytest.approx(400 * mirror.step_s, rel=0.01)
    assert sent(desk)[0] == "c"


def test_a_long_one_lets_those_behind_it_pass() -> None:
    desk = busy_desk()
    assert desk.revise("a", told(1000), 0.1) == []
    assert desk.hindsight.changed == 1
    assert desk.hindsight.gain_s > 0
    assert sent(desk)[-1] == "a"


def test_what_is_told_to_no_effect_is_counted_as_that() -> None:
    desk = busy_desk()
    desk.revise("a", told(10), 0.1)
    assert (desk.hindsight.compared, desk.hindsight.changed, desk.hindsight.gain_s) == (1, 0, 0.0)


def test_how_many_of_those_told_get_another_place_is_known() -> None:
    desk = busy_desk()
    assert desk.hindsight.moving == 1.0
    for turn in range(1000):
        desk.revise("a", told(300 + turn % 2), 0.1)
    assert desk.hindsight.moving < 0.01
    for turn in range(1000):
        desk.revise("a", told(1000 if turn % 2 else 10), 0.1)
    assert desk.hindsight.moving > 0.9
    assert desk.hindsight.compared == 2000


def test_who_is_gone_is_not_told_and_who_is_sent_changes_no_place() -> None:
    desk = busy_desk()
    assert desk.revise("first", told(10), 0.1) == []
    assert desk.revise("nobody", told(10), 0.1) is None
    desk.lost("a", 0.1)
    assert desk.revise("a", told(10), 0.1) is None
    assert desk.hindsight.compared == 0


def test_choices_are_compared_for_jobs_that_carry_their_constant_length() -> None:
    """A slow starter that decodes fast beside a quick starter that decodes slowly: the length decides."""
    desk = Desk(ModelSpec("m", "fanout"), Random(1))
    desk.added("starts", EngineView(replace(STEPS, decode_seq_s=0.03), LIMITS))
    desk.added("decodes", EngineView(replace(STEPS, base_s=0.01, prefill_token_s=3e-2), LIMITS))
    (short,) = desk.arrived(replace(job("short", told(4)), plain=told(500)), 0.0)
    assert isinstance(short, Dispatch)
    assert short.name == "starts"
    assert (desk.hindsight.compared, desk.hindsight.changed) == (1, 1)
    assert desk.hindsight.gain_s > 0
    desk.lost("short", 0.0)
    (long,) = desk.arrived(replace(job("long", told(500)), plain=told(501)), 0.0)
    assert isinstance(long, Dispatch)
    assert long.name == "decodes"
    assert (desk.hindsight.compared, desk.hindsight.changed) == (2, 1)
    desk.arrived(job("not compared", told(4)), 0.0)
    assert desk.hindsight.compared == 2
