"""What is done when a prediction cannot be used: all candidates are compared by something simpler. Pure.

Rungs: least tokens (where every candidate has a mirror), least requests, random among equals. A reply is judged before
it is compared; one bad reply among several candidates sends all of them to the ladder, since like is compared with like
only. Each use is counted by its cause.
"""

from collections.abc import Sequence
from math import isnan
from random import Random

from gateway.config import ModelSpec
from gateway.policies.base import V, least, load
from predictor.seats import queued_tokens
from predictor.snapshot import GARBLED, ProbeReply

LATENCY_MAX_S = 1e7
CAUSES = ("late", "missing", "stale", "nan", "negative", "garbage", "error")


def judge(reply: ProbeReply | None, rule: ModelSpec, predicts: bool) -> str:
    """What is wrong with a reply: "" or one of CAUSES. `predicts`: its estimate will be compared, else only counts."""
    if reply is None:
        return "missing"
    if reply is GARBLED:
        return "garbage"
    age_s, running, waiting = reply.snapshot_age_s, reply.running, reply.waiting
    free_blocks, waiting_blocks, queued_tokens = reply.free_blocks, reply.waiting_blocks, reply.queued_tokens
    if isnan(age_s + running + waiting + free_blocks + waiting_blocks + queued_tokens):  # as soon as one of them is
        return "nan"
    if running < 0 or waiting < 0 or free_blocks < 0 or waiting_blocks < 0 or queued_tokens < 0 or age_s < 0:
        return "negative"
    if age_s > rule.stale_s:
        return "stale"
    return _judge_estimate(reply, rule) if predicts else ""


def _judge_estimate(reply: ProbeReply, rule: ModelSpec) -> str:
    estimate = reply.estimate
    ttft_s, e2e_s = estimate.ttft_s, estimate.e2e_s
    if isnan(ttft_s) or isnan(e2e_s):
        return "nan"
    if ttft_s < 0 or e2e_s < 0:
        return "negative"
    if ttft_s > LATENCY_MAX_S or e2e_s > LATENCY_MAX_S or ttft_s > e2e_s * (1 + 1e-9):
        return "garbage"
    return "error" if not estimate.spread <= rule.error_limit else ""


class Ladder:
    """The fallback, and how often each cause led to it."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.counts: dict[str, int] = {}

    def choose(self, views: Sequence[V], cause: str) -> V:
        """The view of fewest tokens to compute or produce per weight, else of fewest requests; ties at random."""
        self.counts[cause] = self.counts.get(cause, 0) + 1
        tokens: dict[str, float] = {}
        for view in views:
            if view.mirror is None:
                return least(views, load, self._rng)
            tokens[view.name] = queued_tokens(view.mirror.seats) / view.weight
        return least(views, lambda view: tokens[view.name], self._rng)
