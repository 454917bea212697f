"""Requests and tokens per minute: a sliding window on the caller's clock."""

import time
from random import Random

import pytest
from limits.storage import MemoryStorage

from gateway.config import KeyLimits
from gateway.rates import Rates


def test_requests_per_minute() -> None:
    rates = Rates(KeyLimits(requests_per_min=3))
    assert [rates.admit(1, 30.0) for _ in range(3)] == [None, None, None]
    over = rates.admit(1, 30.0)
    assert over is not None
    assert over[0] == "requests"
    assert rates.admit(1, 30.0 + over[1]) is None, "what it said is enough"
    assert rates.admit(1, 30.0 + over[1]) is not None


def test_tokens_count_the_prompt_first_and_the_rest_when_it_is_known() -> None:
    rates = Rates(KeyLimits(tokens_per_min=1000))
    assert rates.admit(400, 0.0) is None
    assert rates.admit(400, 0.0) is None
    assert rates.admit(400, 0.0) is not None, "a refused one counts for nothing"
    rates.settle(500, 1.0)
    over = rates.admit(1, 2.0)
    assert over is not None
    assert over[0] == "tokens"
    assert rates.admit(1, 2.0 + over[1]) is None
    rates.settle(-5, 3.0)
    assert rates.admit(1001, 1000.0) == ("tokens", 60), "never, however long one waits"


def test_a_request_that_the_tokens_refuse_is_none_of_the_requests() -> None:
    rates = Rates(KeyLimits(requests_per_min=1, tokens_per_min=100))
    assert rates.admit(200, 0.0) is not None
    assert rates.admit(50, 0.0) is None


@pytest.mark.parametrize("seed", range(3))
def test_over_any_minute_it_is_about_the_limit_and_waiting_as_told_is_enough(seed: int) -> None:
    rng, now_s = Random(seed), 1e6
    rates, admitted = Rates(KeyLimits(requests_per_min=60)), []
    for _ in range(3000):
        now_s += rng.expovariate(4.0)
        over = rates.admit(1, now_s)
        if over is None:
            admitted.append(now_s)
        elif rng.random() < 0.05:
            now_s += over[1]
            assert rates.admit(1, now_s) is None
            admitted.append(now_s)
    for at_s in admitted[::50]:
        assert sum(at_s - 60 < other <= at_s for other in admitted) <= 120
    minutes = (admitted[-1] - admitted[0]) / 60
    assert 0.8 * 60 < len(admitted) / minutes < 1.05 * 60


def test_several_gateways_count_together_in_a_storage_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """On that storage's clock; one key's counts are not another's."""
    now_s = 6e8 + 20.0
    monkeypatch.setattr(time, "time", lambda: now_s)
    storage, limits = MemoryStorage(), KeyLimits(requests_per_min=3, tokens_per_min=1000)
    here, there, other = Rates(limits, "a", storage), Rates(limits, "a", storage), Rates(limits, "b", storage)
    assert [rates.admit(100, 0.0) for rates in (here, there, here)] == [None, None, None]
    over = there.admit(100, 0.0)
    assert over is not None
    assert over[0] == "requests"
    assert other.admit(100, 0.0) is None
    now_s += over[1]
    assert there.admit(100, 0.0) is None, "what it said is enough"
    now_s += 600.0
    assert here.admit(100, 0.0) is None
    here.settle(1500, 0.0)
    over = there.admit(100, 0.0)
    assert over is not None
    assert over[0] == "tokens", "what turned out at the other one counts here"
    now_s += over[1]
    assert there.admit(100, 0.0) is None
