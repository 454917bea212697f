"""Prompts that are begun in one order with those who wait, in vLLM's scheduler: cases of test_engine_cascade.py.

usage: python -m tests.engine.begun_cases MODEL_DIR [CASE...]
"""

import sys

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from tests.engine.in_engine import run_cases
from tests.engine.stepped import Engine, teach


def a_begun_prompt_lets_those_with_earlier_deadlines_pass() -> None:
    """A step's tokens go out in one order, and none is wasted."""
    engine = Engine(slots=4, chunk=64)
    teach(engine)
    engine.add("long", 640, 4, ttft_ms=20_000.0)
    assert engine.step() == {"long": 64}
    engine.add("sooner", 40, 4, ttft_ms=400.0)
    engine.add("later", 40, 4, ttft_ms=60_000.0)
    assert engine.step() == {"sooner": 40, "long": 24}
    assert engine.step() == {"sooner": 1, "long": 63}
    engine.add("other", 150, 4, ttft_ms=2000.0)
    assert [engine.step().get("long", 0) for _ in range(3)] == [0, 0, 40]
    engine.drain()
    order = sorted(engine.first_s, key=lambda name: engine.first_s[name])
    assert [name for name in order if not name.startswith("teacher")] == ["sooner", "other", "long", "later"], order
    assert {engine.tokens[name] for name in ("long", "sooner", "later", "other")} == {4}
    assert engine.cascade.gave_way == 0


def a_begun_prompt_does_not_wait_for_whom_there_is_no_room() -> None:
    engine = Engine(slots=4, chunk=64, blocks=48, LEEWAY_PREEMPT="0")
    teach(engine)
    engine.add("long", 610, 4, ttft_ms=20_000.0)
    for _ in range(5):
        engine.step()
    engine.add("large", 590, 4, ttft_ms=5_000.0)
    assert [engine.step() for _ in range(4)] == [{"long": 64}] * 4, "27 blocks are free, it needs 37"
    engine.drain()
    assert engine.tokens["large"] == engine.tokens["long"] == 4


def a_begun_prompt_keeps_its_blocks_from_those_behind_it() -> None:
    """vLLM itself asks only whether a prompt fits beside what is taken already."""
    engine = Engine(slots=4, chunk=64, blocks=48, LEEWAY_PREEMPT="0")
    teach(engine)
    engine.add("long", 610, 4, ttft_ms=5_000.0)
    engine.step()
    engine.add("large", 590, 4, ttft_ms=20_000.0)
    engine.add("small", 100, 40, ttft_ms=60_000.0)
    engine.drain()
    assert not engine.preempted, engine.preempted
    assert engine.first_s["long"] < engine.first_s["large"]
    assert {engine.tokens[name] for name in ("long", "large")} == {4}


def what_a_prompt_finds_in_the_cache_is_not_left_for_it() -> None:
    engine = Engine(slots=4, chunk=64)
    teach(engine)
    engine.add("prefix", 160, 2, tokens=[*range(160)], ttft_ms=20_000.0)
    engine.drain()
    engine.add("long", 640, 4, ttft_ms=20_000.0)
    engine.step()
    engine.add("sooner", 170, 4, tokens=[*range(170)], ttft_ms=2000.0)
    assert engine.step() == {"sooner": 10, "long": 54}
    engine.drain()


def ahead_of_its_tokens_it_hands_them_out_alike() -> None:
    engine = Engine(slots=4, chunk=64, ahead=1)
    teach(engine)
    engine.add("long", 640, 4, ttft_ms=20_000.0)
    engine.step()
    engine.add("sooner", 40, 4, ttft_ms=400.0)
    assert engine.step() == {"sooner": 40, "long": 24}
    engine.drain()
    assert engine.first_s["sooner"] < engine.first_s["long"]
    assert engine.tokens["long"] == 4


CASES = [
    a_begun_prompt_lets_those_with_earlier_deadlines_pass,
    a_begun_prompt_does_not_wait_for_whom_there_is_no_room,
    a_begun_prompt_keeps_its_blocks_from_those_behind_it,
    what_a_prompt_finds_in_the_cache_is_not_left_for_it,
    ahead_of_its_tokens_it_hands_them_out_alike,
]


if __name__ == "__main__":
    init_none_hash(sha256)
    run_cases(CASES, sys.argv[2:])
