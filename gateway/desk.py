"""The desk: who gets a request, when, and what is known of every replica. Pure; one desk for one model.

Events go in (a job arrived, a first token, an end), actions come out (Dispatch, Probe). The simulator and the live
gateway drive the same object. What holds: a job is dispatched at most once and none is lost; a dispatch counts at its
replica before anything else is decided; whoever waits leaves with the first event that lets it, so call `tick` at
`due_s`. The owner carries out actions at once and in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from random import Random

from gateway.config import ModelSpec
from gateway.foresight import Foresight, OwnDispatches
from gateway.handicap import Sizes
from gateway.hindsight import Hindsight
from gateway.jobs import Action, Dispatch, Job, Probe, told
from gateway.lanes import Lanes
from gateway.line import Guard, Line
from gateway.plan import WALK, Ticket, UntrustedError, cheapest, openings, opens_s, order_key, size, walk
from gateway.policies.base import Policy, Probing
from gateway.policies.ladder import Ladder, judge
from gateway.policies.table import COUNTING, PREDICTING, PROBING
from gateway.tag_rules import moves
from gateway.views import EngineView, View
from predictor.request import LengthEstimate
from predictor.seats import Progress
from predictor.snapshot import ProbeReply

__all__ = ["Action", "Desk", "Dispatch", "EngineView", "Job", "Probe"]

NEVER = float("inf")
BY_SIZE = ("sjf", "mh", "lrb")
Replies = Mapping[str, ProbeReply | None]


class Desk:
    """See the module's words. All instants are of one clock, and never run backwards."""

    def __init__(self, rule: ModelSpec, rng: Random, *, own_dispatches: bool = True, reserves: bool = False) -> None:
        """`own_dispatches = False` lets policies see only what probes reported, as the published systems do; with `reserves`
        each dispatch is reserved there before the next probe asks, so only those during a probe are unknown to it."""
        assert rule.policy != "auto", "whoever opens the desk decides"
        self.rule = rule
        self.due_s = NEVER  # call `tick` then, if nothing happens before; infinity when nobody waits for time alone
        self.ladder = Ladder(rng)
        self.held_total = 0  # jobs that had to wait
        self.hindsight = Hindsight()
        self._plans = rule.policy == "plan"
        self._late = self._plans and rule.binding == "late"
        self._turns = self._late and rule.turn_after > 0 and not rule.overtaking_s and rule.order in BY_SIZE
        self._counting: Policy | None = COUNTING[rule.policy](rule, rng) if rule.policy in COUNTING else None
        self._probing: Probing | None = PROBING[rule.policy](rule, rng) if rule.policy in PROBING else None
        self._predicts = rule.policy in PREDICTING
        self._own = OwnDispatches() if own_dispatches else None
        self._reserves = reserves
        self._foresight = Foresight()
        self._lanes = Lanes(rule)
        self._tickets: dict[str, Ticket] = {}
        self.line = Line(rule)
        self._sizes = Sizes()
        self.guard = Guard()
        self._asked: dict[str, tuple[list[View], float]] = {}  # since when

    def __repr__(self) -> str:
        return f"<Desk {self.rule.policy} {self.rule.binding} waiting={len(self.line)} jobs={len(self._tickets)}>"

    @property
    def waiting(self) -> int:
        """Jobs that are not dispatched yet."""
        return len(self.line) + len(self._asked)

    @property
    def held(self) -> int:
        """Jobs in the line."""
        return len(self.line)

    # -- replicas

    def added(self, name: str, engine: EngineView) -> None:
        """A replica may be used from now on."""
        self.sync([*self._lanes.views, engine.view(name)])

    def removed(self, name: str) -> None:
        """It may not be used any more; jobs that are there end as they end."""
        self.sync([view for view in self._lanes.views if view.name != name])
        self._foresight.forget(name)
        if self._own is not None:
            self._own.forget(name)

    def sync(self, views: Sequence[View]) -> None:
        """These are the replicas that may be used, kept by somebody else; nothing is done when they are the same
        object as before."""
        self._lanes.sync(views)

    # -- jobs

    def arrived(self, job: Job, now_s: float, avoid: frozenset[str] = frozenset()) -> list[Action]:
        """A new job; never to one of `avoid`."""
        assert job.id not in self._tickets, f"job {job.id!r} arrived twice"
        ticket = self._tickets[job.id] = Ticket(job, avoid)
        if self._late:
            if job.prefix:
                ticket.best_hit = self._lanes.best_hit(ticket)
            self._join(ticket, now_s)
            return self._go_on(now_s, ticket)
        action = self._try(ticket, now_s)
        if action is not None:
            return [action]
        self._join(ticket, now_s)
        self.held_total += 1
        return []

    def probed(self, job_id: str, replies: Replies, now_s: float) -> list[Action]:
        """What came back of a Probe: a name without an entry was late, None stands for a failed probe."""
        asked = self._asked.pop(job_id, None)
        ticket = self._tickets.get(job_id)
        if asked is None or ticket is None:
            return []
        drawn, asked_s = asked
        views = [view for view in drawn if view in self._lanes.views and view.open(now_s) and view.usable(now_s)]
        if views:
            sent = self._choose(ticket, views, replies, now_s, asked_s if self._reserves else -NEVER)
            return [told(sent, ticket.tier, ticket.second_s) if ticket.tier == 2 or ticket.second_s else sent]
        action = self._try(ticket, now_s)
        if action is None:
            self._join(ticket, now_s)
            return []
        return [action]

    def started(self, job_id: str, progress: Progress) -> None:
        """The job is at its replica; its progress can be read there from now on."""
        ticket = self._tickets.get(job_id)
        if ticket is not None and ticket.view is not None and ticket.view.mirror is not None:
            ticket.view.mirror.started(job_id, progress)

    def first_token(self, job_id: str, now_s: float) -> list[Action]:
        """The job's first output token came."""
        ticket = self._tickets.get(job_id)
        if ticket is not None and ticket.view is not None and ticket.view.mirror is not None:
            ticket.view.mirror.first_token(job_id, now_s)
            self.guard.first_token(ticket.job, now_s)
        return self._go_on(now_s) if self.line else []

    def finished(self, job_id: str, output_tokens: int, now_s: float) -> list[Action]:
        """The job's answer is complete, with so many tokens; below 0: nobody knows."""
        ticket = self._tickets.pop(job_id, None)
        self.guard.gone(job_id)
        self.line.tenants.settle(job_id, output_tokens)
        if ticket is not None and ticket.view is not None:
            ticket.view.left()
            if ticket.view.mirror is not None:
                ticket.view.mirror.finished(job_id, now_s)
        return self._go_on(now_s) if self.line else []

    def lost(self, job_id: str, now_s: float, output_tokens: int = -1, begun: bool = True) -> list[Action]:
        """The job is gone: cancelled while it waited, or failed or cancelled where it was, with so many tokens (below 0:
        nobody knows) or before it had `begun`. It may arrive again."""
        ticket = self._tickets.pop(job_id, None)
        self._asked.pop(job_id, None)
        self.guard.gone(job_id)
        self.line.tenants.settle(job_id, output_tokens) if begun else self.line.tenants.refund(job_id)
        if ticket is not None and ticket.view is not None:
            ticket.view.left()
            if ticket.view.mirror is not None:
                ticket.view.mirror.lost(job_id)
        elif ticket is not None and ticket in self.line:
            self.line.remove(ticket, now_s, sent=False)
        return self._go_on(now_s) if self.line else []

    def tick(self, now_s: float) -> list[Action]:
        """Time passed, or a replica came or changed."""
        return self._go_on(now_s) if self.line else []

    def insist(self, job_id: str, now_s: float) -> list[Action]:
        """The job must not wait any longer: to the cheapest replica that is open at all, by prediction or not."""
        ticket = self._tickets.get(job_id)
        if ticket is None or ticket not in self.line:
            return []
        if not (views := self._lanes.open_views(ticket, now_s)):
            return []
        ticket.tier, ticket.second_s = self.line.remove(ticket, now_s, sent=True)
        sent = self._early(ticket, views, now_s) if self._plans else self._send_by_ladder(ticket, views, "late", now_s)
        return [told(sent, ticket.tier, ticket.second_s)]

    def revise(self, job_id: str, lengths: LengthEstimate, now_s: float) -> list[Action] | None:
        """It turned out how long the answer may be, of a job in the line or in an engine. None where it changes nothing."""
        ticket = self._tickets.get(job_id)
        if ticket is None:
            return None
        if job_id in self._asked:  # what it will be dispatched and reserved with
            ticket.job = replace(ticket.job, lengths=lengths)
            return []
        if ticket.view is not None:
            known = ticket.view.mirror is not None and ticket.view.mirror.revised(job_id, lengths)
            return None if not known else self._go_on(now_s) if self.line else []
        if not moves(ticket.job.lengths, lengths):
            self.hindsight.stayed()
            return []
        before = self.line.tickets.index(ticket)
        ticket.job = replace(ticket.job, lengths=lengths)
        if self._late:
            self._rank(ticket)
            self.line.resort()
            self.hindsight.moved(self.line.tickets, before, ticket, self._lanes.all)
        return self._go_on(now_s)

    # -- the line

    def _rank(self, ticket: Ticket) -> None:
        """Its place in the line."""
        if self.rule.overtaking_s > 0:
            ticket.handicap_s = self._sizes.handicap_s(size(ticket), self.rule.overtaking_s)
        ticket.key = order_key(ticket, self.rule)

    def _join(self, ticket: Ticket, now_s: float) -> None:
        job, line = ticket.job, self.line
        ticket.key = job.arrival_s
        if self.rule.overtaking_s > 0:
            self._sizes.saw(size(ticket))
        if job.deadline_s < NEVER:
            line.knows_slo = True
        if self._turns and not line.knows_slo:
            line.turns.came(ticket, self._lanes.work_s(ticket))
        if self._late:
            self._rank(ticket)
        line.join(ticket, now_s, self.guard.service_s(ticket, self._lanes.views) if line.knows_slo else (0.0, 0.0))

    def decode_s(self, tokens: int) -> float:
        """Seconds that so many tokens take where they take least, as far as is known."""
        return self._lanes.decode_s(tokens)

    def asks(self, job_id: str) -> bool:
        """Whether sidecars are being asked for that job."""
        return job_id in self._asked

    def _go_on(self, now_s: float, fresh: Ticket | None = None) -> list[Action]:
        """Dispatch whoever can go."""
        if not self._late:
            return self._release(now_s)
        actions: list[Action] = []
        self.due_s = NEVER
        cause = self._lanes.reset(now_s)
        if not cause:
            try:
                for ticket, lane, hit_tokens, ttft_s in walk(self._in_order(now_s), self._lanes.all, self.rule, now_s):
                    ticket.tier, ticket.second_s = self.line.remove(ticket, now_s, sent=True)
                    sent = self._send(ticket, lane.view, hit_tokens, "plan", ttft_s, now_s)
                    second = ticket.second_s or ticket.tier != 1
                    actions.append(told(sent, ticket.tier, ticket.second_s) if second else sent)
            except UntrustedError as error:
                cause = str(error)
        if cause:
            actions += self._fall_back(cause, now_s)
        if self.line:
            self._reorder()
            self.due_s = opens_s(self._lanes.all, self.rule, now_s)
        if fresh is not None and fresh.view is None:
            self.held_total += 1
        return actions

    def _in_order(self, now_s: float) -> Sequence[Ticket]:
        line = self.line
        if self._turns and not line.knows_slo:
            line.give_turns(now_s)
        if line.plain:
            return line.tickets
        if self._late and not any(lane.opened for lane in self._lanes.all):
            return ()  # nobody can go: no order is needed
        heads = [lane.head_s for lane in self._lanes.all if lane.usable]
        return line.in_order(now_s, min(heads, default=0.0), len(heads) or len(self._lanes.views))

    def _reorder(self) -> None:
        """Hits change while jobs wait, and their places with them."""
        changed = False
        for ticket in self.line.tickets[:WALK]:
            if ticket.job.prefix:
                key = order_key(ticket, self.rule)
                changed = changed or key != ticket.key
                ticket.key = key
        if changed:
            self.line.resort()

    def _fall_back(self, cause: str, now_s: float) -> list[Action]:
        """Who may go without a prediction: whoever can, but for one that is only far off (see `openings`)."""
        actions: list[Action] = []
        lanes = self._lanes
        everybody = ((ticket, views) for ticket in list(self.line.tickets) if (views := lanes.open_views(ticket, now_s)))
        for ticket, views in openings(self._in_order(now_s), lanes.all, self.rule, now_s) if cause == "error" else everybody:
            ticket.tier, ticket.second_s = self.line.remove(ticket, now_s, sent=True)
            actions.append(told(self._send_by_ladder(ticket, views, cause, now_s), ticket.tier, ticket.second_s))
        return actions

    def _release(self, now_s: float) -> list[Action]:
        """As long as somebody is open: first come, first served, but for those with a deadline."""
        actions: list[Action] = []
        for ticket in self._in_order(now_s)[:WALK]:
            action = self._try(ticket, now_s)
            if action is not None:
                ticket.tier, ticket.second_s = self.line.remove(ticket, now_s, sent=True)
                actions.append(told(action, ticket.tier, ticket.second_s))
        return actions

    # -- one job

    def _try(self, ticket: Ticket, now_s: float) -> Action | None:
        """Dispatch or probe now; None when nobody is open."""
        if not (views := self._lanes.open_views(ticket, now_s)):
            return None
        if self._plans:
            return self._early(ticket, views, now_s)
        if self._counting is not None:
            return self._send(ticket, self._counting.choose(ticket.job, views, now_s), -1, self.rule.policy, NEVER, now_s)
        assert self._probing is not None
        drawn = self._probing.drawn(ticket.job, views)
        if not drawn:
            chosen = self._probing.choose(ticket.job, views, now_s, {})
            return self._send(ticket, chosen, -1, self.rule.policy, NEVER, now_s)
        remote = tuple(view.name for view in drawn if view.sidecar)
        if remote:
            self._asked[ticket.job.id] = (list(drawn), now_s)
            return Probe(ticket.job, remote)
        return self._choose(ticket, drawn, {}, now_s, now_s)

    def _early(self, ticket: Ticket, views: list[View], now_s: float) -> Action:
        """The plan's price, at once."""
        cause = self._lanes.reset(now_s)
        if not cause:
            try:
                lanes = [lane for lane in self._lanes.all if lane.view in views]
                lane, hit_tokens = cheapest(ticket, lanes, self.rule.margin, now_s)
            except UntrustedError as error:
                cause = str(error)
            else:
                assert lane is not None
                ttft_s = lane.ttft_s(ticket.job.prompt_tokens, hit_tokens)
                return self._send(ticket, lane.view, hit_tokens, "plan", ttft_s, now_s)
        return self._send_by_ladder(ticket, views, cause, now_s)

    def _choose(self, ticket: Ticket, views: Sequence[View], remote: Replies, now_s: float, known_s: float) -> Dispatch:
        """By the policy if every reply is good, else by the ladder. `known_s`: see OwnDispatches."""
        assert self._probing is not None
        job, rule = ticket.job, self.rule
        replies: dict[str, ProbeReply] = {}
        cause = ""
        for view in views:
            late = view.sidecar and view.name not in remote
            reply = remote.get(view.name) if view.sidecar else self._own_reply(job, view, now_s)
            wrong = "late" if late else judge(reply, rule, self._predicts)
            if wrong or reply is None:
                cause = cause or wrong
            else:
                replies[view.name] = reply
        if cause:
            return self._send_by_ladder(ticket, views, cause, now_s)
        if self._own is not None and remote:
            sizes = {view.name: view.mirror.limits.block_size for view in views if view.mirror is not None}
            replies = self._own.corrected(replies, sizes, now_s, known_s)
        chosen = self._probing.choose(job, views, now_s, replies)
        if job.plain is not None and self._predicts and not remote:
            self.hindsight.chose(job, views, chosen, replies, self._probing, self._foresight, now_s)
        estimate_s = replies[chosen.name].estimate.ttft_s if self._predicts else NEVER
        return self._send(ticket, chosen, -1, rule.policy, estimate_s, now_s)

    def _own_reply(self, job: Job, view: View, now_s: float) -> ProbeReply | None:
        """What a sidecar would say, from the mirror."""
        return self._foresight.reply(job, view, now_s) if self._predicts else self._foresight.counts(view, now_s)

    def _send_by_ladder(self, ticket: Ticket, views: Sequence[View], cause: str, now_s: float) -> Dispatch:
        return self._send(ticket, self.ladder.choose(views, cause), -1, f"fallback: {cause}", NEVER, now_s)

    def _send(self, ticket: Ticket, view: View, hit_tokens: int, reason: str, ttft_s: float, now_s: float) -> Dispatch:
        """Count the job there, before anything else is decided. `hit_tokens` below 0: look them up."""
        assert ticket.view is None, f"job {ticket.job.id!r} is dispatched already"
        job, mirror = ticket.job, view.mirror
        ticket.view = view
        view.sent(now_s)
        if mirror is not None:
            if hit_tokens < 0:
                hit_tokens = mirror.hit_tokens(job)
            if self._own is not None and view.sidecar:
                self._own.add(job, view.name, mirror.work_s(job.prompt_tokens, hit_tokens), now_s)
            reckoned_s = mirror.dispatched(job, hit_tokens, now_s, tier=ticket.tier)
            if ttft_s == NEVER:
                ttft_s = reckoned_s
            self.guard.sent(job, ttft_s, now_s)
        ticket.hits.clear()
        return Dispatch(job, view.name, max(0, hit_tokens), reason, nan if ttft_s == NEVER else ttft_s)
