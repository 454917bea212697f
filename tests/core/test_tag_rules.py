"""When a length is asked for: a table of cases, each with the reason."""

from dataclasses import dataclass, replace

import pytest

from gateway.config import ModelSpec
from gateway.jobs import Job
from gateway.tag_rules import SKIPS, moves, need, roomy
from gateway.views import EngineView, View
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate

STEPS = StepProfile(base_s=0.01, prefill_token_s=1e-4, decode_seq_s=1e-4, kv_token_s=0.0)
WIDE = LengthEstimate(20, 250, 1000, "default")
PLAN, PO2 = ModelSpec("m", "plan"), ModelSpec("m", "po2")


def view(name: str, kv_blocks: int = 4096, max_in_flight: int = 8) -> View:
    limits = EngineLimits(kv_blocks, 16, 8, 512, min(4096, 16 * kv_blocks))
    return EngineView(STEPS, limits, max_in_flight=max_in_flight).view(name)


def job(lengths: LengthEstimate = WIDE, name: str = "1") -> Job:
    return Job(name, "m", 100, lengths, 0.0)


@dataclass(frozen=True)
class Case:
    rule: ModelSpec
    skip: str
    holds: bool = False
    lengths: LengthEstimate = WIDE
    max_tokens: int = -1
    left_s: float = 60.0
    kv_blocks: int = 4096
    views: int = 2


CASES = {
    "the plan asks once the request waits": Case(PLAN, ""),
    "so does it with one replica": Case(PLAN, "", views=1),
    "first come, first served, and room": Case(replace(PLAN, order="fcfs"), "roomy"),
    "by deadline, and room": Case(replace(PLAN, order="edf"), "roomy"),
    "a plan at once compares no lengths": Case(replace(PLAN, binding="early"), "unused"),
    "nor do counts": Case(ModelSpec("m", "min_requests"), "unused"),
    "nor does a predicted TTFT": Case(replace(PO2, objective="ttft"), "unused"),
    "two choices wait for it": Case(PO2, "", holds=True),
    "so do tokens": Case(ModelSpec("m", "nosim"), "", holds=True),
    "one open replica is no choice": Case(PO2, "one_open", views=1),
    "cut off in nine of ten cases": Case(PO2, "limit", max_tokens=20),
    "not cut off": Case(PO2, "", holds=True, max_tokens=21),
    "all answers are alike": Case(PO2, "narrow", lengths=LengthEstimate(100, 110, 130, "model")),
    "no time left": Case(PO2, "no_time", left_s=0.015),
    "an answer may overfill the KV": Case(PLAN, "", holds=True, kv_blocks=90),
    "... and does with fcfs, too": Case(replace(PLAN, order="fcfs"), "", holds=True, kv_blocks=90),
    "... but there is no time": Case(PLAN, "", kv_blocks=90, left_s=0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_when_it_is_asked(name: str) -> None:
    case = CASES[name]
    views = [view(f"r{i}", case.kv_blocks) for i in range(case.views)]
    for each in views:
        assert each.mirror is not None
        each.mirror.dispatched(job(name=f"there {each.name}"), 0, 0.0)
    one = job(case.lengths)
    wanted = need(case.rule, one, case.max_tokens, views, 0.0, case.left_s, 0.01, has_room=roomy(one, views))
    assert (wanted.skip, wanted.holds) == (case.skip, case.holds)
    assert wanted.skip in (*SKIPS, "")


def test_a_full_replica_is_no_choice() -> None:
    views = [view("a", max_in_flight=1), view("b")]
    views[0].sent(0.0)
    assert need(PO2, job(), -1, views, 0.0, 60.0, 0.01, has_room=True).skip == "one_open"


@pytest.mark.parametrize(
    ("q50", "q90", "moved"), [(100, 400, False), (125, 400, False), (140, 400, True), (70, 400, True), (100, 600, True)]
)
def test_only_a_length_that_differs_is_worth_a_new_place(q50: int, q90: int, moved: bool) -> None:
    assert moves(LengthEstimate(20, 100, 400, "told"), LengthEstimate(20, q50, q90, "told")) is moved
