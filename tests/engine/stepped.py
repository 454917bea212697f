"""vLLM's real scheduler, ours on top, stepped without a model: runs in the engine's environment, in time that it moves.

A step takes `STEP_S` plus `TOKEN_S` for each prompt token; what a model would answer is one token a request. Each case
asserts; the last line is the JSON list of those that held.
"""

import inspect
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

import backends.vllm_cascade as ours

BEGIN_S = 1_800_000_000.0
STEP_S, TOKEN_S = 0.01, 0.0005
BLOCK = 16
MODEL = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory()


class Engine:
    """A scheduler of ours and the loop around it. `ahead` steps are composed before the first one's tokens are known."""

    def __init__(
        self, order: str = "mh", slots: int = 4, blocks: int = 400, chunk: int = 64, ahead: int = 0, **env: str
    ) -> None:
        os.environ["LEEWAY_SNAPSHOT"] = str(Path(tempfile.mkdtemp(dir=FOLDER.name)) / "state")
        os.environ.update({"LEEWAY_ORDER": order, "LEEWAY_RHO": "-1", "LEEWAY_PREEMPT": "1", **env})
        self.now_s = BEGIN_S
        ours._wall = lambda: self.now_s
        config = _config(slots, blocks, chunk, bool(ahead))
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        kind: Any = ours.AsyncCascadeScheduler if ahead else ours.CascadeScheduler
        self.scheduler = kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=False,
        )
        self.cascade = self.scheduler._cascade
        self.first_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.begun: list[str] = []
        self.tokens: dict[str, int] = {}
        self._composed: list[SchedulerOutput] = []
        self._ahead = ahead
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    def add(self, name: str, prompt: int, output: int, priority: int = 0, **hints: float | str) -> Request:
        """A request; hints without their `leeway_`, with `ttft_ms` and the like."""
        extra = {"leeway_v": 1, **{f"leeway_{key}": value for key, value in hints.items()}} if hints else None
        params = SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra)
        start = hash(name) % 50_000
        request = Request(
            name, [start + at for at in range(prompt)], params, None, arrival_time=self.now_s, priority=priority,
            block_hasher=self._hasher,
        )  # fmt: skip
        self.scheduler.add_request(request)
        return request

    def step(self) -> dict[str, int]:
        """Compose one step, let it take its time, and hand in the tokens of the step that is due; what was composed."""
        output = self.scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        self.begun += [one.req_id for one in output.scheduled_new_reqs]
        fill = sum(tokens for tokens in scheduled.values() if tokens > 1)
        self.now_s += STEP_S + TOKEN_S * fill
        self._composed.append(output)
        if len(self._composed) > self._ahead:
            self._answer(self._composed.pop(0))
        return dict(scheduled)

    def drain(self, most: int = 5000) -> None:
        """Until nobody is left."""
        while self.scheduler.has_unfinished_requests() or self._composed:
            if not self.scheduler.has_unfinished_requests():
                self._answer(self._composed.pop(0))
                continue
            self.step()
            most -= 1
            assert most, f"it does not end: {self.cascade!r}, running {self.scheduler.running}"

    def _answer(self, output: SchedulerOutput) -> None:
        names = list(output.num_scheduled_tokens)
        whole = {name: self._whole(name, output) for name in names}
        sampled = [[7] if whole[name] else [] for name in names]
        result = ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, sampled)
        self.scheduler.update_from_output(output, result)
        for name in names:
            if whole[name]:
                self.first_s.setdefault(name, self.now_s)
                self.tokens[name] = self.tokens.get(name, 0) + 1
            if name not in self.scheduler.requests:
                self.ended_s.setdefault(name, self.now_s)

    def _whole(self, name: str, output: SchedulerOutput) -> bool:
        """Whether the step computed all of the request's known tokens, and so sampled one more."""
        for new in output.scheduled_new_reqs:
            if new.req_id == name:
                return new.num_computed_tokens + output.num_scheduled_tokens[name] >= len(new.prompt_token_ids or [])
        cached = output.scheduled_cached_reqs
        at = cached.req_ids.index(name)
        request = self.scheduler.requests.get(name)
        known = request.num_prompt_tokens if request is not None else 0
        known = max(known, request.num_tokens if request is not None and name in cached.resumed_req_ids else 0)
        return bool(cached.num_computed_tokens[at] + output.num_scheduled_tokens[name] >= known)


def _config(slots: int, blocks: int, chunk: int, ahead: bool) -> VllmConfig:
    model = ModelConfig(model=MODEL, tokenizer=MODEL, dtype="float32", seed=0, max_model_len=2048)
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    scheduler = SchedulerConfig(
        max_num_batched_tokens=chunk,
        max_num_seqs=slots,
        max_model_len=model.max_model_len,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=ahead,
    )
    return VllmConfig(model_config=model, cache_config=cache, scheduler_config=scheduler, device_config=DeviceConfig("cpu"))


def teach(engine: Engine) -> None:
    """A few requests, so that the pace is known."""
    for number in range(6):
        engine.add(f"teacher {number}", 64, 6)
        engine.drain()
    engine.begun.clear()


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
        "current_step": int, "requires_kv_delivery": bool, "max_num_active_reqs": int, "max_num_running_reqs": int,
        "max_num_scheduled_tokens": int, "max_model_len": int, "block_size": int,
    }  # fmt: skip
    for name, kind in kinds.items():
        assert isinstance(getattr(scheduler, name), kind), name
    assert isinstance(scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), int)
    assert isinstance(scheduler.kv_cache_manager.watermark_blocks, int)
    assert list(inspect.signature(Scheduler._preempt_request).parameters) == [
        "self",
        "request",
        "timestamp",
        "drop_stale_output",
    ]
    assert list(inspect.signature(Scheduler._request_blocks_can_be_freed).parameters) == ["self", "request"]
    source = inspect.getsource(Scheduler.schedule)
    for used in (
        "self.current_step += 1",
        "if self.current_step < request.next_decode_eligible_step:",
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
    for name in ("status", "priority", "arrival_time", "num_computed_tokens", "num_prompt_tokens", "num_output_tokens"):
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
    freed_slot_is_held_for_whom_it_was_freed,
    demoted_requests_are_promoted_when_load_falls,
    old_ones_are_not_overtaken,
    aborts_leave_nothing,
    out_of_kv_the_largest_budget_goes,
    reset_of_the_prefix_cache_brings_everybody_back,
    ahead_of_its_tokens_it_decides_alike,
]


def main() -> None:
    init_none_hash(sha256)
    held = []
    for case in CASES:
        if len(sys.argv) > 2 and case.__name__ not in sys.argv[2:]:
            continue
        try:
            case()
            held.append(case.__name__)
        except Exception:
            print(f"--- {case.__name__}", file=sys.stderr)
            traceback.print_exc()
    print(json.dumps(held))


if __name__ == "__main__":
    main()
