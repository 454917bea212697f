"""Whether a load from outside fits a request's budget: all, a part, or nothing of it."""

import math
from dataclasses import dataclass

import pytest

from backends.restore_rule import RestoreOptions, RestoreRule, options
from backends.standing import standing

NOW_S = 1_800_000_000.0


@dataclass
class Asked:
    num_prompt_tokens: int = 1000


def rule(tokens_per_s: float, kind: str = "feasible", prompt_us: float = 100.0) -> RestoreRule:
    made = RestoreRule(RestoreOptions(tokens_per_s, 0.0, kind, prompt_us), 16)
    made.pace.step_s = 0.0
    return made


def allowed(of: RestoreRule, ttft_ms: float, found: int = 960, local: int = 0) -> int:
    promise = standing({"leeway_v": 1, "leeway_ttft_ms": ttft_ms}, 0, NOW_S)
    return of.allowed(Asked(), promise, local, found, NOW_S)


def test_a_load_that_fits_is_made() -> None:
    assert allowed(rule(tokens_per_s=10_000), ttft_ms=200) == 960


def test_a_load_that_comes_too_late_is_computed_instead() -> None:
    assert allowed(rule(tokens_per_s=2_000), ttft_ms=200) == 0, "480 ms to load, 110 to compute"


def test_if_nothing_fits_the_cheapest_is_done() -> None:
    assert allowed(rule(tokens_per_s=2_000), ttft_ms=50) == 0
    assert allowed(rule(tokens_per_s=20_000), ttft_ms=10) == 960


def test_a_part_is_whole_blocks_and_only_where_it_is_allowed() -> None:
    part = allowed(rule(5_000.0, "partial"), ttft_ms=150)  # 192 ms to load all, 110 to compute all
    assert 0 < part < 960
    assert part % 16 == 0
    assert allowed(rule(5_000.0, "feasible"), ttft_ms=150) == 0


def test_transfers_that_are_under_way_count() -> None:
    made = rule(tokens_per_s=10_000)
    assert allowed(made, ttft_ms=180) == 960
    made.begun(960, 960, NOW_S)
    assert allowed(made, ttft_ms=180) == 0, "it would wait for the first one"


def test_without_an_slo_all_is_loaded_unless_the_rule_says_otherwise() -> None:
    plain = standing(None, 0, NOW_S)
    assert plain.deadline_s == math.inf
    assert rule(1.0).allowed(Asked(), plain, 0, 960, NOW_S) == 960
    assert rule(1.0, "never").allowed(Asked(), plain, 0, 960, NOW_S) == 0
    assert rule(1.0, "always").allowed(Asked(), plain, 0, 960, NOW_S) == 960


def test_counts() -> None:
    made = rule(1000.0)
    for tokens in (960, 480, 0):
        made.begun(960, tokens, NOW_S)
    assert (made.loaded, made.cut, made.refused) == (1, 1, 1)


def test_options_of_a_connector() -> None:
    assert options({}) == RestoreOptions()
    given = {"leeway_tokens_per_s": 5, "leeway_rule": "partial", "shared_storage_path": "/x"}
    assert options(given) == RestoreOptions(5.0, rule="partial")
    for extra in (
        {"leeway_tokens_per_s": "x"},
        {"leeway_tokens_per_s": 0},
        {"leeway_rule": "some"},
        {"leeway_latency_ms": True},
    ):
        with pytest.raises(ValueError, match="leeway_"):
            options(extra)
