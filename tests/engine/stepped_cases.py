"""The cases of test_engine_cascade.py: runs in the engine's environment, prints the JSON list of those that held.

usage: python -m tests.engine.stepped_cases MODEL_DIR [CASE...]
"""

import ast
import inspect
import sys

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

import backends.vllm_cascade as ours
import backends.vllm_scheduler as publishing
from tests.engine.in_engine import run_cases
from tests.engine.stepped import BEGIN_S, Engine, teach


def order_is_that_of_deadlines() -> None:
    engine = Engine(slots=1)
    teach(engine)
    engine.add("runs", 64, 30)
    engine.step()
    for name, ttft_ms in (("late", 9000.0), ("soon", 3000.0), ("middle", 6000.0)):
        engine.add(name, 64, 5, ttft_ms=ttft_ms)
    engine.add("plain", 64, 5)
    engine.drain()
    assert engine.begun == ["runs", "soon", "middle", "late", "plain"], engine.begun


def who_cannot_be_in_time_goes_last_and_is_served() -> None:
    engine = Engine(slots=1, LEEWAY_PREEMPT="0")
    teach(engine)
    engine.add("runs", 64, 100)
    engine.step()
    engine.add("doomed", 640, 5, ttft_ms=200.0)
    engine.add("fine", 64, 5, ttft_ms=4000.0)
    engine.drain()
    assert engine.begun == ["runs", "fine", "doomed"], engine.begun
    assert engine.tokens["doomed"] == 5


def priority_as_latest_start_is_understood() -> None:
    engine = Engine(slots=1)
    teach(engine)
    engine.add("runs", 64, 30)
    engine.step()
    now_ms = int(engine.now_s * 1000)
    engine.add("later", 64, 5, priority=now_ms + 9000)
    engine.add("second tier", 64, 5, priority=(1 << 50) + now_ms - 1000)
    engine.add("sooner", 64, 5, priority=now_ms + 3000)
    engine.drain()
    assert engine.begun == ["runs", "sooner", "later", "second tier"], engine.begun


def plain_requests_run_as_ever() -> None:
    engine = Engine(slots=4)
    for number in range(20):
        engine.add(f"p{number}", 20 + number, 8)
    engine.drain()
    assert all(engine.tokens[f"p{number}"] == 8 for number in range(20))
    assert (engine.cascade.gave_way, engine.cascade.paused) == (0, 0)


def tier_2_gets_its_share_of_prompt_tokens() -> None:
    engine = Engine(order="lrb", slots=4, chunk=64, LEEWAY_RHO="0.2", LEEWAY_PREEMPT="0")
    teach(engine)
    counts = {1: 0, 2: 0}
    serial = 0
    for _ in range(600):
        waiting = [one.request_id.partition(" ")[0] for one in engine.scheduler.waiting]
        for _ in range(4 - waiting.count("first")):
            engine.add(f"first {serial}", 128, 1, ttft_ms=30_000.0)
            serial += 1
        for _ in range(4 - waiting.count("second")):
            engine.add(f"second {serial}", 128, 1)
            serial += 1
        tiers = {name: request.leeway.tier for name, request in engine.scheduler.requests.items()}
        for name, tokens in engine.step().items():
            counts[engine.scheduler.requests[name].leeway.tier if name in engine.scheduler.requests else tiers[name]] += tokens
    share = counts[2] / (counts[1] + counts[2])
    assert 0.16 <= share <= 0.24, counts


def urgent_request_gets_the_slot_of_the_largest_budget() -> None:
    engine = Engine(slots=3, chunk=256)
    teach(engine)
    engine.add("tight", 64, 300, ttft_ms=500.0, tpot_ms=11.0, out_tokens=300)
    engine.add("loose", 64, 300, ttft_ms=500.0, tpot_ms=500.0, out_tokens=300)
    engine.add("middle", 64, 300, ttft_ms=500.0, tpot_ms=40.0, out_tokens=300)
    for _ in range(20):
        engine.step()
    engine.add("urgent", 64, 5, ttft_ms=300.0)
    came_s = engine.now_s
    for _ in range(5):
        engine.step()
    assert engine.first_s["urgent"] - came_s <= 0.3, engine.first_s
    assert engine.cascade.gave_way == 1
    preempted = [name for name, one in engine.scheduler.requests.items() if one.num_preemptions]
    assert preempted == ["loose"], preempted
    engine.drain()
    assert engine.tokens["loose"] == 300, "it comes back and loses nothing"
    assert engine.cascade.gave_way == 1, "no ping-pong"


def nobody_gives_way_who_could_not_afford_it() -> None:
    engine = Engine(slots=2, chunk=256)
    teach(engine)
    for name in ("a", "b"):
        engine.add(name, 256, 200, ttft_ms=500.0, tpot_ms=10.5, out_tokens=200)
    for _ in range(10):
        engine.step()
    engine.add("urgent", 64, 5, ttft_ms=300.0)
    came_s = engine.now_s
    for _ in range(10):
        engine.step()
    assert engine.cascade.gave_way == 0
    assert engine.cascade._nobody_until_s > came_s, "it was tried"
    engine.drain()


def nobody_gives_way_while_admission_is_paused() -> None:
    engine = Engine(slots=2, chunk=256)
    teach(engine)
    for name in ("a", "b"):
        engine.add(name, 64, 200, ttft_ms=500.0, tpot_ms=500.0, out_tokens=200)
    for _ in range(10):
        engine.step()
    engine.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    engine.add("urgent", 64, 5, ttft_ms=300.0)
    for _ in range(5):
        engine.step()
    assert engine.cascade.gave_way == 0
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.drain()
    assert engine.tokens["urgent"] == 5


def freed_slot_is_held_for_whom_it_was_freed() -> None:
    engine = Engine(slots=2, chunk=16)
    teach(engine)
    for name in ("a", "b"):
        engine.add(name, 16, 400, out_tokens=400, ttft_ms=900.0, tpot_ms=900.0)
    for _ in range(10):
        engine.step()
    for number in range(6):
        engine.add(f"patient {number}", 16, 5, ttft_ms=60_000.0)
    engine.add("urgent", 160, 5, ttft_ms=400.0)
    engine.begun.clear()
    engine.drain()
    assert engine.begun[0] == "urgent", engine.begun
    assert len(engine.begun) == 7


def demoted_requests_are_promoted_when_load_falls() -> None:
    engine = Engine(slots=1, LEEWAY_PREEMPT="0")
    teach(engine)
    long = engine.add("runs", 64, 600, out_tokens=600)
    engine.step()
    engine.add("waits", 64, 5, ttft_ms=3000.0)
    engine.step()
    waiting = engine.cascade.queue.get("waits")
    assert waiting is not None
    assert waiting.tier == 2, "6 s of tokens are before it"
    engine.scheduler.finish_requests(long.request_id, RequestStatus.FINISHED_ABORTED)
    engine.step()
    assert engine.scheduler.requests["waits"].leeway.tier == 1, "promoted, then begun"
    engine.drain()


def old_ones_are_not_overtaken() -> None:
    engine = Engine(order="mh", slots=1, LEEWAY_AGE_S="2", LEEWAY_PREEMPT="0")
    teach(engine)
    engine.add("runs", 64, 450, out_tokens=450)
    engine.step()
    engine.add("old", 640, 2)
    while engine.scheduler.running:
        engine.step()
        if engine.now_s > BEGIN_S + 3.5 and "young" not in engine.scheduler.requests and "young" not in engine.begun:
            engine.add("young", 32, 2, ttft_ms=9000.0)
    engine.drain()
    assert engine.begun.index("old") < engine.begun.index("young"), engine.begun


def aborts_leave_nothing() -> None:
    engine = Engine(slots=2)
    for number in range(6):
        engine.add(f"r{number}", 64, 50, ttft_ms=500.0)
    for _ in range(3):
        engine.step()
    engine.scheduler.finish_requests([f"r{number}" for number in range(6)], RequestStatus.FINISHED_ABORTED)
    engine.step()
    assert len(engine.scheduler.waiting) == 0
    assert not engine.scheduler.waiting
    assert len(engine.cascade.queue) == 0
    assert engine.scheduler.get_request_counts() == (0, 0)


def out_of_kv_the_largest_budget_goes() -> None:
    engine = Engine(slots=4, blocks=26, chunk=128, LEEWAY_PREEMPT="0")
    teach(engine)
    engine.add("tight", 100, 80, ttft_ms=900.0, tpot_ms=12.0, out_tokens=80)
    engine.add("loose", 100, 80, ttft_ms=900.0, tpot_ms=400.0, out_tokens=80)
    engine.add("middle", 100, 80, ttft_ms=900.0, tpot_ms=60.0, out_tokens=80)
    preempted: list[str] = []
    for _ in range(4000):
        if not engine.scheduler.has_unfinished_requests():
            break
        engine.step()
        preempted += [n for n, one in engine.scheduler.requests.items() if one.num_preemptions and n not in preempted]
    assert preempted, "25 blocks do not hold 3 x 180 tokens"
    assert preempted[0] == "loose", preempted
    assert all(engine.tokens[name] == 80 for name in ("tight", "loose", "middle")), engine.tokens


def a_late_prompt_gives_its_blocks_to_tier_1() -> None:
    engine = Engine(slots=4, blocks=48, chunk=64)
    teach(engine)
    late = engine.add("late", 610, 4, ttft_ms=200.0)
    for _ in range(9):
        engine.step()
    assert late.leeway.tier == 2
    for number in range(3):
        engine.add(f"first {number}", 190, 10, ttft_ms=2500.0)
    came_s = engine.now_s
    assert engine.step() == {"first 0": 64}, "11 blocks are free, it needs 12"
    assert (engine.cascade.gave_way, late.num_preemptions) == (1, 1)
    engine.drain()
    assert all(engine.first_s[f"first {number}"] - came_s <= 1.0 for number in range(3)), engine.first_s
    assert engine.tokens["late"] == 4, "it comes back and loses nothing"
    assert engine.cascade.gave_way == 1, "once in its life"


def reset_of_the_prefix_cache_brings_everybody_back() -> None:
    engine = Engine(slots=3)
    for number in range(5):
        engine.add(f"r{number}", 64, 20, ttft_ms=5000.0)
    for _ in range(6):
        engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert len(engine.scheduler.waiting) == 5
    engine.drain()
    assert all(engine.tokens[f"r{number}"] == 20 for number in range(5)), engine.tokens


def ahead_of_its_tokens_it_decides_alike() -> None:
    """The asynchronous class: the same order, the same victim, every token once."""
    engine = Engine(slots=3, chunk=256, ahead=1)
    teach(engine)
    engine.add("tight", 64, 200, ttft_ms=500.0, tpot_ms=11.0, out_tokens=200)
    engine.add("loose", 64, 200, ttft_ms=500.0, tpot_ms=500.0, out_tokens=200)
    engine.add("middle", 64, 200, ttft_ms=500.0, tpot_ms=40.0, out_tokens=200)
    for _ in range(20):
        engine.step()
    for name, ttft_ms in (("patient", 60_000.0), ("urgent", 300.0)):
        engine.add(name, 64, 5, ttft_ms=ttft_ms)
    engine.drain()
    assert engine.begun[-2:] == ["urgent", "patient"], engine.begun
    assert engine.cascade.gave_way == 1
    assert {name: engine.tokens[name] for name in ("tight", "loose", "middle", "urgent")} == {
        "tight": 200, "loose": 200, "middle": 200, "urgent": 5,
    }  # fmt: skip


def private_members_are_as_we_use_them() -> None:
    """Whatever of vLLM's is not public and is used in backends.vllm_scheduler and vllm_cascade."""
    scheduler = Engine().scheduler
    kinds = {
        "waiting": RequestQueue, "kv_holding_waiting": RequestQueue, "running": list, "policy": SchedulingPolicy,
        "need_mamba_block_aligned_split": bool,
        "pause_state": PauseState, "requires_kv_delivery": bool, "max_num_active_reqs": int, "max_num_running_reqs": int,
        "max_num_scheduled_tokens": int, "max_model_len": int, "block_size": int,
    }  # fmt: skip
    for name, kind in kinds.items():
        assert isinstance(getattr(scheduler, name), kind), name
    for module in (ours, publishing):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "this":
                assert hasattr(scheduler, node.attr), node.attr
    assert isinstance(scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), int)
    assert isinstance(scheduler.kv_cache_manager.watermark_blocks, int)
    assert isinstance(scheduler.kv_cache_manager.block_pool.num_gpu_blocks, int)
    assert len(scheduler.kv_cache_config.kv_cache_groups) == 1
    assert isinstance(scheduler.cache_config.enable_prefix_caching, bool)
    assert isinstance(scheduler.vllm_config.parallel_config.data_parallel_index, int)
    assert create_request_queue(SchedulingPolicy.PRIORITY)._heap == [], "Publishing sorts a copy of it"
    assert list(inspect.signature(Scheduler._preempt_request).parameters) == [
        "self",
        "request",
        "timestamp",
        "drop_stale_output",
    ]
    assert list(inspect.signature(Scheduler._request_blocks_can_be_freed).parameters) == ["self", "request"]
    looks = Scheduler._reserve_prefill_lookahead
    assert list(inspect.signature(looks).parameters) == ["self", "request", "num_computed_tokens", "num_new_tokens"]
    assert looks(scheduler, Engine().add("r", 20, 2), 0, 7) == 7
    assert scheduler.kv_cache_manager.get_computed_blocks(Engine().add("s", 40, 2))[1] == 0
    source = inspect.getsource(Scheduler.schedule)
    assert source.count("num_new_tokens = self._reserve_prefill_lookahead(") == 2
    nothing = source.partition("num_new_tokens = self._reserve_prefill_lookahead(")[2].partition("if num_new_tokens == 0:")[2]
    assert "req_index += 1\n                continue" in nothing.partition("allocate_slots")[0], "passed over, no more"
    for used in (
        "request = request_queue.peek_request()",
        "request = request_queue.pop_request()",
        "self.waiting.prepend_requests(step_skipped_waiting)",
        "if self.policy == SchedulingPolicy.PRIORITY:",
        "key=lambda r: (r.priority, r.arrival_time)",
    ):
        assert used in source, used
    assert "self.waiting.prepend_request(request)" in inspect.getsource(Scheduler._preempt_request)
    abstract = {"add_request", "pop_request", "peek_request", "prepend_request", "prepend_requests", "remove_request"}
    assert abstract <= set(RequestQueue.__abstractmethods__)
    assert RequestQueue.__abstractmethods__ - set(dir(ours.BudgetQueue)) == set()
    request = Engine().add("r", 20, 2)
    for name in (
        "status",
        "priority",
        "arrival_time",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_output_tokens",
        "kv_cache_report_mode",
    ):
        assert hasattr(request, name), name


CASES = [
    private_members_are_as_we_use_them,
    order_is_that_of_deadlines,
    who_cannot_be_in_time_goes_last_and_is_served,
    priority_as_latest_start_is_understood,
    plain_requests_run_as_ever,
    tier_2_gets_its_share_of_prompt_tokens,
    urgent_request_gets_the_slot_of_the_largest_budget,
    nobody_gives_way_who_could_not_afford_it,
    nobody_gives_way_while_admission_is_paused,
    freed_slot_is_held_for_whom_it_was_freed,
    demoted_requests_are_promoted_when_load_falls,
    old_ones_are_not_overtaken,
    aborts_leave_nothing,
    out_of_kv_the_largest_budget_goes,
    a_late_prompt_gives_its_blocks_to_tier_1,
    reset_of_the_prefix_cache_brings_everybody_back,
    ahead_of_its_tokens_it_decides_alike,
]


if __name__ == "__main__":
    init_none_hash(sha256)
    run_cases(CASES, sys.argv[2:])
