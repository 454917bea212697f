"""What is foretold here, from the gateway's own picture, of an engine that orders its queue by deadlines."""

import math
from dataclasses import replace
from random import Random

import pytest

from gateway.foresight import Foresight
from gateway.jobs import Job
from gateway.views import View
from predictor.mirror import Mirror
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate
from predictor.stepwise import simulate

PROFILE = StepProfile(base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0)
LIMITS = EngineLimits(kv_blocks=1000, block_size=16, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=1024)


def job(name: str, prompt: int, due_s: float = math.inf, output: int = 20) -> Job:
    return Job(name, "m", prompt, LengthEstimate(output, output, output, "test"), 0.0, deadline_s=due_s)


class Read:
    """A progress without a token."""

    generated = 0
    computed = -1


def full(scheduling: str) -> View:
    """Two run there, three wait: a long one with much time, one without a promise, and one that is soon due."""
    view = View("a", mirror=Mirror(PROFILE, LIMITS))
    mirror = view.mirror
    assert mirror is not None
    mirror.scheduling = scheduling
    for name in ("x", "y"):
        mirror.dispatched(job(name, 20, output=200), 0, 0.0)
        mirror.first_token(name, 0.1)
    for one in (job("long", 600, 300.0), job("plain", 200), job("soon", 100, 4.0)):
        mirror.dispatched(one, 0, 0.2)
    return view


@pytest.mark.parametrize(
    ("scheduling", "due_s", "ahead"),
    [
        ("", 3.0, ["long", "plain", "soon"]),
        ("fcfs", 3.0, ["long", "plain", "soon"]),
        ("priority", 3.0, []),
        ("priority", 20.0, ["soon"]),
        ("priority", 60.0, ["soon", "plain"]),  # who was promised nothing is taken to have half a minute
        ("priority", math.inf, ["soon", "plain"]),
        ("priority-low-first", 20.0, ["soon"]),
        ("leeway", 3.9, []),
        ("leeway", 60.0, ["soon"]),
        ("leeway", math.inf, ["soon", "long"]),
    ],
)
def test_a_request_is_foretold_where_its_engine_would_put_it(scheduling: str, due_s: float, ahead: list[str]) -> None:
    view, asked = full(scheduling), job("new", 50, due_s)
    assert view.mirror is not None
    snapshot = view.mirror.snapshot(0.3)
    assert [who.id for who in snapshot.waiting] == ["long", "plain", "soon"]
    told = Foresight().reply(asked, view, 0.3)
    assert told is not None
    by_name = {who.id: who for who in snapshot.waiting}
    order = [*ahead, "new", *[name for name in ("soon", "long", "plain") if name not in ahead]]
    if scheduling.startswith("priority"):
        order = [*ahead, "new", *[name for name in ("soon", "plain", "long") if name not in ahead]]
    target = Mirror(PROFILE, LIMITS)
    target.dispatched(asked, 0, 0.3)
    (new,) = target.snapshot(0.3).running or target.snapshot(0.3).waiting
    waiting = tuple(by_name[name] for name in order if name != "new")
    truth = simulate(PROFILE, replace(snapshot, waiting=waiting), new, place=len(ahead))
    assert told.estimate.ttft_s == pytest.approx(snapshot.step_ends_s + truth.ttft_s)
    assert told.waiting == 3


def seated(outputs: dict[str, float], slots: int = 2) -> View:
    """All slots are taken by answers of 200 tokens, of which each may take so long on the mean."""
    view = View("a", mirror=Mirror(PROFILE, replace(LIMITS, max_num_seqs=slots)))
    mirror = view.mirror
    assert mirror is not None
    mirror.scheduling = "leeway"
    for name, tpot_s in outputs.items():
        mirror.dispatched(replace(job(name, 20, output=200), tpot_s=tpot_s), 0, 0.0)
        mirror.first_token(name, 0.1)
    return view


@pytest.mark.parametrize(
    ("tpots", "at_once"),
    [({"x": math.inf, "y": 0.015}, True), ({"x": 0.5, "y": 0.015}, True), ({"x": 0.015, "y": 0.0151}, False)],
)
def test_who_gives_its_slot_is_foretold_by_the_budgets_of_those_it_sent(tpots: dict[str, float], at_once: bool) -> None:
    """As a sidecar does: an urgent request does not wait for a slot where somebody affords to give one."""
    told = Foresight().reply(job("new", 50, 1.0), seated(tpots), 0.3)
    assert told is not None
    assert (told.estimate.ttft_s < 0.2) == at_once
    patient = Foresight().reply(job("new", 50, 600.0), seated(tpots), 0.3)
    assert patient is not None
    assert patient.estimate.ttft_s > 1.0, "it can wait"


@pytest.mark.parametrize(("scheduling", "due_s", "passes"), [("leeway", 2.0, True), ("leeway", 50.0, False), ("", 2.0, False)])
def test_a_begun_prompt_lets_a_sooner_one_pass(scheduling: str, due_s: float, passes: bool) -> None:
    view = View("a", mirror=Mirror(PROFILE, replace(LIMITS, max_num_seqs=4)))
    mirror = view.mirror
    assert mirror is not None
    mirror.scheduling = scheduling
    mirror.dispatched(job("begun", 900, 20.0), 0, 0.0)
    told = Foresight().reply(job("new", 50, due_s), view, 0.2)
    assert told is not None
    assert (told.estimate.ttft_s < 0.3) == passes
    assert told.running + told.waiting == 1


def test_first_tokens_that_came_otherwise_give_the_interval() -> None:
    """Some early, some late: eight in ten of what was seen lie between the bounds that the next estimate has."""
    view, rng = View("a", mirror=Mirror(PROFILE, LIMITS, learns=True)), Random(7)
    mirror, seen = view.mirror, []
    assert mirror is not None
    for number in range(60):
        now_s = 10.0 * number
        told_s = mirror.dispatched(job(str(number), 200), 0, now_s, Read())
        seen.append(rng.lognormvariate(0.0, 0.3))
        mirror.first_token(str(number), now_s + told_s * seen[-1])
        mirror.finished(str(number), now_s + 9.0)
    told = Foresight().reply(job("next", 200), view, 900.0)
    assert told is not None
    assert 0.5 < told.estimate.least < 0.85
    assert 1.2 < told.estimate.most < 2.0
    inside = [told.estimate.least <= ratio <= told.estimate.most for ratio in seen[-50:]]
    assert 0.7 <= sum(inside) / 50 <= 0.9
