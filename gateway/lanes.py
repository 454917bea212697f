"""The replicas of a desk as its plan sees them: a lane for each, kept in step with who may be used. Pure.

It tells why nothing can be planned: a replica without a mirror, predictions that are too far off, a price that is no number
to compare by. What is done then is the desk's affair.
"""

from collections.abc import Sequence
from math import log

from gateway.config import ModelSpec
from gateway.plan import ALIKE, SCORE_MAX_S, Lane, Ticket, wrong
from gateway.views import View

NEVER = float("inf")
PACE_HOLDS_S = 60.0  # an engine that was idle for so long may have become another one: one request finds out, ...
PASSED_BY = 20  # ... when so many have passed by those that seem slow


class Lanes:
    """See the module's words. `views` are all replicas; `all` are the lanes of those that have a mirror."""

    def __init__(self, rule: ModelSpec) -> None:
        self.views: Sequence[View] = ()
        self.all: list[Lane] = []
        self._rule = rule
        self._error_log = log(rule.error_limit) if rule.error_limit > 0 else NEVER
        self._trial: Lane | None = None
        self._passed = 0  # looks since a trial
        self._blind = False  # some view has no mirror: nothing can be planned

    def sync(self, views: Sequence[View]) -> None:
        """These are the replicas that may be used; nothing is done when they are the same object as before."""
        if views is self.views:
            return
        self.views = views
        known = {(lane.name, id(lane.view), id(lane.mirror)): lane for lane in self.all}
        self.all = []
        for view in views:
            mirror = view.mirror
            if mirror is not None:
                lane = known.get((view.name, id(view), id(mirror)))
                self.all.append(lane if lane is not None else Lane(view, mirror))
        self._blind = len(self.all) < len(views)

    def reset(self, now_s: float) -> str:
        """Look again at each, with nothing planned. Gives why they cannot be planned with, or ""."""
        if self._blind:
            return "missing"
        cause = ""
        paces = sorted([lane.mirror.pace for lane in self.all])
        common_pace = paces[len(paces) // 2] if paces else 1.0
        trial = self._to_try(paces[0], now_s) if paces and paces[-1] >= paces[0] * ALIKE else None
        for lane in self.all:
            lane.reset(self._rule, now_s, common_pace, paces[0] if lane is trial else 0.0)
            if not lane.mirror.error <= self._error_log:
                cause = "error"
            elif not lane.head_s <= SCORE_MAX_S:
                cause = wrong(lane.head_s)
        return cause

    def _to_try(self, fastest: float, now_s: float) -> Lane | None:
        """A replica that seems slow and is priced as the fastest one this time: who seemed slow once, on a crowded machine,
        would be asked by nobody while others are idle, and go on seeming slow."""
        if self._trial is not None and not _forgotten(self._trial, now_s):
            self._trial, self._passed = None, 0
        self._passed += 1
        if self._passed > PASSED_BY:
            slow = [lane for lane in self.all if fastest * ALIKE <= lane.mirror.pace < NEVER and _forgotten(lane, now_s)]
            self._trial = min(slow, key=lambda lane: lane.mirror.heard_s, default=None)
        return self._trial

    def open_views(self, ticket: Ticket, now_s: float) -> list[View]:
        """Where that job could go now, planned or not."""
        avoid = ticket.avoid
        return [v for v in self.views if v.open(now_s) and v.usable(now_s) and not (avoid and v.name in avoid)]

    def best_hit(self, ticket: Ticket) -> int:
        """Tokens of its prompt that the best replica for it would reuse."""
        return max((ticket.hit_tokens(lane.name, lane.mirror) for lane in self.all), default=0)

    def work_s(self, ticket: Ticket) -> float:
        """Seconds of a replica that it takes, as far as is known: those of its prompt, and the share of the KV that it holds
        while it decodes."""
        tokens, output = ticket.job.prompt_tokens, ticket.job.lengths.q50
        if not self.all:
            return 1.0
        mirror = self.all[0].mirror
        kv_tokens = mirror.limits.kv_blocks * mirror.limits.block_size
        held_s = output * mirror.step_s * (tokens + 0.5 * output) / kv_tokens
        return mirror.work_s(tokens, min(ticket.best_hit, tokens - 1)) + held_s

    def decode_s(self, tokens: int) -> float:
        """Seconds that so many tokens take where they take least, as far as is known."""
        return tokens * min([lane.mirror.step_s * lane.mirror.pace for lane in self.all], default=0.0)


def _forgotten(lane: Lane, now_s: float) -> bool:
    """Nothing was heard of it for long, since nothing was sent there."""
    return not len(lane.mirror) and now_s - lane.mirror.heard_s > PACE_HOLDS_S
