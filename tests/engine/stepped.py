"""vLLM's real scheduler, ours on top, stepped without a model: runs in the engine's environment, in time that it moves.

A step takes `STEP_S` plus `TOKEN_S` for each prompt token; what a model would answer is one token a request.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

import backends.vllm_cascade as ours
from backends.vllm_scheduler import SnapshotScheduler

BEGIN_S = 1_800_000_000.0
STEP_S, TOKEN_S = 0.01, 0.0005
BLOCK = 16
MODEL = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory()


class Engine:
    """A scheduler of ours and the loop around it. `ahead` steps are composed before the first one's tokens are known; with
    `stock` it is vLLM's own with priorities, publishing only."""

    def __init__(
        self,
        order: str = "mh",
        slots: int = 4,
        blocks: int = 400,
        chunk: int = 64,
        ahead: int = 0,
        stock: bool = False,
        **env: str,
    ) -> None:
        os.environ["LEEWAY_SNAPSHOT"] = str(Path(tempfile.mkdtemp(dir=FOLDER.name)) / "state")
        os.environ.update({"LEEWAY_ORDER": order, "LEEWAY_RHO": "-1", "LEEWAY_PREEMPT": "1", **env})
        self.now_s = BEGIN_S
        ours._wall = lambda: self.now_s
        config = _config(slots, blocks, chunk, bool(ahead))
        config.scheduler_config.policy = "priority" if stock else "fcfs"
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        kind: Any = ours.AsyncCascadeScheduler if ahead else SnapshotScheduler if stock else ours.CascadeScheduler
        self.scheduler = kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            log_stats=False,
        )
        self.cascade = None if stock else self.scheduler._cascade
        self.first_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.begun: list[str] = []
        self.preempted: list[str] = []
        self.tokens: dict[str, int] = {}
        self._composed: list[SchedulerOutput] = []
        self._ahead = ahead
        self._added = 0
        self._hasher = get_request_block_hasher(BLOCK, sha256)

    def add(
        self,
        name: str,
        prompt: int,
        output: int,
        priority: int = 0,
        tokens: Sequence[int] = (),
        **hints: float | str,
    ) -> Request:
        """A request; hints without their `leeway_`, with `ttft_ms` and the like; `tokens` of its prompt, else nobody's."""
        extra = {"leeway_v": 1, **{f"leeway_{key}": value for key, value in hints.items()}} if hints else None
        params = SamplingParams(max_tokens=output, ignore_eos=True, extra_args=extra)
        self._added += 1
        start = 100_000 * self._added  # no other's prompt begins like it
        request = Request(
            name, [*tokens] or [start + at for at in range(prompt)], params, None, arrival_time=self.now_s, priority=priority,
            block_hasher=self._hasher,
        )  # fmt: skip
        self.scheduler.add_request(request)
        return request

    def step(self) -> dict[str, int]:
        """Compose one step, let it take its time, and hand in the tokens of the step that is due; what was composed."""
        output = self.scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        self.begun += [one.req_id for one in output.scheduled_new_reqs]
        self.preempted += output.preempted_req_ids or ()
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
