"""vLLM's scheduler, publishing what it holds: `--scheduler-cls backends.vllm_scheduler.SnapshotScheduler`.

Runs inside vLLM's engine process and decides nothing: each `schedule()` is vLLM's own, after which the state goes to a
shared-memory file (LEEWAY_SNAPSHOT names it) for the sidecar beside the engine. `AsyncSnapshotScheduler` is the same
for engines that schedule ahead, which is vLLM's default on GPUs. vLLM calls this interface non-public, so
versions that were not tested are refused at the start rather than misread.
"""

import os
import time
from typing import Any

import vllm
from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import PriorityRequestQueue, RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from backends.queue_record import ByPriority
from backends.scheduler_record import StepRecorder, expected_tokens, payload_max
from backends.snapshot_file import DEFAULT_PATH, SnapshotFile
from backends.snapshot_record import Limits

TESTED_VERSIONS = ("0.32.0",)
COST_STEPS, COST_TIMES = 100, 10  # after so many steps the log says what they cost, so many times

logger = init_logger("vllm.leeway")


class UntestedVersionError(RuntimeError):
    """This vLLM is none of those that the scheduler class was tested with."""


def check_version(version: str) -> None:
    """Raise UntestedVersionError unless `version` is tested. Local parts (`+cpu`) do not matter."""
    if version.partition("+")[0] not in TESTED_VERSIONS:
        raise UntestedVersionError(
            f"Leeway's scheduler classes are tested with vLLM {', '.join(TESTED_VERSIONS)}, this is {version}. "
            "Start the server without --scheduler-cls (the gateway then predicts from its own picture of the engine), "
            "or install a tested version."
        )


def snapshot_path(vllm_config: Any) -> str:
    """LEEWAY_SNAPSHOT, or a default; each data-parallel engine after the first has a suffix of its own."""
    path = os.environ.get("LEEWAY_SNAPSHOT") or DEFAULT_PATH
    rank = vllm_config.parallel_config.data_parallel_index
    return f"{path}.{rank}" if rank else path


class StepCost:
    """Says in the log what something costs of the scheduler's time, for each hundred of the first steps: the first are cold,
    and any may fall into a moment when others crowd the core."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._steps, self._cpu_s = 0, 0.0

    @property
    def asked(self) -> bool:
        """Whether it is still to be measured."""
        return self._steps < COST_STEPS * COST_TIMES

    def took(self, cpu_s: float, more: object = None) -> None:
        """It took so much thread CPU time in a step."""
        self._cpu_s += cpu_s
        self._steps += 1
        if self._steps % COST_STEPS == 0:
            told = "" if more is None else f"; {more!r}"
            logger.info("%s %.1f us a step, on average%s", self._what, 1e6 * self._cpu_s / COST_STEPS, told)
            self._cpu_s = 0.0


class _Queue:
    """A waiting queue in its order. A heap is sorted only when it has changed: vLLM's own way of walking one empties a
    copy of it, at a cost that grows faster than the queue."""

    def __init__(self) -> None:
        self._heap: list[Any] = []
        self._sorted: list[Any] = []

    def ordered(self, queue: RequestQueue) -> list[Any]:
        if not isinstance(queue, PriorityRequestQueue):
            return [*queue]
        heap = queue._heap  # noqa: SLF001
        if heap != self._heap:
            self._heap = heap.copy()
            self._sorted = sorted(heap, key=lambda request: (request.priority, request.arrival_time))
        return self._sorted


class Publishing:
    """The mixin in front of either of vLLM's schedulers. Uses of theirs: waiting, kv_holding_waiting, running,
    kv_cache_manager, the sizes, add_request, schedule, shutdown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version(vllm.__version__)
        super().__init__(*args, **kwargs)
        this: Any = self
        groups = max(1, len(this.kv_cache_config.kv_cache_groups))
        self._pool = this.kv_cache_manager.block_pool
        self._groups = groups
        limits = Limits(
            (self._pool.num_gpu_blocks - 1) // groups,  # one is vLLM's null block
            this.block_size,
            this.max_num_active_reqs,
            this.max_num_scheduled_tokens,
            this.max_model_len,
            this.kv_cache_manager.watermark_blocks // groups,
            bool(this.cache_config.enable_prefix_caching),
        )
        self._file = SnapshotFile(snapshot_path(this.vllm_config), payload_max(this.max_num_running_reqs))
        self._recorder = StepRecorder(f"vllm {vllm.__version__}", limits, self._file.write)
        if isinstance(this.waiting, PriorityRequestQueue):
            self._recorder.ordered(ByPriority())
        self._queue, self._holding = _Queue(), _Queue()
        self._preemptions = 0
        self._publish_cost = StepCost("publishing takes")
        self._publish({}, 0)
        logger.info("scheduler state goes to %s", self._file.path)

    def add_request(self, request: Request) -> None:
        """vLLM's own; the request learns how long its answer is expected to be."""
        sampling = request.sampling_params
        request.leeway_expected = expected_tokens(None if sampling is None else sampling.extra_args, request.max_tokens)
        super().add_request(request)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """vLLM's own, then the state as the step begins."""
        output: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if output.preempted_req_ids:
            self._preemptions += len(output.preempted_req_ids)
        if self._publish_cost.asked:
            self._publish_and_measure(output.num_scheduled_tokens, output.total_num_scheduled_tokens)
        else:
            self._publish(output.num_scheduled_tokens, output.total_num_scheduled_tokens)
        return output

    def _publish(self, scheduled: dict[str, int], scheduled_tokens: int) -> None:
        this: Any = self
        waiting = self._queue.ordered(this.waiting)
        if this.kv_holding_waiting:
            waiting = self._holding.ordered(this.kv_holding_waiting) + waiting
        free_blocks = self._pool.get_num_free_blocks() // self._groups
        self._recorder.record(
            time.monotonic(), this.running, waiting, scheduled, scheduled_tokens, free_blocks, self._preemptions
        )

    def _publish_and_measure(self, scheduled: dict[str, int], scheduled_tokens: int) -> None:
        began_s = time.thread_time()
        self._publish(scheduled, scheduled_tokens)
        self._publish_cost.took(time.thread_time() - began_s)

    def shutdown(self) -> None:
        """vLLM's own; readers see that nobody writes any more."""
        super().shutdown()  # type: ignore[misc]
        self._file.close()


class SnapshotScheduler(Publishing, Scheduler):
    """For servers that schedule step by step (vLLM on the CPU, or `--no-async-scheduling`)."""


class AsyncSnapshotScheduler(Publishing, AsyncScheduler):
    """For servers that schedule the next step before the last one's tokens are known."""
