"""Budgets inside an engine's scheduler: who is in which tier, who pauses, who gives way. Pure and engine-neutral.

The gateway says with each request until when its first token is needed and how fast it must go on (`vllm_xargs`, or
`priority` as the latest start); what a prompt costs is learned from the engine's own steps. Before each step:

    retier     those who wait and prompts that are begun, in one queue, by predictor.queues
    hand out   the step's prompt tokens in that order (backends.cascade_step): who is passed over pauses
    give way   if all slots are taken and the first of tier 1 would come too late by waiting for one: the running request
               with the largest budget that affords its own redo, once in its life, and nobody for one that gave way itself
    give KV    out of blocks, prompts of tier 2 that are begun go first: they are late already

After its first token a request is judged by its TPOT budget. Instants are unix seconds, as the engine stamps arrivals.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backends.cascade_step import Handout, Room
from backends.standing import PLAUSIBLE_S, InEngine, Standing
from predictor.budget import Gamma, decode_budget_s
from predictor.places import MARGIN_S
from predictor.queues import AGE_S, ORDERS, TieredQueue
from predictor.waiting import Waiting

COMEBACK_S = 1.0  # who gave way without an SLO of its own is due again after so long
TOKEN_S, STEP_S = 1e-4, 0.02  # until steps were seen
LEARNING = 0.1
OUTLIER = 4.0
PREFILL_MIN = 32  # steps with fewer prompt tokens teach nothing of prompts
STRETCH_STEP = 1.2
PRIORITY_MAX = 1 << 60
OFFER_S = 0.25  # how old what is said of who could give way may be
NOBODY_S = 0.25  # after nobody could give way, slots are taken to come by themselves for so long


@dataclass(frozen=True, slots=True)
class CascadeOptions:
    """The queue's order and figures (predictor.queues; `rho` below 0: the order's own), and whether running requests give
    way. Raises ValueError."""

    order: str = "mh"
    rho: float = -1.0
    alpha: float = 0.5
    age_s: float = AGE_S
    preempt: bool = True

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"LEEWAY_ORDER: {self.order!r} is none of {', '.join(ORDERS)}")
        if not (self.rho <= 1 and 0 <= self.alpha <= 10 and self.age_s > 0):
            raise ValueError("LEEWAY_RHO, LEEWAY_ALPHA or LEEWAY_AGE_S is out of range")


def options(environ: Mapping[str, str]) -> CascadeOptions:
    """From LEEWAY_ORDER, LEEWAY_RHO, LEEWAY_ALPHA, LEEWAY_AGE_S and LEEWAY_PREEMPT (0 or 1). Raises ValueError."""

    def number(name: str, default: float) -> float:
        text = environ.get(name, "")
        try:
            return float(text) if text else default
        except ValueError:
            raise ValueError(f"{name}: {text!r} is not a number") from None

    return CascadeOptions(
        environ.get("LEEWAY_ORDER") or "mh",
        number("LEEWAY_RHO", -1.0),
        number("LEEWAY_ALPHA", 0.5),
        number("LEEWAY_AGE_S", AGE_S),
        number("LEEWAY_PREEMPT", 1.0) != 0.0,
    )


class EnginePace:
    """Seconds of a step that only decodes, and of a prompt token, learned from steps in a row."""

    def __init__(self) -> None:
        self.step_s, self.token_s = STEP_S, TOKEN_S
        self._steps = self._prompts = 0

    def __repr__(self) -> str:
        return f"<EnginePace {1e3 * self.step_s:.1f} ms a step, {1e6 * self.token_s:.0f} us a prompt token>"

    def prompt_s(self, tokens: int) -> float:
        """Until the first token of a prompt that is computed alone."""
        return self.step_s + tokens * self.token_s

    def hinted(self, tokens: int, estimate_s: float) -> None:
        """The sender's own estimate, until prompts were seen here."""
        if not self._prompts and estimate_s > 0 and tokens > 0:
            self.token_s = max(1e-7, estimate_s / tokens)

    def saw(self, took_s: float, prompt_tokens: int) -> None:
        """A step took so long."""
        if not prompt_tokens:
            self.step_s = _learned(self.step_s, took_s, self._steps)
            self._steps += 1
        elif prompt_tokens >= PREFILL_MIN:
            self.token_s = _learned(self.token_s, max(1e-7, (took_s - self.step_s) / prompt_tokens), self._prompts)
            self._prompts += 1


def _learned(known: float, seen: float, count: int) -> float:
    if count < 3:
        return (known * count + seen) / (count + 1)
    return known + LEARNING * (min(seen, OUTLIER * known) - known)


class Cascade:
    """One engine's tiers. The scheduler tells it who comes and goes, and asks before each step."""

    def __init__(self, given: CascadeOptions, max_slots: int) -> None:
        self.options = given
        self.queue = TieredQueue(given.order, given.rho, given.alpha, given.age_s)
        self.pace = EnginePace()
        self.gamma = Gamma()
        self.handout = Handout(self.queue)
        self.gave_way = self.paused = 0
        self._max_slots = max_slots
        self.reference_s = 0.0  # seconds a token when costs were reckoned first
        self.stretch = 1.0
        self._stepped_s = 0.0
        self._step_prompt_tokens = -1  # of the last step; -1: there was none
        self._contested = False
        self._nobody_until_s = self._offer_until_s = 0.0
        self.offer = ("", 0.0)  # see `_offer`
        self._filling: list[InEngine] = []

    def __repr__(self) -> str:
        return f"<Cascade {self.queue!r} {self.pace!r} gave_way={self.gave_way} paused={self.paused}>"

    # -- coming and going

    def entry(self, request: InEngine, now_s: float) -> Waiting:
        """The request as the queue sees it: new, or one that gave way and must be computed again."""
        own = request.leeway
        had = max(request.num_computed_tokens, own.cached)
        tokens = max(1, request.num_prompt_tokens + request.num_output_tokens - had)
        self.pace.hinted(request.num_prompt_tokens, own.hint_s)
        if not self.reference_s:
            self.reference_s = self.pace.token_s
        mean_s, cost_s = self._costs_s(own, tokens)
        deadline_s = own.deadline_s
        if own.first_s or (own.gave_way and deadline_s == math.inf):
            budget_s = self.budget_s(request, now_s)
            deadline_s = now_s + min(budget_s, COMEBACK_S + cost_s * self.stretch)
        return Waiting(request.request_id, own.arrival_s, cost_s, tokens, deadline_s, mean_s=mean_s)

    def admitted(self, request: InEngine, waiting: Waiting, now_s: float) -> None:
        """It has a slot from this step on."""
        own = request.leeway
        own.tier = waiting.tier
        if not own.begun_s:
            own.begun_s, own.estimate_s = now_s, self.pace.prompt_s(waiting.tokens)

    def _costs_s(self, own: Standing, tokens: int) -> tuple[float, float]:
        """What so many prompt tokens take as a rule, and guarded."""
        mean_s = self.pace.step_s + tokens * self.reference_s
        return mean_s, self.gamma.of(own.slo_class) * mean_s

    # -- budgets

    def budget_s(self, request: InEngine, now_s: float) -> float:
        """By how long it may be held up: until its first token by TTFT, after it by TPOT."""
        own = request.leeway
        if own.first_s:
            generated = request.num_output_tokens
            return decode_budget_s(
                own.target, own.arrival_s, own.first_s, now_s, generated, request.leeway_expected, self.pace.step_s
            )
        left = request.num_prompt_tokens - request.num_computed_tokens
        return own.deadline_s - now_s - self.gamma.of(own.slo_class) * self.pace.prompt_s(max(0, left))

    def _redo_s(self, request: InEngine) -> float:
        """What it costs to compute again what it has."""
        return self.pace.prompt_s(request.num_computed_tokens)

    def rank(self, running: Sequence[InEngine], now_s: float) -> None:
        """Before a step that may run out of KV: the engine gives up the largest `priority` first."""
        late = {one.request_id for one in self._late(now_s)}
        for request in running:
            if request.request_id in late:
                request.priority = PRIORITY_MAX
                continue
            budget_s = self.budget_s(request, now_s)
            spare_s = budget_s - self._redo_s(request)
            worth_s = budget_s if spare_s > 0 else spare_s
            request.priority = PRIORITY_MAX if worth_s == math.inf else int(max(-1e12, min(1e12, worth_s)) * 1000)

    # -- steps

    def begin(self, running: Sequence[InEngine], now_s: float) -> None:
        """A step is composed: learn from the last one, put everybody into tiers."""
        if self._step_prompt_tokens >= 0 and running:
            self.pace.saw(now_s - self._stepped_s, self._step_prompt_tokens)
        self._stepped_s = now_s
        self._filling = self._unfinished(running, now_s)
        if self._filling or self.handout.left:
            self._follow(now_s)
        if self.options.preempt and len(running) >= self._max_slots and now_s >= self._offer_until_s:
            self.offer, self._offer_until_s = self._offer(running, now_s), now_s + OFFER_S
        if len(self.queue):
            self._retier(running, now_s)

    def hand_out(self, running: Sequence[InEngine], room: Room, ready: Callable[[str], bool], now_s: float) -> dict[str, int]:
        """How many tokens prompts that are begun may have in the step, by request id; see Handout.plan."""
        handout = self.handout
        handout.plan(room, ready, now_s)
        begun = [one.leeway.tier for one in self._filling if one.request_id in handout.left]
        able = self.queue.tiers if len(running) < self._max_slots else (begun.count(1), begun.count(2))
        self._contested = min(able) > 0 and not handout.blocked
        self.paused += sum([not limit for limit in handout.limits.values()])
        return handout.limits

    def end(self, admitted: Sequence[InEngine], scheduled: Mapping[str, int]) -> None:
        """The step is composed: so many tokens of each."""
        first = second = 0
        for request in (*self._filling, *admitted):
            tokens = scheduled.get(request.request_id, 0)
            if request.leeway.tier == 1:
                first += tokens
            else:
                second += tokens
        self._step_prompt_tokens = first + second if scheduled else -1
        self.handout.done(scheduled)
        if self._contested:
            self.queue.share.count(first, second)

    def urgent(self, running: Sequence[InEngine], now_s: float) -> Waiting | None:
        """Who must have a slot now and gets none by waiting; None while there is no such request."""
        if not self.options.preempt or len(running) < self._max_slots or not self.queue.tiers[0]:
            return None
        head = self.queue.head(now_s)
        if head is None or head.tier != 1 or head.deadline_s == math.inf:
            return None
        slack_s = head.deadline_s - now_s - head.cost_s * self.stretch
        return head if 0 <= slack_s < self._release_s(running) else None

    def victim(self, running: Sequence[InEngine], urgent: Waiting, now_s: float) -> InEngine | None:
        """Who gives way to it: the largest budget that affords its redo and the urgent one's service before it."""
        least_s = MARGIN_S + urgent.cost_s * self.stretch + self._release_s(running)
        best: InEngine | None = None
        most_s = -math.inf
        for request in running:
            budget_s = self.budget_s(request, now_s)
            if request.leeway.gave_way or budget_s - self._redo_s(request) <= least_s:
                continue
            if budget_s > most_s or (budget_s == most_s and best is not None and _sooner(best, request)):
                best, most_s = request, budget_s
        if best is None:
            self._nobody_until_s = now_s + NOBODY_S
        return best

    def gives_blocks(self, now_s: float) -> tuple[Waiting, InEngine] | None:
        """The first of tier 1, and whose blocks it may have if there are none left for it: of the prompts of tier 2 that are
        begun the one with most of them, once in its life."""
        head = self.queue.head(now_s) if self.options.preempt and self.queue.tiers[0] else None
        late = [one for one in self._late(now_s) if one.num_computed_tokens and not one.leeway.gave_way]
        if head is None or head.tier != 1 or not late:
            return None
        return head, max(late, key=_computed)

    # -- inside

    def _late(self, now_s: float) -> list[InEngine]:
        """The prompts of tier 2 that are begun, as long as later arrivals may overtake them."""
        age_s = self.options.age_s
        return [one for one in self._filling if one.leeway.tier == 2 and now_s - one.leeway.arrival_s < age_s]

    def _unfinished(self, running: Sequence[InEngine], now_s: float) -> list[InEngine]:
        """Whose first token is not here yet; of those that just got it, the time."""
        filling: list[InEngine] = []
        for request in running:
            own = request.leeway
            if not own.first_s:
                if not request.num_output_tokens:
                    filling.append(request)
                    continue
                own.first_s = now_s
                self.gamma.saw(own.slo_class, own.estimate_s, now_s - own.begun_s)
            elif request.num_computed_tokens < request.num_prompt_tokens:
                filling.append(request)  # it gave way before
        return filling

    def _follow(self, now_s: float) -> None:
        """Prompts that are begun: in the queue, with what is left of them."""

        def begins(request: InEngine) -> None:
            waiting = self.entry(request, now_s)
            waiting.begun = True
            self.queue.add(waiting, now_s, request.leeway.tier)

        def goes_on(request: InEngine, tokens: int) -> None:
            mean_s, cost_s = self._costs_s(request.leeway, tokens)
            self.queue.revise(request.request_id, cost_s, now_s, mean_s=mean_s)

        self.handout.follow(self._filling, begins, goes_on)

    def _retier(self, running: Sequence[InEngine], now_s: float) -> None:
        pace, ahead_s = self.pace, 0.0
        if len(running) >= self._max_slots and (not self.options.preempt or now_s < self._nobody_until_s):
            ahead_s = max(0.0, self._release_s(running))
        wanted = max(pace.token_s / self.reference_s, 1e-3)
        if not 1 / STRETCH_STEP < wanted / self.stretch < STRETCH_STEP:
            self.stretch = wanted
        self.queue.retier(now_s, ahead_s, stretch=self.stretch, begun_s=ahead_s)
        for request in self._filling:
            waiting = self.queue.get(request.request_id)
            if waiting is not None:
                request.leeway.tier = waiting.tier

    def _offer(self, running: Sequence[InEngine], now_s: float) -> tuple[str, float]:
        """Whose budget leaves most beyond its own redo, and how much: so that others can foretell who gives way."""
        best, most = "", (0.0, 0)
        for request in running:
            spare = self.budget_s(request, now_s) - self._redo_s(request), -request.num_computed_tokens
            if spare > most and not request.leeway.gave_way:
                best, most = request.request_id, spare
        return best, min(most[0], PLAUSIBLE_S)

    def _release_s(self, running: Sequence[InEngine]) -> float:
        """Until the next slot is free, if requests end as expected."""
        left = min([max(1, one.leeway_expected - one.num_output_tokens) for one in running], default=0)
        return left * self.pace.step_s


def _computed(one: InEngine) -> int:
    return one.num_computed_tokens


def _sooner(one: InEngine, other: InEngine) -> bool:
    """Whether the other's redo is cheaper."""
    return other.num_computed_tokens < one.num_computed_tokens
