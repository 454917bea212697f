"""What budgets inside an engine's scheduler cost it a step: 64 waiting and 16 running requests. `make bench-tiers`

Thread CPU time of all that CascadeScheduler does beside vLLM's own schedule() and the publishing (bench-sidecar has
that): opening the queue, putting everybody into tiers, the search for someone to give way, ranks for a full KV cache, the
tokens of prompts that are begun (`_begun`: four of the running ones are, and two slots are free), the order as it is
published, and the count after the step; one request leaves and one comes every five steps. The last line is JSON.
"""

import argparse
import json
import statistics
import time
from dataclasses import dataclass

from backends.cascade import Cascade, CascadeOptions
from backends.cascade_queue import BudgetQueue
from backends.cascade_step import Room
from backends.standing import Standing, standing

RUNNING, WAITING, STEPS = 16, 64, 4000
BEGUN, BEGUN_TOKENS, CHUNK, FREE = 4, 50_000, 2048, 2
STEP_S = 0.02
BEGIN_S = 1_800_000_000.0
REFERENCE_LOOPS = 200_000


@dataclass(eq=False)
class InEngine:
    """A request as a scheduler holds it."""

    request_id: str
    num_prompt_tokens: int
    leeway: Standing
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    leeway_expected: int = 200
    priority: int = 0


class Engine:
    """16 run, 64 wait: a third without an SLO, a third that cannot be in time, a third that can. Of those that run `begun`
    have prompts that are being computed, the others decode."""

    def __init__(self, order: str, begun: int) -> None:
        self.now_s = BEGIN_S
        self._free = FREE if begun else 0
        self.cascade = Cascade(CascadeOptions(order), RUNNING + self._free)
        self.queue = BudgetQueue(self.cascade)
        self._serial = 0
        self.queue.open(self.now_s)
        self.running = [self._request() for _ in range(RUNNING)]
        for one in self.running[begun:]:
            one.num_computed_tokens, one.num_output_tokens = one.num_prompt_tokens, 1
        self._begun = self.running[:begun]
        self._given: dict[str, int] = {}
        for one in self._begun:
            one.num_prompt_tokens = BEGUN_TOKENS
        for _ in range(WAITING):
            self.queue.add_request(self._request())

    def _request(self) -> InEngine:
        self._serial += 1
        ttft_ms = (0, 300, 60_000)[self._serial % 3]
        hints = {"leeway_v": 1, "leeway_ttft_ms": ttft_ms, "leeway_tpot_ms": 40} if ttft_ms else None
        return InEngine(f"r{self._serial}", 60 + self._serial * 37 % 900, standing(hints, 0, self.now_s))

    def step(self, tight: bool) -> float:
        """One step; its CPU seconds."""
        self.now_s += STEP_S
        for one in self.running[len(self._begun) :]:
            one.num_computed_tokens += 1
            one.num_output_tokens += 1
        for one in self._begun:
            one.num_computed_tokens = (one.num_computed_tokens + self._given.get(one.request_id, 0)) % BEGUN_TOKENS
        began_s = time.thread_time()
        self.queue.open(self.now_s)
        self.cascade.begin(self.running, self.now_s)
        urgent = self.cascade.urgent(self.running, self.now_s)
        if urgent is not None:
            self.cascade.victim(self.running, urgent, self.now_s)
        if tight:
            self.cascade.rank(self.running, self.now_s)
        room = Room(CHUNK - RUNNING + len(self.cascade.handout.left), self._free, 10_000, 16)
        self._given = self.cascade.hand_out(self.running, room, bool, self.now_s)
        published = [*self.queue]
        self.cascade.end(self.queue.close(), {one.request_id: 1 for one in self.running})
        spent_s = time.thread_time() - began_s
        assert len(published) == WAITING
        return spent_s

    def change(self) -> None:
        """One leaves, the next begins, another comes."""
        self.running.pop(len(self._begun))
        self.running.append(self.queue.pop_request())
        self.running[-1].num_computed_tokens = self.running[-1].num_prompt_tokens
        self.queue.add_request(self._request())


def cost_us(order: str, tight: bool, begun: int) -> float:
    """Mean over the steps."""
    engine, spent_s = Engine(order, begun), 0.0
    for number in range(STEPS):
        spent_s += engine.step(tight)
        if number % 5 == 0:
            engine.change()
    return 1e6 * spent_s / STEPS


def reference_us() -> float:
    """A fixed loop, so that figures of different machines can be compared."""
    began_s = time.thread_time()
    total = 0
    for number in range(REFERENCE_LOOPS):
        total += number & 7
    return 1e6 * (time.thread_time() - began_s) / REFERENCE_LOOPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    figures: dict[str, float] = {}
    for order in ("mh", "lrb", "sjf"):
        for tight, begun in ((False, 0), (True, 0), (False, BEGUN), (True, BEGUN)):
            name = f"tiers_{order}{'_full' if tight else ''}{'_begun' if begun else ''}_us"
            figures[name] = round(statistics.median(cost_us(order, tight, begun) for _ in range(rounds)), 1)
            print(f"{name:24} {figures[name]:6.1f} us a step")
    figures["reference_loop_us"] = round(reference_us(), 4)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
