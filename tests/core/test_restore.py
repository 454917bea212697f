"""KV in deeper memory by hand-computed cases: transfers in turn, what to restore, prefetch, placement, whom to displace."""

import math

import pytest

from predictor.restore import (
    Candidate,
    Fetch,
    Found,
    Link,
    Restorer,
    Tier,
    Verdict,
    crossover_tokens,
    keep_key,
    keep_value,
    prefetch_order,
    reuse_p,
    victim,
)

DRAM = Tier("DRAM", 100.0, 0.1)  # with 1 byte a token: 100 tokens a second after 0.1 s
NVME = Tier("NVMe", 10.0, 0.5)


def compute_s(tokens: int, cached: int) -> float:
    return 0.02 * tokens  # 50 tokens a second


def restorer(rule: str) -> Restorer:
    return Restorer([Link(DRAM), Link(NVME)], 1.0, rule)


FOUND = Found(20, (120, 170))  # 20 in HBM, 100 more in DRAM, 50 more in NVMe; the prompt has 200


def test_transfers_of_one_link_take_turns_and_links_work_side_by_side() -> None:
    link = Link(DRAM)
    assert link.transfer_s(50, 3.0) == pytest.approx(0.6)
    assert link.take(50, 3.0) == pytest.approx(3.6)
    assert link.transfer_s(50, 3.2) == pytest.approx(0.4 + 0.6)
    assert link.take(0, 3.2) == 3.2
    assert link.transfer_s(50, 9.0) == pytest.approx(0.6)
    both = restorer("always")
    assert both.restore_s(FOUND, 170, 0.0) == pytest.approx(max(0.1 + 1.0, 0.5 + 5.0))
    assert both.begin(FOUND, 120, 0.0) == pytest.approx(1.1)
    assert [one.free_at_s for one in both.links] == [pytest.approx(1.1), 0.0]


def test_what_each_tier_gives() -> None:
    assert FOUND.spans(170) == [100, 50]
    assert FOUND.spans(60) == [40, 0]
    assert FOUND.spans(10) == [0, 0]
    assert Found(0, (0, 30)).spans(30) == [0, 30]


@pytest.mark.parametrize(
    ("rule", "left_s", "tokens", "restore_s", "rest_s", "feasible"),
    [
        ("never", 9.0, 20, 0.0, 3.6, True),
        ("always", 1.0, 170, 5.5, 0.6, False),
        # all three fit: the one that computes least
        ("feasible", 9.0, 170, 5.5, 0.6, True),
        # 6.1 s do not, 1.1 + 1.6 do
        ("feasible", 4.0, 120, 1.1, 1.6, True),
        # nothing does: what ends soonest
        ("feasible", 2.0, 120, 1.1, 1.6, False),
        # a part of NVMe's: 0.5 + x / 10 + (80 - x) / 50 <= 4 up to x = 23
        ("partial", 4.0, 143, 2.8, 1.14, True),
    ],
)
def test_verdicts(rule: str, left_s: float, tokens: int, restore_s: float, rest_s: float, feasible: bool) -> None:
    verdict = restorer(rule).verdict(FOUND, 200, left_s, compute_s, 0.0)
    assert verdict == Verdict(tokens, pytest.approx(restore_s), pytest.approx(rest_s), feasible)
    assert verdict.cost_s == pytest.approx(restore_s + rest_s)


def test_a_busy_link_makes_recomputing_the_better_way() -> None:
    busy = Restorer([Link(DRAM)], 1.0, "feasible")
    found = Found(0, (100,))
    assert busy.verdict(found, 101, 1.5, compute_s, 0.0).tokens == 100
    busy.links[0].take(200, 0.0)  # 2.1 s
    assert busy.verdict(found, 101, 2.5, compute_s, 0.0).tokens == 0
    assert busy.verdict(found, 101, 3.5, compute_s, 0.0).tokens == 100


def test_the_last_token_is_always_computed() -> None:
    assert restorer("always").verdict(Found(0, (64, 64)), 64, 9.0, compute_s, 0.0).tokens == 63
    assert restorer("feasible").verdict(Found(64, ()), 64, 9.0, compute_s, 0.0).tokens == 63


def test_prefetch_is_for_who_has_least_time_but_time_enough() -> None:
    waiting = [Fetch("slack", 9.0, 1.0), Fetch("late", 0.5, 0.6), Fetch("here", 0.1, 0.0), Fetch("urgent", 2.0, 1.0)]
    assert prefetch_order(waiting) == ["urgent", "slack"]


def test_what_is_kept() -> None:
    assert reuse_p(0, 0.0, 60.0) == 0.5
    assert reuse_p(2, 0.0, 60.0) == 0.75
    assert reuse_p(2, 120.0, 60.0) == pytest.approx(0.1875)
    assert reuse_p(0, 0.0, 60.0, prior=0.1) == pytest.approx(0.1)
    assert keep_value(0.5, 0.04, 200.0) == pytest.approx(1e-4)


def test_the_key_keeps_the_order_of_values_at_any_time() -> None:
    blocks = [(0, 5.0, 0.3, 0.2), (3, 0.0, 0.5, 0.1), (1, 9.0, 0.5, 0.02), (0, 2.0, 0.9, 0.4)]
    by_key = sorted(blocks, key=lambda b: keep_key(b[0], b[1], 10.0, b[2], b[3], 100.0))
    for now_s in (9.0, 50.0):
        by_value = sorted(blocks, key=lambda b: keep_value(reuse_p(b[0], now_s - b[1], 10.0, b[2]), b[3], 100.0))
        assert by_key == by_value


RUNNING = [
    Candidate("rich", 9.0, 10.0, 5),
    Candidate("able", 4.0, 1.0, 5),
    Candidate("also", 4.0, 1.0, 8),
    Candidate("poor", 0.5, 1.0, 9),
]


def test_who_is_displaced() -> None:
    assert victim(RUNNING) == "also"
    assert victim(RUNNING, "paper") == "rich"
    assert victim([RUNNING[0], RUNNING[3]]) is None
    assert victim([]) is None
    assert victim([], "paper") is None


def test_from_which_length_restoring_pays() -> None:
    def quadratic_s(tokens: int, cached: int) -> float:
        return 0.001 * tokens + 0.00001 * tokens * tokens

    # 0.5 + x / 10 < x / 1,000 + x^2 / 100,000 from x = 9,906 on (the root of x^2 - 9,900 x - 50,000 is 9,905.05)
    assert crossover_tokens(NVME, 1.0, quadratic_s) == 9906
    assert crossover_tokens(NVME, 1.0, lambda tokens, _: 0.01 * tokens) == 0


@pytest.mark.parametrize("bad", [(0.0, 0.0, 1.0), (math.nan, 0.0, 1.0), (1.0, -1.0, 1.0), (1.0, 0.0, -1.0)])
def test_memory_that_cannot_be(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="tier odd"):
        Tier("odd", *bad)


def test_rules_that_are_not_known() -> None:
    with pytest.raises(ValueError, match="feasible"):
        Restorer([], 1.0, "sometimes")
    with pytest.raises(ValueError, match="paper"):
        victim([], "first")
