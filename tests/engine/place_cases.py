"""What the record of vLLM's real scheduler lets a sidecar foretell: cases of test_engine_cascade.py, in the engine's Python.

usage: python -m tests.engine.place_cases MODEL_DIR [CASE...]
"""

import math
import os
import sys
import time

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash

from backends.shared_source import SharedRecordSource
from predictor.places import TIER_2, Comer, Places, latest_start_ms
from predictor.profile import StepProfile
from predictor.snapshot import Resident
from predictor.stepwise import simulate
from tests.engine.in_engine import run_cases
from tests.engine.stepped import STEP_S, TOKEN_S, Engine, teach


def a_sidecar_knows_the_place_of_one_who_comes() -> None:
    """The published record says enough of the queue to tell where a request will stand in it."""
    engine = Engine(slots=1, LEEWAY_RHO="0", LEEWAY_PREEMPT="0")
    teach(engine)
    engine.add("runs", 64, 200)
    engine.step()
    for number, ttft_ms in enumerate((9000.0, 2000.0, 60.0, 4000.0, 0.0, 0.0)):
        engine.add(f"w{number}", 64 + 32 * number, 5, **({"ttft_ms": ttft_ms} if ttft_ms else {}))
    engine.step()
    source = SharedRecordSource(os.environ["LEEWAY_SNAPSHOT"])
    for number, (prompt, due_s) in enumerate(((64, 3.0), (96, 30.0), (640, 0.05), (48, math.inf), (300, 2.2))):
        seen = source.look(time.monotonic())
        assert seen.queueing is not None
        assert seen.queueing.kind == "leeway"
        resident = Resident("new", prompt, 0, 0, 5)
        comer = Comer(resident, engine.now_s, engine.now_s + due_s)
        _, place = Places(seen.queueing, seen.snapshot).place(comer, engine.now_s)
        facts = {"deadline_unix_ms": (engine.now_s + due_s) * 1000} if due_s < math.inf else {}
        engine.add(f"new {number}", prompt, 5, **facts)
        engine.step()
        real = [one.request_id for one in engine.scheduler.waiting]
        assert place == real.index(f"new {number}"), (number, place, real)
    source.close()


def a_sidecar_knows_that_somebody_gives_way() -> None:
    """For an urgent request it foretells the slot that it will get; where nobody affords it, the wait."""
    for tpot_ms, at_once in ((500.0, True), (10.2, False)):
        engine = Engine(slots=2, chunk=256)
        teach(engine)
        for name in ("a", "b"):
            engine.add(name, 128, 200, ttft_ms=500.0, tpot_ms=tpot_ms, out_tokens=200)
        for _ in range(60):
            engine.step()
        source = SharedRecordSource(os.environ["LEEWAY_SNAPSHOT"])
        seen = source.look(time.monotonic())
        places = Places(seen.queueing, seen.snapshot)
        comer = Comer(Resident("new", 64, 0, 0, 5), engine.now_s, engine.now_s + 0.3)
        order, place = places.place(comer, engine.now_s)
        state = places.arranged(order, places.gives(comer, place, engine.now_s))
        told_s = simulate(StepProfile(STEP_S, TOKEN_S, 0.0, 0.0), state, comer.resident, place=place).ttft_s
        engine.add("new", 64, 5, ttft_ms=300.0)
        came_s = engine.now_s
        engine.drain()
        assert (engine.cascade.gave_way == 1) == at_once
        took_s = engine.first_s["new"] - came_s
        assert abs(told_s - took_s) < 0.02 + 0.1 * took_s, (told_s, took_s)
        source.close()


def a_sidecar_knows_which_begun_prompts_let_it_pass() -> None:
    """The record tells their deadlines: a sooner request is foretold before them, a later one behind them."""
    for ttft_ms, passes in ((2000.0, True), (40_000.0, False)):
        engine = Engine(slots=4, chunk=64)
        teach(engine)
        engine.add("decodes", 64, 300)
        engine.add("begun", 900, 40, ttft_ms=20_000.0)
        for _ in range(4):
            engine.step()
        source = SharedRecordSource(os.environ["LEEWAY_SNAPSHOT"])
        seen = source.look(time.monotonic())
        places = Places(seen.queueing, seen.snapshot)
        comer = Comer(Resident("new", 160, 0, 0, 5), engine.now_s, engine.now_s + ttft_ms / 1e3)
        order, place = places.place(comer, engine.now_s)
        state = places.arranged(order)
        assert ("begun" in [who.id for who in state.waiting]) == passes
        told_s = simulate(StepProfile(STEP_S, TOKEN_S, 0.0, 0.0), state, comer.resident, place=place).ttft_s
        engine.add("new", 160, 5, ttft_ms=ttft_ms)
        came_s = engine.now_s
        engine.drain()
        took_s = engine.first_s["new"] - came_s
        assert abs(told_s - took_s) < 0.02 + 0.1 * took_s, (told_s, took_s)
        assert (engine.first_s["new"] < engine.first_s["begun"]) == passes
        source.close()


def it_knows_the_place_by_priority_in_vllm_s_own_queue_too() -> None:
    engine = Engine(slots=1, stock=True)
    engine.add("runs", 64, 200)
    engine.step()
    now_ms = int(engine.now_s * 1000)
    for name, priority in (("late", now_ms + 9000), ("soon", now_ms + 2000), ("hopeless", TIER_2 + now_ms)):
        engine.add(name, 64, 5, priority=priority)
    engine.step()
    source = SharedRecordSource(os.environ["LEEWAY_SNAPSHOT"])
    for number, (due_s, tier, real) in enumerate(((4.0, 1, 1), (1.0, 1, 0), (60.0, 1, 4), (0.5, 2, 6), (math.inf, 1, 4))):
        seen = source.look(time.monotonic())
        assert seen.queueing is not None
        assert seen.queueing.kind == "priority"
        comer = Comer(Resident("new", 64, 0, 0, 5), engine.now_s, engine.now_s + due_s, tier=tier, alone_s=0.05)
        _, place = Places(seen.queueing, seen.snapshot).place(comer, engine.now_s)
        number_sent = latest_start_ms(comer.arrival_s, comer.deadline_s, comer.alone_s, tier)
        engine.add(f"new {number}", 64, 5, priority=number_sent)
        engine.step()
        queue = sorted(engine.scheduler.waiting, key=lambda request: (request.priority, request.arrival_time))
        assert place == [one.request_id for one in queue].index(f"new {number}") == real, (number, place)
    source.close()


CASES = [
    a_sidecar_knows_the_place_of_one_who_comes,
    a_sidecar_knows_that_somebody_gives_way,
    a_sidecar_knows_which_begun_prompts_let_it_pass,
    it_knows_the_place_by_priority_in_vllm_s_own_queue_too,
]


if __name__ == "__main__":
    init_none_hash(sha256)
    run_cases(CASES, sys.argv[2:])
