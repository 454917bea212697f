"""When a request's length is worth asking for, and whether the request waits for the answer. Pure.

The late plan needs lengths for the order of those who wait, and for the peak of KV: a request joins the line at once and
is told its length there, unless some engine's KV is so full that the length may decide whether it fits. Policies that
place a request once and for all wait for the answer, up to its deadline.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.config import ModelSpec
from gateway.jobs import Job
from gateway.views import View
from predictor.request import LengthEstimate

SKIPS = ("unused", "limit", "narrow", "roomy", "one_open", "no_time", "sent")
USES_LENGTHS = frozenset(("po2", "pod", "fanout", "llmd_headroom", "nosim"))
BY_LENGTH = frozenset(("sjf", "lrb", "mh"))  # orders of the line that go by it
COMPARES_LATENCY = frozenset(("po2", "pod", "fanout"))
NARROW = 1.3  # quantiles closer than that leave nothing to be told
ROOMY_MARGIN = 0.5  # while half of the KV stays free at the peak, whatever the length, it decides nothing


def moves(known: LengthEstimate, told: LengthEstimate) -> bool:
    """Whether a waiting job's place is worth reckoning anew for that."""
    low, high = sorted((known.q50, told.q50))
    return high > NARROW * low or told.q90 > NARROW * known.q90


class Need(NamedTuple):
    """`skip`: why the length is not asked for; else `holds` says whether the request waits for the answer."""

    skip: str
    holds: bool = False


HOLD, JOIN = Need("", holds=True), Need("")


def need(
    rule: ModelSpec,
    job: Job,
    max_tokens: int,
    views: Sequence[View],
    now_s: float,
    left_s: float,
    deadline_s: float,
    *,
    has_room: bool,
) -> Need:
    """Whether to ask. `views` may get the job, and `has_room` says what `roomy` does of them; it may wait for another
    `left_s`, and the answer takes `deadline_s`."""
    estimate = job.lengths
    if not _decides(rule):
        return Need("unused")
    if 0 < max_tokens <= estimate.q10:
        return Need("limit")  # nine of ten are cut off there
    if estimate.q90 <= NARROW * estimate.q10:
        return Need("narrow")
    plan = rule.policy == "plan"
    if plan and has_room:
        return JOIN if rule.order in BY_LENGTH else Need("roomy")
    if left_s < 2 * deadline_s:
        return JOIN if plan else Need("no_time")
    if not plan and sum([view.usable(now_s) and view.open(now_s) for view in views]) < 2:
        return Need("one_open")
    return HOLD


def _decides(rule: ModelSpec) -> bool:
    """Whether the policy compares anything that depends on the length."""
    if rule.policy == "plan":
        return rule.binding == "late"
    if rule.policy in COMPARES_LATENCY and rule.objective == "ttft":
        return False
    return rule.policy in USES_LENGTHS


class _Longest:
    """A job as long as it may become."""

    __slots__ = ("block_tokens", "id", "lengths", "prefix", "prompt_tokens", "streams")

    def __init__(self, job: Job) -> None:
        self.id, self.prompt_tokens, self.prefix, self.block_tokens = job.id, job.prompt_tokens, job.prefix, job.block_tokens
        self.streams = job.streams
        q90 = job.lengths.q90
        self.lengths = LengthEstimate(q90, q90, q90, "longest")


def roomy(job: Job, views: Sequence[View]) -> bool:
    """Whether the job fits everywhere, however long its answer."""
    longest = _Longest(job)
    return all(view.mirror is None or view.mirror.fits(longest, ROOMY_MARGIN) for view in views)
