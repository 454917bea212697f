"""The oracle behind a sidecar: what it adds to the forecast of a state."""

import math
from dataclasses import replace

import pytest

from predictor.calibrate import StepCorrection
from predictor.oracle import FixedPace, Oracle
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate
from predictor.sighting import Sighting, StepWork
from predictor.snapshot import Resident, Snapshot
from predictor.wire import Ask

PROFILE = StepProfile(base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0)
LIMITS = EngineLimits(kv_blocks=96, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=1024)
IDLE = Sighting(1, "e", Snapshot(100.0, LIMITS, (), (), 96))
BUSY = Sighting(
    2, "e", Snapshot(100.0, LIMITS, (Resident("a", 30, 33, 4, 50),), (), 93), StepWork(0, 1, 32, 0), StepWork(0, 1, 31, 0), 0.03
)  # fmt: skip


def ask(name: str = "new", prompt_tokens: int = 64, **more: object) -> Ask:
    return replace(Ask(name, "m", prompt_tokens, LengthEstimate(10, 10, 10, "t")), **more)  # type: ignore[arg-type]


def oracle(sighting: Sighting = IDLE, overhead_s: float = 0.0) -> Oracle:
    made = Oracle(FixedPace(PROFILE), overhead_s)
    made.saw(sighting)
    return made


def ttft_s(of: Oracle, asked: Ask, now_s: float = 100.0) -> float:
    return of.reply(asked, now_s).estimate.ttft_s


def test_overhead_is_added_to_every_instant_and_to_no_gap() -> None:
    plain, slow = oracle().reply(ask(), 100.0).estimate, oracle(overhead_s=0.5).reply(ask(), 100.0).estimate
    assert slow.ttft_s == pytest.approx(plain.ttft_s + 0.5)
    assert slow.e2e_s == pytest.approx(plain.e2e_s + 0.5)
    assert slow.wait_s == pytest.approx(plain.wait_s + 0.5)
    assert slow.tpot_s == plain.tpot_s


def test_prefix_of_a_reserved_prompt_is_not_computed_again() -> None:
    made = oracle()
    first = ask("a", 64, prefix=(11, 12, 13), block_tokens=16)
    assert ttft_s(made, first) == pytest.approx(PROFILE.step_s(64, 0, 0))
    made.reserve(first, 100.0)
    made.saw(replace(IDLE, number=2, snapshot=replace(IDLE.snapshot, taken_s=110.0)))  # it has come and gone
    alike = ask("b", 64, prefix=(11, 12, 99), block_tokens=16)
    assert ttft_s(made, alike, 110.0) == pytest.approx(PROFILE.step_s(32, 0, 0))
    whole = ask("c", 48, prefix=(11, 12, 13), block_tokens=16)
    assert ttft_s(made, whole, 110.0) == pytest.approx(PROFILE.step_s(1, 0, 0))  # the last token is always computed


@pytest.mark.parametrize(
    ("name", "then", "block_tokens"),
    [
        ("the engine caches nothing", replace(IDLE, number=2, caches_prefixes=False), 16),
        ("the asker does not say how long blocks are", replace(IDLE, number=2), 0),
    ],
)
def test_prefixes_that_are_not_cached_are_computed(name: str, then: Sighting, block_tokens: int) -> None:
    made = oracle()
    made.saw(then)
    made.reserve(ask("a", prefix=(11,), block_tokens=block_tokens), 100.0)
    made.reservations.expire(200.0)
    assert ttft_s(made, ask("b", prefix=(11,), block_tokens=block_tokens), 200.0) == pytest.approx(PROFILE.step_s(64, 0, 0))


def test_another_engine_has_nothing_cached() -> None:
    made = oracle(replace(IDLE, number=7))
    made.reserve(ask("a", prefix=(11,), block_tokens=16), 100.0)
    made.saw(IDLE)  # its numbers begin anew
    made.reservations.expire(200.0)
    assert ttft_s(made, ask("b", prefix=(11,), block_tokens=16), 200.0) == pytest.approx(PROFILE.step_s(64, 0, 0))


def test_reserved_prompts_are_computed_first_in_their_order() -> None:
    made = oracle()
    alone_s = ttft_s(made, ask())
    waits = [alone_s]
    for number in range(3):
        made.reserve(ask(f"r{number}"), 100.0)
        waits.append(ttft_s(made, ask()))
    assert waits == sorted(waits)
    assert len(set(waits)) == 4
    assert made.reply(ask(), 100.0).waiting == 3


def test_request_that_is_seen_before_it_is_reserved_counts_once() -> None:
    made, before = oracle(BUSY), oracle(BUSY).reply(ask(), 100.0)
    assert made.reserve(ask("a", 30), 100.0) == 100.0
    after = made.reply(ask(), 100.0)
    assert len(made.reservations) == 0
    assert (after.running, after.waiting) == (before.running, before.waiting) == (1, 0)
    assert after.queued_tokens == before.queued_tokens - 40, "it is known now to answer with 10 tokens, not with 50"


def test_harm_is_told_only_when_asked() -> None:
    made = oracle(BUSY)
    assert math.isnan(made.reply(ask(), 100.0).estimate.harm_s)
    assert made.reply(ask(harm=True), 100.0).estimate.harm_s > 0


def test_request_that_the_engine_would_refuse_is_unknown_not_wrong() -> None:
    assert not oracle().reply(ask("long", 1024), 100.0).estimate.is_known
    assert not oracle().reply(ask("longer", 2**31), 100.0).estimate.is_known


def test_state_that_no_engine_can_be_in_is_unknown() -> None:
    impossible = replace(BUSY, snapshot=replace(BUSY.snapshot, running=(Resident("a", 30, 99, 4, 50),)))
    assert not oracle(impossible).reply(ask(), 100.0).estimate.is_known


def test_observed_steps_correct_the_profile_behind_the_replies() -> None:
    made = Oracle(StepCorrection(PROFILE))
    made.saw(IDLE)
    before_s = ttft_s(made, ask())
    for number in range(2, 200):
        past = StepWork(number % 64, 2, 100, 0)
        told_s = PROFILE.step_s(past.prefill_tokens, past.decode_seqs, past.kv_tokens)
        made.saw(replace(IDLE, number=number, past=past, past_s=3 * told_s))
    assert ttft_s(made, ask()) == pytest.approx(3 * before_s, rel=0.05)
    told = made.reply(ask(), 100.0).estimate
    assert told.least <= 1.0 <= told.most == told.spread
    assert 0.0 < made.step_error < 0.1, "far off at first"
