"""The latency budget of one request: what its SLO leaves after the time it has waited and the time it still needs.

    B(t) = S - (t - arrival) - gamma L(t)        L = (L_load + L_full) / 2
    L_x  = max(release wait, work ahead, restore) + prefill

load: the steps of its own prompt beside the decodes of now; full: every slot decodes, every KV block is read, and every
step is filled with others' prompts.

The output predicted of those ahead enters as the steps until enough of them have ended to release a slot and KV blocks.
gamma is set per class from observed errors so that P(actual <= gamma L) = 0.9 (a conformal quantile). After the first
token TPOT rules: see `decode_budget_s`. Pure: instants come in as `now_s`, from the clock that stamped the arrival.
Source: CASCADE's definition, with the time already waited subtracted (it must count, or waiting raises no urgency).
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from predictor.prefill import StepCosts
from predictor.profile import EngineLimits

GAMMA_UNKNOWN = 1.1
COVERAGE = 0.9


@dataclass(frozen=True, slots=True)
class SloTarget:
    """Limits of one request, in seconds; infinite where there is none. Raises ValueError for one that is not above 0."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    e2e_s: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s), ("e2e_s", self.e2e_s)):
            if not value > 0:
                raise ValueError(f"{name}: must be above 0")

    @property
    def known(self) -> bool:
        """Whether it says until when a first token must be there (TTFT, or E2E that includes it)."""
        return self.ttft_s < math.inf or self.e2e_s < math.inf

    def first_token_s(self, decode_s: float = 0.0) -> float:
        """Seconds after the arrival within which the first token must come, so that `decode_s` after it E2E is kept too."""
        return min(self.ttft_s, self.e2e_s - decode_s)


NO_SLO = SloTarget()


def deadline_s(target: SloTarget, arrival_s: float, decode_s: float = 0.0) -> float:
    """The instant by which the first token must come; infinite without an SLO."""
    return arrival_s + target.first_token_s(decode_s)


def budget_s(target: SloTarget, arrival_s: float, now_s: float, remaining_s: float, gamma: float) -> float:
    """B(t) of a request before its first token. `remaining_s` is L, from now to the first token; may be negative."""
    return deadline_s(target, arrival_s) - now_s - gamma * remaining_s


def decode_budget_s(
    target: SloTarget, arrival_s: float, first_token_s: float, now_s: float, generated: int, expected: int, step_s: float
) -> float:
    """The budget after the first token: by how long the rest may be held up, in seconds.

        min(first + tpot (n - 1), arrival + e2e) - now - (n - generated) step_s,    n = max(expected, generated + 1)

    `generated` counts the tokens so far, `expected` all that are predicted, `step_s` is the time of a step. TPOT is a mean
    over the answer, so tokens that came early are to its credit. Infinite without such an SLO.
    """
    tokens = max(expected, generated + 1)
    end_s = min(first_token_s + target.tpot_s * (tokens - 1), arrival_s + target.e2e_s)
    return end_s - now_s - (tokens - generated) * step_s


@dataclass(frozen=True, slots=True)
class Load:
    """What decodes beside a prompt: so many sequences, over so many context tokens."""

    decodes: int
    kv_tokens: float


def full_load(limits: EngineLimits) -> Load:
    """An engine at its capacity: every slot decodes, every KV block is read."""
    return Load(limits.max_num_seqs, float(limits.kv_blocks * limits.block_size))


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a request waits for: those before it in its order take so many seconds of computing, slots and KV blocks."""

    work_s: float = 0.0
    requests: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs: prompt tokens to compute after `cached` ones, KV blocks, seconds to restore what it lacks."""

    tokens: int
    cached: int = 0
    blocks: int = 0
    restore_s: float = 0.0


class Releases:
    """When running sequences give back their slots and KV blocks, if each ends when predicted and gains a token a step."""

    __slots__ = ("_blocks", "_free_blocks", "_free_slots", "_steps")

    def __init__(self, running: Iterable[tuple[int, int]], free_slots: int, free_blocks: int) -> None:
        """`running` are (tokens left to produce, KV blocks held) of each."""
        self._free_slots, self._free_blocks = free_slots, free_blocks
        self._steps: list[int] = []
        self._blocks: list[int] = []
        freed = free_blocks
        for left, blocks in sorted(running):
            freed += blocks
            self._steps.append(left)
            self._blocks.append(freed)

    def steps(self, slots: int, blocks: int) -> int:
        """Steps until so many slots and blocks are free together; all of them if even an empty engine has not so many."""
        place = -1
        if slots > self._free_slots:
            place = slots - self._free_slots - 1
        if blocks > self._free_blocks:
            place = max(place, bisect_left(self._blocks, blocks))
        if place < 0 or not self._steps:
            return 0
        return self._steps[min(place, len(self._steps) - 1)]


class Estimator:
    """L of requests on one engine. Build one for each state of it; asking costs a few multiplications."""

    __slots__ = ("_chunk", "_costs", "_full_step_s", "_load", "_load_step_s", "_releases")

    def __init__(self, costs: StepCosts, limits: EngineLimits, load: Load, releases: Releases) -> None:
        full = full_load(limits)
        self._costs = costs
        self._load = load
        self._chunk = max(1, limits.max_num_batched_tokens - load.decodes)
        self._releases = releases
        self._load_step_s = costs.step_s(load.decodes, load.kv_tokens)
        self._full_step_s = costs.step_s(full.decodes, full.kv_tokens)

    def remaining_s(self, need: Need, ahead: Ahead) -> float:
        """L, not guarded: the mean of the estimates under the load of now and at full capacity."""
        steps = self._releases.steps(ahead.requests + 1, ahead.blocks + need.blocks)
        at_load_s = max(steps * self._load_step_s, ahead.work_s, need.restore_s)
        at_full_s = max(steps * self._full_step_s, ahead.work_s, need.restore_s)
        return 0.5 * (at_load_s + at_full_s) + self.prefill_s(need)

    def prefill_s(self, need: Need) -> float:
        """The last term of L alone, from the first step of the prompt to the end of its last one; the mean of both loads."""
        pairs = need.tokens * (need.cached + 0.5 * need.tokens)
        steps = -(-need.tokens // self._chunk)
        at_load_s = steps * self._load_step_s + self._costs.tokens_s(need.tokens, pairs)
        at_full_s = steps * self._full_step_s + self._costs.tokens_s(steps * self._chunk, pairs)
        return 0.5 * (at_load_s + at_full_s)

    def work_s(self, need: Need) -> float:
        """What the prompt keeps from others: its tokens, and its part of the steps that it shares with them."""
        pairs = need.tokens * (need.cached + 0.5 * need.tokens)
        return need.tokens / self._chunk * self._load_step_s + self._costs.tokens_s(need.tokens, pairs)


class Gamma:
    """The guard factor of each class, learned: the conformal quantile of actual / L over the last `window` requests.

    With n ratios it is the ceil((n + 1) share)-th smallest, which the next one stays below with probability `share`
    if they are exchangeable. `GAMMA_UNKNOWN` until `enough` were seen.
    """

    LEAST = 0.25
    MOST = 8.0

    def __init__(self, share: float = COVERAGE, enough: int = 30, window: int = 400, fixed: float = 0.0) -> None:
        """`fixed` above 0 is the answer whatever is observed."""
        assert 0 < share < 1 <= enough <= window
        self._share, self._enough, self._window, self._fixed = share, enough, window, fixed
        self._seen: dict[str, deque[float]] = {}
        self._sorted: dict[str, list[float]] = {}

    def saw(self, slo_class: str, estimate_s: float, actual_s: float) -> None:
        """A first token came `actual_s` after an instant at which L was `estimate_s`, not guarded."""
        if not 0 < estimate_s < math.inf or not 0 <= actual_s < math.inf:
            return
        ratio = actual_s / estimate_s
        seen, ordered = self._seen.setdefault(slo_class, deque()), self._sorted.setdefault(slo_class, [])
        seen.append(ratio)
        insort(ordered, ratio)
        if len(seen) > self._window:
            del ordered[bisect_left(ordered, seen.popleft())]

    def of(self, slo_class: str) -> float:
        """The factor for that class."""
        if self._fixed > 0:
            return self._fixed
        ordered = self._sorted.get(slo_class)
        if ordered is None or len(ordered) < self._enough:
            return GAMMA_UNKNOWN
        place = min(len(ordered), math.ceil((len(ordered) + 1) * self._share)) - 1
        return min(max(ordered[place], self.LEAST), self.MOST)

    def known(self) -> dict[str, float]:
        """The factors of all classes that were seen."""
        return {slo_class: self.of(slo_class) for slo_class in self._sorted}
