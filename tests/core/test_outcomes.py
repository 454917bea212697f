"""Outcomes: what is learnt from requests that were foretold, and what is not."""

import math

import pytest

from predictor.outcomes import FOLLOWED_MAX, LOG_MAX, SEEN_MIN, Outcomes
from predictor.profile import EngineLimits
from predictor.snapshot import Resident, Snapshot

LIMITS = EngineLimits(kv_blocks=96, block_size=16, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=1024)


def state(at_s: float, running: dict[str, int], waiting: tuple[str, ...] = ()) -> Snapshot:
    """Requests with so many generated tokens."""
    there = tuple(Resident(name, 10, 10 + tokens - 1 if tokens else 5, tokens, 500) for name, tokens in running.items())
    return Snapshot(at_s, LIMITS, there, tuple(Resident(name, 10, 0, 0, 500) for name in waiting), 50)


def live(outcomes: Outcomes, name: str, told_s: float, seen_s: float, tokens: int = 40, begin_s: float = 100.0) -> None:
    """One request from its arrival to its end, seen every five tokens."""
    outcomes.told(name, told_s, begin_s)
    outcomes.saw(state(begin_s + 0.1, {}, (name,)))
    outcomes.saw(state(begin_s + 0.2, {name: 0}))
    for made in range(1, tokens + 1, 5):
        outcomes.saw(state(begin_s + 0.3 + made * seen_s, {name: made}))
    outcomes.saw(state(begin_s + 0.4 + tokens * seen_s, {}))


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.8])
def test_factor_is_learnt(factor: float) -> None:
    outcomes = Outcomes()
    for number in range(80):
        live(outcomes, str(number), 0.02, 0.02 * factor)
    assert outcomes.stretch == pytest.approx(factor, rel=0.02)
    assert len(outcomes) == 0


def test_one_request_moves_it_only_a_little_and_nonsense_is_clipped() -> None:
    outcomes = Outcomes()
    live(outcomes, "a", 0.02, 2000.0)
    assert 1.0 < outcomes.stretch <= math.exp(LOG_MAX / 3)


def test_first_token_and_waiting_do_not_count() -> None:
    outcomes = Outcomes()
    outcomes.told("a", 0.02, 100.0)
    outcomes.saw(state(100.1, {}, ("a",)))
    outcomes.saw(state(150.0, {"a": 1}))
    outcomes.saw(state(150.02, {"a": 2}))
    outcomes.saw(state(150.42, {"a": 22}))
    outcomes.saw(state(150.5, {}))
    assert outcomes.seen == 1
    assert outcomes.stretch == pytest.approx(1.0)


@pytest.mark.parametrize("tpot_s", [0.0, -1.0, math.nan, math.inf])
def test_what_was_not_foretold_is_not_followed(tpot_s: float) -> None:
    outcomes = Outcomes()
    outcomes.told("a", tpot_s, 100.0)
    assert len(outcomes) == 0


def test_short_answers_and_those_never_seen_teach_nothing_and_are_let_go() -> None:
    outcomes = Outcomes()
    live(outcomes, "short", 0.02, 9.0, tokens=4)
    outcomes.told("never", 0.02, 100.0)
    outcomes.saw(state(101.0, {}))
    assert len(outcomes) == 1  # it may still be on its way
    outcomes.saw(state(100.0 + Outcomes.GIVE_UP_S + 1, {}))
    assert (outcomes.seen, outcomes.stretch, len(outcomes)) == (0, 1.0, 0)


def test_request_that_is_preempted_and_waits_again_is_followed_on() -> None:
    outcomes = Outcomes()
    outcomes.told("a", 0.02, 100.0)
    outcomes.saw(state(101.0, {"a": 5}))
    outcomes.saw(state(102.0, {}, ("a",)))
    assert len(outcomes) == 1
    outcomes.saw(state(103.0, {"a": 105}))
    outcomes.saw(state(104.0, {}))
    assert outcomes.seen == 1
    assert outcomes.stretch == pytest.approx(1.0)


def test_followed_ones_are_bounded_and_forgotten_with_their_engine() -> None:
    outcomes = Outcomes()
    for number in range(FOLLOWED_MAX + 10):
        outcomes.told(str(number), 0.02, 100.0)
    assert len(outcomes) == FOLLOWED_MAX
    outcomes.forget()
    assert len(outcomes) == 0


def test_spread_is_told_once_enough_is_seen() -> None:
    outcomes = Outcomes()
    for number in range(SEEN_MIN - 1):
        live(outcomes, str(number), 0.02, 0.02 * (1.0 if number % 2 else 2.0))
    assert outcomes.spread == 1.0
    live(outcomes, "last", 0.02, 0.02)
    assert 1.2 < outcomes.spread < 2.0
