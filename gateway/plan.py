"""The late plan: the waiting line planned over all replicas by one price, sent out as far as replicas are open. Pure.

For a request of x uncached tokens on replica k:

    score_k = T_k + lambda w_k + mu D_k w_k + 3 M_k

T_k = rest of the step in progress + the uncached prompt tokens already sent there or planned there before + its own,
all in seconds beside k's decodes; w_k = seconds of its own prompt alone, which everybody else waits for; D_k = decodes;
M_k = seconds until there is room for its KV at the peak, mostly 0. They weigh more than once, since meanwhile k is closed
to those behind it, too (chosen on examples/simulate/fleet.toml, flat from 3 to 6).
Order: shortest first, by predicted output + 0.3 uncached prompt tokens, less `age_rate` tokens a second of waiting, until it is
somebody's turn (gateway.turns); with `overtaking_s` only the short half passes others, and by no more than that
(gateway.handicap). The first 48 are walked: each goes to the least score over all replicas, if that one is open (no uncached
prompt token left beyond the step in progress), has nothing planned before it and will have room for its KV at the peak; else
its tokens stay in the plan and its replica is closed to those behind, so it waits for the holder of its prefix, too. Without
prefixes this is late binding with aged shortest-job-first (`make paper-astrolabe` shows both beside published policies).

At an engine that orders its queue (predictor.ordered) only the tokens that would be computed before a job count for it, in T_k
and for whether the replica is open: a begun prompt of tier 2 does not close an engine with our scheduler to tier 1.
"""

from collections.abc import Iterator, Sequence
from math import isnan

from gateway.config import ModelSpec
from gateway.jobs import Job
from gateway.views import View
from predictor.mirror import Mirror
from predictor.ordered import BY_ARRIVAL, before, rank, standing
from predictor.peak import PeakCurve

WALK = 48
ALIKE = 1.5  # engines whose paces differ by less are taken for the same hardware
PROMPT_WEIGHT = 0.3
ROOM_WEIGHT = 3.0
SCORE_MAX_S = 1e7
ENDS = 1e13  # beyond every key that is made of a size, on either side
AGED = -2  # the group of those who are passed by nobody any more
FAR_S = 1e9
NEVER = float("inf")


class Ticket:
    """A job between its arrival and its end. `key` is its place in the order, smaller first; `handicap_s` by how much later
    arrivals may pass it (gateway.handicap); `best_hit` the largest hit seen for it; `view` where it was sent; `tier` and
    `second_s` as of a Dispatch, once it has left the line."""

    __slots__ = (
        "avoid", "best_hit", "group", "handicap_s", "hits", "job", "key", "second_s", "sent_before_s", "tier", "turn", "view",
        "waits", "work_s",
    )  # fmt: skip

    def __init__(self, job: Job, avoid: frozenset[str] = frozenset()) -> None:
        self.job = job
        self.avoid = avoid
        self.key = 0.0
        self.best_hit = 0
        self.handicap_s = 0.0
        self.work_s = self.sent_before_s = 0.0
        self.group, self.turn = 0, -1  # see gateway.turns
        self.tier, self.second_s = 1, 0.0
        self.hits: dict[str, tuple[int, int]] = {}
        self.waits: dict[str, tuple[PeakCurve, int, int]] = {}  # by whose picture, for which output, steps until it fits
        self.view: View | None = None

    def hit_tokens(self, name: str, mirror: Mirror) -> int:
        """Prompt tokens cached there, looked up again only when that index has changed."""
        if not self.job.prefix:
            return 0
        version = mirror.index.version
        known = self.hits.get(name)
        if known is not None and known[0] == version:
            return known[1]
        tokens = mirror.hit_tokens(self.job)
        self.hits[name] = (version, tokens)
        return tokens


def size(ticket: Ticket) -> float:
    """How much it is: predicted output tokens, and a part of the prompt's that have to be computed."""
    job = ticket.job
    return job.lengths.q50 + PROMPT_WEIGHT * (job.prompt_tokens - ticket.best_hit)


def order_key(ticket: Ticket, rule: ModelSpec) -> float:
    """The place in the line: ageing is the same for all who wait, so arrival times it once and for all."""
    job = ticket.job
    if rule.order == "fcfs":
        return job.arrival_s
    if rule.order == "edf":
        return min(job.deadline_s, FAR_S + job.arrival_s)  # who was promised nothing after all who were, by arrival
    if rule.overtaking_s > 0:
        return job.arrival_s + ticket.handicap_s
    if ticket.turn > 0:
        return ticket.turn - (4.0 * ENDS if ticket.group == AGED else ENDS)
    return size(ticket) + rule.age_rate * job.arrival_s + 2.0 * ENDS * ticket.group


class Lane:
    """One replica within a plan. `head_s` is when a prompt that joins now begins to be computed, in seconds from now, behind
    `before_tokens`: all that is pending, or at an engine that orders its queue what the last one aimed at it would wait for."""

    __slots__ = (
        "base_s", "before_pairs", "before_tokens", "chunk", "closed", "costs", "crowd", "head_s", "mine", "mirror", "name",
        "opened", "pace", "pair_s", "planned_pairs", "planned_tokens", "queue", "queued_tokens", "room", "roomy_tokens",
        "step_s", "token_s", "usable", "view", "work_rate",
    )  # fmt: skip

    def __init__(self, view: View, mirror: Mirror) -> None:
        self.view = view
        self.name = view.name
        self.mirror = mirror
        self._price(mirror)
        self.room = self.chunk
        self.step_s = self.head_s = 0.0
        self.pace = self.work_rate = 1.0
        self.planned_tokens = self.before_tokens = 0
        self.planned_pairs = self.before_pairs = 0.0
        self.queue: list[tuple[tuple[int, float], int, float]] = []
        self.queued_tokens = 0
        self.mine = (0, 0.0)  # the place there of the last one aimed at it
        self.roomy_tokens = NEVER
        self.crowd: PeakCurve | None = None  # who is there, once a plan has asked for it
        self.opened = self.closed = self.usable = False

    def _price(self, mirror: Mirror) -> None:
        costs = self.costs = mirror.costs
        self.base_s, self.token_s, self.pair_s = costs.base_s, costs.token_s, costs.pair_s
        self.chunk = mirror.limits.max_num_batched_tokens

    def reset(self, rule: ModelSpec, now_s: float, common_pace: float = 1.0, trial_pace: float = 0.0) -> None:
        """Look again, with nothing planned. Prices go by the pace that engines have in common: one that is a little
        faster would be filled to its last block before the others got anything, for milliseconds of difference. One that
        is to be tried has that `trial_pace`."""
        self.planned_tokens, self.planned_pairs, self.closed, self.crowd = 0, 0.0, False, None
        view, mirror = self.view, self.mirror
        self.usable = view.usable(now_s)
        if mirror.costs is not self.costs:
            self._price(mirror)
        mirror.look(now_s)
        self.step_s, self.room = mirror.step_s, mirror.room
        alike = common_pace / ALIKE < mirror.pace < common_pace * ALIKE
        self.pace = trial_pace or (common_pace if alike else mirror.pace)
        self.work_rate = rule.work_weight + rule.mu * mirror.decodes
        self.update(rule, now_s)

    def update(self, rule: ModelSpec, now_s: float) -> None:
        """After something was sent there."""
        mirror = self.mirror
        self.roomy_tokens = mirror.roomy_tokens(rule.margin)
        self.before_tokens, self.before_pairs = mirror.pending_tokens, mirror.pending_pairs
        self.queued_tokens = mirror.pending_tokens
        self.queue = []
        if mirror.filling and mirror.scheduling not in BY_ARRIVAL:
            self.queue = standing(mirror.filling, mirror.scheduling, mirror.work_s, now_s)
        self.opened = (
            self.usable
            and (mirror.pending_tokens <= rule.ahead_tokens or bool(self.queue))
            and len(mirror) + mirror.foreign < mirror.limits.max_num_seqs
            and mirror.overdue_s <= rule.stale_s
            and self.view.open(now_s)
        )
        self._begins()

    def aim(self, job: Job, hit_tokens: int, now_s: float) -> None:
        """Price what comes next for this job."""
        mirror, left = self.mirror, job.prompt_tokens - hit_tokens
        alone_s = mirror.work_s(job.prompt_tokens, hit_tokens)
        self.mine = rank(mirror.scheduling, 1, job.arrival_s, job.deadline_s, left, alone_s, now_s)
        self.before_tokens, self.before_pairs = before(self.queue, self.mine, self.queued_tokens)
        self._begins()

    def queues(self, prompt_tokens: int, hit_tokens: int) -> None:
        """The one aimed at it waits for those before it: only those behind that place have to look elsewhere."""
        left = prompt_tokens - hit_tokens
        self.queue.append((self.mine, left, left * (hit_tokens + 0.5 * left)))
        self.queued_tokens += left

    def plan(self, prompt_tokens: int, hit_tokens: int) -> None:
        """Somebody is meant for it, and those behind have to look elsewhere."""
        self.closed = True
        left = prompt_tokens - hit_tokens
        self.planned_tokens += left
        self.planned_pairs += left * (hit_tokens + 0.5 * left)
        self._begins()

    def _begins(self) -> None:
        mirror = self.mirror
        head_s = mirror.lag_s
        tokens = self.before_tokens + self.planned_tokens
        if tokens > 0:
            pairs = self.before_pairs + self.planned_pairs
            steps = -(-tokens // self.room)
            head_s += (steps * self.step_s + self.token_s * tokens + self.pair_s * pairs) * self.pace
        self.head_s = head_s

    def ttft_s(self, prompt_tokens: int, hit_tokens: int) -> float:
        """T_k."""
        left = prompt_tokens - hit_tokens
        own_s = self.token_s * left + self.pair_s * left * (hit_tokens + 0.5 * left)
        return self.head_s + (-(-left // self.room) * self.step_s + own_s) * self.pace

    def score_s(self, prompt_tokens: int, hit_tokens: int) -> float:
        """The price of a prompt there."""
        left = prompt_tokens - hit_tokens
        own_s = self.token_s * left + self.pair_s * left * (hit_tokens + 0.5 * left)
        steps = -(-left // self.room)
        alone = -(-left // self.chunk)
        return self.head_s + (steps * self.step_s + own_s + self.work_rate * (alone * self.base_s + own_s)) * self.pace

    def frees_s(self, ticket: Ticket, margin: float, now_s: float) -> float:
        """M_k, reckoned once for each picture of who is there, which holds for a moment."""
        mirror, job = self.mirror, ticket.job
        crowd = self.crowd
        if crowd is None:
            crowd = self.crowd = mirror.memory.crowd(now_s)
        known = ticket.waits.get(self.name)
        if known is not None and known[0] is crowd and known[1] == job.lengths.q50:
            steps = known[2]
        else:
            steps = mirror.frees_steps(job, margin, crowd)
            ticket.waits[self.name] = (crowd, job.lengths.q50, steps)
        return steps * mirror.step_s * mirror.pace


class UntrustedError(Exception):
    """A score is no number to compare by; the argument says why."""


def wrong(value_s: float) -> str:
    """Why a predicted duration is none: "nan", "negative", "garbage", or "" if it is one."""
    if 0.0 <= value_s <= SCORE_MAX_S:
        return ""
    return "nan" if isnan(value_s) else "negative" if value_s < 0 else "garbage"


def cheapest(ticket: Ticket, lanes: Sequence[Lane], margin: float, now_s: float) -> tuple[Lane | None, int]:
    """The lane of least score among the usable ones that the job may go to, and the hit there; None without any.

    Raises UntrustedError when a score is NaN, negative or beyond reason: then none of them may be compared.
    """
    job, avoid = ticket.job, ticket.avoid
    prompt_tokens, prefix = job.prompt_tokens, bool(job.prefix)
    final_tokens = prompt_tokens + job.lengths.q50
    best: Lane | None = None
    best_s, best_hit, most_hit, hit = NEVER, 0, 0, 0
    for lane in lanes:
        if not lane.usable or (avoid and lane.name in avoid):
            continue
        if prefix:
            hit = ticket.hit_tokens(lane.name, lane.mirror)
            most_hit = max(most_hit, hit)
        if lane.queue:
            lane.aim(job, hit, now_s)
        score_s = lane.score_s(prompt_tokens, hit)
        if not 0.0 <= score_s <= SCORE_MAX_S:
            raise UntrustedError(wrong(score_s))
        if final_tokens > lane.roomy_tokens and score_s < best_s:
            score_s += ROOM_WEIGHT * lane.frees_s(ticket, margin, now_s)
        if score_s < best_s or (
            score_s == best_s and best is not None and lane.view.dispatched_total < best.view.dispatched_total
        ):
            best, best_s, best_hit = lane, score_s, hit  # of equals the one used less: caches fill everywhere
    ticket.best_hit = most_hit
    return best, best_hit


def walk(
    line: Sequence[Ticket], lanes: Sequence[Lane], rule: ModelSpec, now_s: float
) -> Iterator[tuple[Ticket, Lane, int, float]]:
    """(ticket, lane, hit tokens, predicted seconds to the first token) of each job to send now. Whoever takes one sends
    it before asking for the next. `lanes` are reset; `line` is in order and may change meanwhile. Raises UntrustedError
    as `cheapest`."""
    left = sum(lane.opened for lane in lanes)
    if not left:
        return
    for ticket in line[:WALK]:
        lane, hit = cheapest(ticket, lanes, rule.margin, now_s)
        if lane is None:
            continue
        job = ticket.job
        free = lane.opened and not lane.closed and not lane.planned_tokens
        in_turn = lane.before_tokens <= rule.ahead_tokens
        if free and in_turn and lane.mirror.fits(job, rule.margin):
            yield ticket, lane, hit, lane.ttft_s(job.prompt_tokens, hit)
            lane.update(rule, now_s)
            left -= not lane.opened
        elif free and not in_turn:
            lane.queues(job.prompt_tokens, hit)
        else:
            left -= lane.opened and not lane.closed
            lane.plan(job.prompt_tokens, hit)
        if left <= 0:
            return


def openings(
    line: Sequence[Ticket], lanes: Sequence[Lane], rule: ModelSpec, now_s: float
) -> Iterator[tuple[Ticket, list[View]]]:
    """(ticket, where it may go) of each job to send now, for when predicted times are too far off to be compared. What
    was sent and has not answered is known all the same: were nobody held, a line would go to the engines at once, in no
    order, and there make first tokens so late that predictions would not recover. `line` and `lanes` as in `walk`."""
    for ticket in line[:WALK]:
        fit = [lane for lane in lanes if lane.opened and lane.name not in ticket.avoid and _lets(lane, ticket, rule, now_s)]
        views = [lane.view for lane in fit if lane.mirror.fits(ticket.job, rule.margin)]
        if views:
            yield ticket, views
            for lane in fit:
                if lane.view is ticket.view:
                    lane.update(rule, now_s)


def _lets(lane: Lane, ticket: Ticket, rule: ModelSpec, now_s: float) -> bool:
    """Whether no more is computed there before it than may be pending."""
    if lane.queue:
        lane.aim(ticket.job, ticket.hit_tokens(lane.name, lane.mirror), now_s)
    return lane.before_tokens <= rule.ahead_tokens


def opens_s(lanes: Sequence[Lane], rule: ModelSpec, now_s: float) -> float:
    """When the next closed lane is expected to open by the passing of time; infinity when none will."""
    soonest = NEVER
    for lane in lanes:
        closed = not lane.opened or lane.mirror.pending_tokens > rule.ahead_tokens
        if lane.usable and closed and lane.view.open(now_s):
            at_s = lane.mirror.opens_s(now_s, rule.ahead_tokens)
            if now_s < at_s < soonest:
                soonest = at_s
    return soonest
