"""vLLM's scheduler with latency budgets: `--scheduler-cls backends.vllm_cascade.CascadeScheduler`.

Publishes like SnapshotScheduler, and decides four things before vLLM's own `schedule()`, which stays as it is: the order
of the waiting (a queue in place of `waiting`), how many tokens of the step prompts that are begun may have, so that they
stand in the same order, and whether a running request gives its slot to an urgent one, or its blocks to one that finds too
few. Out of KV, vLLM preempts by `priority`, which here says whose budget affords it best.
backends.cascade decides, LEEWAY_ORDER, LEEWAY_RHO, LEEWAY_ALPHA, LEEWAY_AGE_S and LEEWAY_PREEMPT configure.
"""

import os
import time
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from backends.cascade import Cascade, options
from backends.cascade_queue import BudgetQueue
from backends.cascade_step import Room
from backends.queue_record import ByBudget
from backends.standing import standing
from backends.vllm_scheduler import Publishing, StepCost

_wall = time.time  # noqa: TID251 - as vLLM stamps arrivals, and as deadlines are sent

logger = init_logger("vllm.leeway")


class WaitingByBudget(BudgetQueue, RequestQueue):
    """The queue as vLLM's type."""


class _Cascading(Publishing):
    """The mixin in front of either of vLLM's schedulers. Uses of theirs beyond Publishing's: policy, connector,
    pause_state, requires_kv_delivery, need_mamba_block_aligned_split, _preempt_request, _request_blocks_can_be_freed, and
    _reserve_prefill_lookahead, which is asked for each request how many tokens it gets and may say fewer; of the KV manager
    get_computed_blocks; of requests: status, priority, arrival_time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        this: Any = self
        self._cascade = Cascade(options(os.environ), this.max_num_active_reqs)
        self.waiting = self._line = WaitingByBudget(self._cascade)
        this.policy = SchedulingPolicy.PRIORITY
        self._recorder.ordered(ByBudget(self._cascade))
        rule = getattr(this.connector, "leeway_rule", None)  # backends.vllm_kv
        if rule is not None:
            rule.pace = self._cascade.pace
        per_step = -(-this.max_num_scheduled_tokens // this.block_size)
        self._step_blocks = (per_step + this.max_num_running_reqs) * self._groups
        self._limits: dict[str, int] = {}
        self._own_cost = StepCost("tiers take")
        logger.info("waiting requests are ordered by %r", self._cascade.options)

    def add_request(self, request: Request) -> None:
        """vLLM's own; the request's promise is read first."""
        sampling = request.sampling_params
        hints = None if sampling is None else sampling.extra_args
        request.leeway = standing(hints, request.priority, request.arrival_time)
        request.leeway.cached = self._cached(request)
        self._line.now_s = _wall()
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """vLLM's own, between what we decide and what we count."""
        began_s = time.thread_time()
        self._prepare()
        decided_s = time.thread_time() - began_s
        output = super().schedule(*args, **kwargs)
        began_s = time.thread_time()
        self._cascade.end(self._line.close(), output.num_scheduled_tokens)
        if self._own_cost.asked:
            self._own_cost.took(decided_s + time.thread_time() - began_s, self._cascade)
        return output

    def _reserve_prefill_lookahead(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """vLLM's own, of no more tokens than a prompt that is begun may have in this step (hybrid models: all or none)."""
        this: Any = self
        limit = self._limits.get(request.request_id)
        if limit is not None and limit < num_new_tokens and not (limit and this.need_mamba_block_aligned_split):
            num_new_tokens = limit
        tokens: int = super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens)  # type: ignore[misc]
        return tokens

    def _prepare(self) -> None:
        this: Any = self
        now_s = _wall()
        self._line.open(now_s)
        running = this.running
        self._cascade.begin(running, now_s)
        if len(self._line) and this.pause_state == PauseState.UNPAUSED:
            self._make_way(now_s)
        self._limits = self._cascade.hand_out(running, self._room(), self._ready, now_s)
        if self._limits:
            self._line.limit(this.block_size)
        if self._pool.get_num_free_blocks() < self._step_blocks:
            self._cascade.rank(running, now_s)

    def _make_way(self, now_s: float) -> None:
        """Preempt somebody for an urgent request, if that helps it."""
        this: Any = self
        urgent = self._cascade.urgent(this.running, now_s)
        if urgent is None:
            self._make_room(now_s)
            return
        request = self._line.request(urgent.id)
        if request.status != RequestStatus.WAITING or request.num_computed_tokens:
            return  # it could not begin, or gave way itself
        victim = self._cascade.victim(this.running, urgent, now_s)
        if victim is not None and self._fits(urgent.tokens, victim.num_computed_tokens):
            self._preempt(victim, urgent.id)

    def _make_room(self, now_s: float) -> None:
        """A prompt of tier 2 that is begun gives its blocks, if the first of tier 1 finds too few: vLLM admits none that
        does not fit as a whole."""
        this: Any = self
        found = None if len(this.running) >= this.max_num_active_reqs else self._cascade.gives_blocks(now_s)
        if found is None:
            return
        waiting, victim = found
        request = self._line.request(waiting.id)
        if request.status != RequestStatus.WAITING or request.num_computed_tokens or self._fits(waiting.tokens, 0):
            return
        if self._fits(waiting.tokens, victim.num_computed_tokens):
            self._preempt(victim, waiting.id)

    def _preempt(self, victim: Any, to: str) -> None:
        this: Any = self
        if not this._request_blocks_can_be_freed(victim):  # noqa: SLF001
            return
        this.running.remove(victim)
        victim.leeway.gave_way += 1
        this._preempt_request(victim, time.monotonic(), drop_stale_output=this.requires_kv_delivery)  # noqa: SLF001
        self._line.gave_way(victim, to)
        self._cascade.gave_way += 1
        logger.debug("%s gives way to %s", victim.request_id, to)

    def _fits(self, tokens: int, spared: int) -> bool:
        """Whether a prompt of so many tokens finds blocks once the blocks of `spared` tokens are free."""
        this: Any = self
        freed = self._pool.get_num_free_blocks() // self._groups + spared // this.block_size
        needed = -(-tokens // this.block_size) + this.kv_cache_manager.watermark_blocks // self._groups
        return bool(freed >= needed)

    def _room(self) -> Room:
        """What the coming step has for prompts."""
        this: Any = self
        running = len(this.running)
        tokens = this.max_num_scheduled_tokens - running + len(self._cascade.handout.left)
        blocks = (self._pool.get_num_free_blocks() - this.kv_cache_manager.watermark_blocks) // self._groups
        return Room(tokens, this.max_num_active_reqs - running, blocks, this.block_size)

    def _ready(self, request_id: str) -> bool:
        """Whether it could begin, but for room."""
        this: Any = self
        status = self._line.request(request_id).status
        return this.pause_state == PauseState.UNPAUSED and status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)

    def _cached(self, request: Request) -> int:
        """Tokens of its prompt that are in the KV cache."""
        this: Any = self
        if getattr(request, "kv_cache_report_mode", "") == "full":
            return 0  # looking would tell those who read KV events
        return int(this.kv_cache_manager.get_computed_blocks(request)[1])


class CascadeScheduler(_Cascading, Scheduler):
    """For servers that schedule step by step (vLLM on the CPU, or `--no-async-scheduling`)."""


class AsyncCascadeScheduler(_Cascading, AsyncScheduler):
    """For servers that schedule the next step before the last one's tokens are known."""
