"""The forecast: what an instance then does, harm to others, step by step where the kernel is not exact, never a guess."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.forecast import Forecast
from predictor.instance import Instance
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Admitted, Decoded, Estimate, Finished, FirstToken, Request
from predictor.snapshot import Resident, Snapshot
from predictor.stepwise import simulate
from tests.core.states import PAPER, PAPER_LIMITS, busy_state, random_state

LIMITS = EngineLimits(kv_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=128)
NEW = Request("new", 18, 5, 0.0)
HALF = Resident("h", prompt_tokens=40, computed_tokens=16, generated_tokens=0, output_tokens=5)
DECODER = Resident("d", prompt_tokens=10, computed_tokens=12, generated_tokens=3, output_tokens=9)


def lived(instance: Instance, request: Request, now_s: float) -> Estimate:
    """What becomes of the request on that engine, which is used up by it."""
    instance.submit(request, now_s)
    at_s: dict[type, float] = {}
    while Finished not in at_s:
        assert instance.step_ends_at_s is not None
        for event in instance.finish_step(instance.step_ends_at_s):
            if not isinstance(event, Decoded) and event.request_id == request.id:
                at_s.setdefault(type(event), event.at_s - now_s)
    tpot_s = (at_s[Finished] - at_s[FirstToken]) / max(1, request.output_tokens - 1)
    return Estimate(at_s[FirstToken], tpot_s, at_s[Finished], at_s[Admitted])


@pytest.mark.parametrize("order", ["vllm", "sglang"])
def test_it_foretells_what_a_live_engine_then_does(order: str) -> None:
    limits = replace(PAPER_LIMITS, kv_blocks=300, order=order)
    instance = Instance(PAPER, limits)
    for number in range(40):
        instance.submit(Request(f"r{number}", 20 + 7 * number, 30 + 5 * number, 0.0), 0.0)
    for _ in range(50):
        assert instance.step_ends_at_s is not None
        instance.finish_step(instance.step_ends_at_s)
    now_s = instance.step_ends_at_s - 0.001
    forecast = Forecast(PAPER, limits)
    forecast.load(instance.snapshot(now_s))
    assert forecast.by_kernel
    request = Request("new", 200, 100, now_s)
    told = forecast.predict(request)
    came = lived(instance, request, now_s)
    for name in ("ttft_s", "e2e_s", "tpot_s", "wait_s"):
        assert getattr(told, name) == pytest.approx(getattr(came, name), rel=1e-9)
    assert told.preempt_p in {0.0, 1.0} or 0 < told.preempt_p < 1


def test_harm_is_what_the_others_end_later() -> None:
    snapshot = busy_state(4)
    forecast = Forecast(PAPER, PAPER_LIMITS)
    forecast.load(snapshot)
    request = Request("new", 900, 200, 0.0)
    alone = simulate(PAPER, snapshot, None, steps_max=100_000)
    beside = simulate(PAPER, snapshot, Resident("new", 900, 0, 0, 200), drain=True, steps_max=100_000)
    told = forecast.predict(request, harm=True)
    assert told.harm_s == pytest.approx(beside.ends_sum_s - alone.ends_sum_s, rel=1e-6)
    assert told.harm_s > 0
    assert math.isnan(forecast.predict(request).harm_s), "not asked for"
    assert told.e2e_s == pytest.approx(forecast.predict(request).e2e_s, rel=1e-12)
    idle = Forecast(PAPER, PAPER_LIMITS)
    idle.load(Snapshot(0.0, PAPER_LIMITS, (), (), 1052))
    assert idle.predict(request, harm=True).harm_s == 0.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_both_ways_agree(seed: int) -> None:
    """The same state by the kernel and, forbidden to use it, step by step."""
    profile, snapshot, request = random_state(seed)
    fast, slow = Forecast(profile, snapshot.limits), Forecast(profile, snapshot.limits)
    slow._kernel = None
    fast.load(snapshot)
    slow.load(snapshot)
    assert fast.by_kernel
    assert not slow.by_kernel
    left, right = fast.predict(request, harm=True), slow.predict(request, harm=True)
    assert (left.kv_peak_blocks, left.preempt_p) == (right.kv_peak_blocks, right.preempt_p)
    for name in ("ttft_s", "tpot_s", "e2e_s", "wait_s"):
        assert getattr(left, name) == pytest.approx(getattr(right, name), rel=1e-9, abs=1e-12)
    assert left.harm_s == pytest.approx(right.harm_s, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("snapshot", "by_kernel"),
    [
        (Snapshot(0.0, LIMITS, (DECODER,), (), 61), True),
        (Snapshot(0.0, LIMITS, (DECODER,), (), 55), True),  # look-ahead blocks: settled
        (Snapshot(0.0, LIMITS, (replace(DECODER, output_tokens=2),), (), 61), True),  # repaired
        (Snapshot(0.0, LIMITS, (HALF, DECODER), (), 50), False),
        (Snapshot(0.0, LIMITS, (HALF, HALF, HALF), (), 30), False),
        (Snapshot(0.0, replace(LIMITS, order="sglang"), (DECODER,), (), 61), True),
        (Snapshot(0.0, replace(LIMITS, order="sglang"), (HALF, DECODER), (), 50), False),
    ],
)
def test_what_the_kernel_does_not_cover_goes_step_by_step(snapshot: Snapshot, by_kernel: bool) -> None:
    forecast = Forecast(PAPER, LIMITS)
    unique = tuple(replace(who, id=f"{who.id}{place}") for place, who in enumerate(snapshot.running))
    snapshot = replace(snapshot, running=unique)
    forecast.load(snapshot)
    assert forecast.by_kernel == by_kernel
    truth = simulate(PAPER, snapshot, Resident("new", 18, 0, 0, 5))
    assert forecast.predict(NEW).e2e_s == pytest.approx(truth.e2e_s, rel=1e-9)


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot(0.0, LIMITS, (replace(DECODER, computed_tokens=99),), (), 61),
        Snapshot(0.0, LIMITS, (replace(DECODER, prompt_tokens=-1),), (), 61),
        Snapshot(0.0, LIMITS, (), (replace(DECODER, prompt_tokens=10**30),), 61),
        Snapshot(0.0, LIMITS, (replace(DECODER, generated_tokens=10**30),), (), 61),
        Snapshot(0.0, LIMITS, (DECODER,), (), 70),
        Snapshot(0.0, replace(LIMITS, order="sglang"), (replace(DECODER, computed_tokens=99),), (), 61),
    ],
)
def test_a_state_that_cannot_be_gives_no_estimate(snapshot: Snapshot) -> None:
    forecast = Forecast(PAPER, LIMITS)
    forecast.load(snapshot)
    assert not forecast.predict(NEW).is_known
    assert not forecast.reply(NEW, now_s=1.0).estimate.is_known
    forecast.load(Snapshot(0.0, LIMITS, (DECODER,), (), 61))
    assert forecast.predict(NEW).is_known, "the next state counts"


def test_what_the_engine_would_refuse_or_cut_off() -> None:
    forecast = Forecast(PAPER, LIMITS)
    assert not forecast.predict(NEW).is_known, "nothing is loaded"
    forecast.load(Snapshot(0.0, LIMITS, (), (), 64))
    assert not forecast.predict(Request("long", 128, 1, 0.0)).is_known
    told = forecast.predict(Request("cut", 100, 10_000, 0.0))
    assert told.e2e_s == forecast.predict(Request("same", 100, 28, 0.0)).e2e_s
    assert forecast.predict(Request("one", 10, 1, 0.0)).tpot_s == 0.0


def test_the_step_in_progress_comes_first_and_hits_shorten() -> None:
    forecast = Forecast(PAPER, LIMITS)
    state = Snapshot(0.0, LIMITS, (DECODER,), (), 61)
    forecast.load(state)
    now = forecast.predict(NEW)
    forecast.load(replace(state, step_ends_s=0.5))
    later = forecast.predict(NEW)
    assert (later.ttft_s, later.wait_s) == (pytest.approx(now.ttft_s + 0.5), 0.5)
    assert later.tpot_s == pytest.approx(now.tpot_s)
    assert forecast.predict(NEW, hit_tokens=16).ttft_s < later.ttft_s
    assert forecast.predict(NEW, hit_tokens=99).is_known, "one token is computed at least"


def test_a_new_profile_holds_at_once() -> None:
    forecast = Forecast(PAPER, PAPER_LIMITS)
    forecast.load(busy_state(5))
    before = forecast.predict(NEW, harm=True)
    forecast.tune(PAPER.scaled(2.0))
    after = forecast.predict(NEW, harm=True)
    assert after.e2e_s == pytest.approx(2 * before.e2e_s, rel=1e-9)
    assert after.harm_s == pytest.approx(2 * before.harm_s, rel=1e-6)


def test_the_risk_of_preemption_rises_with_what_the_peak_leaves() -> None:
    state = busy_state(6, running=10, waiting=0)
    held = PAPER_LIMITS.kv_blocks - state.free_blocks

    def told(blocks: int) -> Estimate:
        limits = replace(PAPER_LIMITS, kv_blocks=blocks, watermark_blocks=0)
        forecast = Forecast(PAPER, limits)
        forecast.load(replace(state, limits=limits, free_blocks=blocks - held))
        return forecast.predict(Request("new", 500, 800, 0.0))

    roomy = told(4000)
    tight = [told(roomy.kv_peak_blocks + spare) for spare in (30, 5, 0)]
    assert {estimate.kv_peak_blocks for estimate in tight} == {roomy.kv_peak_blocks}
    assert roomy.preempt_p < 1e-6 < tight[0].preempt_p < tight[1].preempt_p < tight[2].preempt_p == 0.5
    assert told(roomy.kv_peak_blocks - 30).preempt_p == 1.0


def test_a_reply_holds_what_policies_go_by() -> None:
    forecast = Forecast(PAPER, LIMITS)
    forecast.spread = 1.4
    waiting = (Resident("w", 10, 4, 0, 6, shared_blocks=1), Resident("v", 5, 0, 3, 6))
    forecast.load(Snapshot(10.0, LIMITS, (DECODER,), waiting, 61))
    reply = forecast.reply(NEW, now_s=10.5)
    assert (reply.running, reply.waiting, reply.free_blocks, reply.waiting_blocks) == (1, 2, 61, 2 + 2)
    assert reply.queued_tokens == (10 + 9 - 12) + (10 + 6 - 4) + (5 + 6)
    assert (reply.snapshot_age_s, reply.estimate.spread) == (0.5, 1.4)
    assert reply.estimate.e2e_s == forecast.predict(NEW).e2e_s
    assert repr(forecast) == "<Forecast h the kernel>"


def test_a_simulation_beyond_its_cap_gives_no_estimate() -> None:
    forecast = Forecast(StepProfile(1, 0, 0, 0), PAPER_LIMITS)
    forecast.load(busy_state(7))
    assert forecast.predict(NEW).is_known
    assert forecast._kernel is not None
    forecast._kernel.turns_max = 3
    assert not forecast.predict(NEW).is_known
    assert not forecast.predict(NEW, harm=True).is_known
