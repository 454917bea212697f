"""The line of a desk: who waits, in which order, in which tier, and whose tenant has had its share. Pure.

Without deadlines it is a list sorted by the rule's key (`plan.order_key`), and nothing else is reckoned. With them, `lrb`
and `mh` put those who can still be in time into tier 1 (predictor.queues decides, by their deadlines and costs); all others
are tier 2, in the rule's key order, and get the share `rho` of the prompt tokens sent while both have somebody. After
`age_s` no later arrival overtakes.

Within a tier tenants share by virtual token counters (`tenants`).
"""

from bisect import insort
from collections.abc import Iterator, Sequence
from math import pow as power

from gateway.config import ModelSpec
from gateway.jobs import Job
from gateway.plan import WALK, Ticket, order_key
from gateway.tenants import Tenants
from gateway.turns import Turns
from gateway.views import View
from predictor.budget import Gamma
from predictor.queues import TIERED, TieredQueue
from predictor.share import Share, turns
from predictor.waiting import Waiting

NEVER = float("inf")
RETIER_S = 0.005
CAPACITY_HALF_S = 5.0
CAPACITY_LEAST = 0.05  # of the replicas: below this it is not their pace that holds the line


def place(ticket: Ticket) -> float:
    """By what the list is sorted."""
    return ticket.key


class Held:
    """One with a deadline, while it waits."""

    __slots__ = ("second_s", "seen_s", "tier", "waiting")

    def __init__(self, waiting: Waiting, now_s: float) -> None:
        self.waiting = waiting
        self.seen_s = now_s
        self.tier = waiting.tier
        self.second_s = 0.0  # in tier 2, up to `seen_s`

    def look(self, now_s: float) -> None:
        """Count the time since the last look into the tier of then."""
        if self.tier == 2:
            self.second_s += now_s - self.seen_s
        self.seen_s = now_s
        self.tier = self.waiting.tier


class Guard:
    """How long requests with a deadline take beside what was predicted: the factor of their class on what they cost."""

    def __init__(self) -> None:
        self.gamma = Gamma()
        self._sent: dict[str, tuple[float, float]] = {}  # at, predicted to take

    def service_s(self, ticket: Ticket, views: Sequence[View]) -> tuple[float, float]:
        """Seconds that a prompt takes alone, where it takes least: guarded, and as a rule."""
        tokens = ticket.job.prompt_tokens
        mirrors = [view.mirror for view in views if view.mirror is not None]
        alone_s = min([mirror.work_s(tokens, min(ticket.best_hit, tokens - 1)) for mirror in mirrors], default=0.0)
        return self.gamma.of(ticket.job.class_name) * alone_s, alone_s

    def sent(self, job: Job, predicted_s: float, now_s: float) -> None:
        """It is on its way."""
        if job.deadline_s < NEVER:
            self._sent[job.id] = (now_s, predicted_s)

    def first_token(self, job: Job, now_s: float) -> None:
        """Its first token came."""
        if self._sent and job.id in self._sent:
            sent_s, predicted_s = self._sent.pop(job.id)
            self.gamma.saw(job.class_name, predicted_s, now_s - sent_s)

    def gone(self, job_id: str) -> None:
        """It ended."""
        if self._sent:
            self._sent.pop(job_id, None)


class Capacity:
    """Seconds of service that leave a line that somebody waits in, per second: learned, between a share of the replicas
    and all of them. What holds the line may be room for KV, which no prompt's seconds tell of."""

    __slots__ = ("_since_s", "_time_s", "_work_s")

    def __init__(self) -> None:
        self._work_s = self._time_s = 0.0
        self._since_s = NEVER

    def waits(self, now_s: float) -> None:
        """Somebody waits from now on."""
        self._since_s = min(self._since_s, now_s)

    def left(self, cost_s: float, waited: bool, empty: bool, now_s: float) -> None:
        """One who costs so much left the line."""
        if self._since_s < now_s:
            passed_s = now_s - self._since_s
            fade = power(0.5, passed_s / CAPACITY_HALF_S)
            self._work_s, self._time_s = self._work_s * fade, self._time_s * fade + passed_s
        if waited:
            self._work_s += cost_s
        self._since_s = NEVER if empty else now_s

    def of(self, replicas: int) -> float:
        """The rate, beside so many replicas; all of them while little is known."""
        most = max(1, replicas)
        prior_s = max(0.0, CAPACITY_HALF_S - self._time_s)
        rate = (self._work_s + most * prior_s) / max(self._time_s + prior_s, 1e-9)
        return min(float(most), max(CAPACITY_LEAST * most, rate))


class Line:
    """See the module's words."""

    def __init__(self, rule: ModelSpec) -> None:
        self.share: Share | None = None
        self.shared_tokens = [0, 0]  # sent of each tier while both had somebody
        self.turns = Turns(rule.turn_after, rule.age_s)
        self._rule = rule
        self._list: list[Ticket] = []
        self._held: dict[str, Held] = {}
        self._queue: TieredQueue | None = None
        if rule.order in TIERED:
            self._queue = TieredQueue(rule.order, rule.rho, rule.alpha, rule.age_s)
            self.share = self._queue.share
        self._age_s = rule.age_s
        self._capacity = Capacity()
        self._tiered_s = -NEVER
        self._order: list[Ticket] | None = None  # what `in_order` gave last, as long as it stands
        self._costs: dict[str, float] = {}
        self.tenants = Tenants()
        self.knows_slo = False  # whether anybody ever came with a deadline: only then are costs of use

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._list)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._list

    @property
    def plain(self) -> bool:
        """Whether the order of keys is all there is to it."""
        return not self._held and not self.tenants.share

    @property
    def tickets(self) -> Sequence[Ticket]:
        """Everybody in the order of keys."""
        return self._list

    @property
    def tiers(self) -> tuple[int, int]:
        """How many are in tier 1 and in tier 2; without deadlines all count as tier 1."""
        if not self._held:
            return len(self._list), 0
        first = sum(held.waiting.tier == 1 for held in self._held.values())
        return first, len(self._list) - first

    # -- coming and going

    def join(self, ticket: Ticket, now_s: float, service_s: tuple[float, float]) -> None:
        """`service_s`: as `Guard` says; of use only once deadlines are known."""
        cost_s, mean_s = service_s
        insort(self._list, ticket, key=place)
        self._order = None
        job = ticket.job
        if self.knows_slo:
            self._costs[job.id] = cost_s
            self._capacity.waits(now_s)
            if self._queue is not None and job.deadline_s < NEVER:
                tokens, until_s = job.prompt_tokens, job.deadline_s
                waiting = Waiting(job.id, job.arrival_s, cost_s, tokens, until_s, job.tenant, mean_s=mean_s)
                self._queue.add(waiting, now_s)
                self._held[job.id] = Held(waiting, now_s)
        if job.tenant:
            self.tenants.comes(job.tenant)

    def remove(self, ticket: Ticket, now_s: float, *, sent: bool) -> tuple[int, float]:
        """Leave, to a replica or for good. Gives the tier and the seconds spent in tier 2."""
        job = ticket.job
        tier, second_s = 1, 0.0
        held = self._held.get(job.id)
        if sent and self._held:
            tier = self._count(ticket, held)
        self._list.remove(ticket)
        if self._order is not None:
            self._order.remove(ticket)
        if held is not None:
            held.look(now_s)
            tier, second_s = held.waiting.tier, held.second_s
            del self._held[job.id]
            assert self._queue is not None
            self._queue.remove(job.id)
        if self.knows_slo:
            waited = sent and job.arrival_s < now_s
            self._capacity.left(self._costs.pop(job.id, 0.0), waited, not self._list, now_s)
        self.turns.left(ticket, sent)
        if job.tenant:
            self.tenants.goes(ticket, sent)
        return tier, second_s

    def give_turns(self, now_s: float) -> None:
        """Move those whose turn it is to the front."""
        for ticket in self.turns.due(now_s):
            self._list.remove(ticket)
            ticket.key = order_key(ticket, self._rule)
            insort(self._list, ticket, key=place)
            self._order = None

    def resort(self) -> None:
        """Keys have changed."""
        self._list.sort(key=place)
        self._order = None

    def _count(self, ticket: Ticket, held: Held | None) -> int:
        """Count one who is sent in the tiers' shares; gives its tier."""
        tier = 2 if held is None else held.waiting.tier
        first, second = self.tiers
        if first and second and self.share is not None:
            tokens = ticket.job.prompt_tokens
            self.share.count(tokens if tier == 1 else 0, tokens if tier == 2 else 0)
            self.shared_tokens[tier - 1] += tokens
        return tier

    def standing(self, job_id: str, now_s: float) -> tuple[int, int, float]:
        """Of one who waits: how many stood before it when the order was last reckoned (-1: it is not here), its tier, and
        its seconds in tier 2."""
        order = self._list if self._order is None else self._order
        ahead = next((place for place, ticket in enumerate(order) if ticket.job.id == job_id), -1)
        held = self._held.get(job_id)
        if held is None:
            return ahead, 2 if self._held else 1, 0.0
        held.look(now_s)
        return ahead, held.tier, held.second_s

    # -- the order

    def in_order(self, now_s: float, ahead_s: float = 0.0, replicas: int = 1) -> Sequence[Ticket]:
        """Everybody, or at least the first WALK, in the order in which they are to be sent. `ahead_s`: seconds until
        anybody can begin at one of so many replicas."""
        if not self._held:
            return self._list if not self.tenants.share else self.tenants.fair(self._list)
        assert self._queue is not None
        if now_s - self._tiered_s >= RETIER_S:
            self._tiered_s = now_s
            self._order = None
            if self._queue.retier(now_s, ahead_s, self._capacity.of(replicas)):
                for held in self._held.values():
                    held.look(now_s)
        if self._order is None:
            self._order = self._merged(now_s)
        return self._order

    def _merged(self, now_s: float) -> list[Ticket]:
        """Those who have waited longest of all, then the tiers, each by its order, mixed by their share."""
        aged, rest = [], []
        tickets: dict[str, Ticket] = {}
        oldest_s = now_s - self._age_s
        for ticket in self._list:
            job = ticket.job
            if job.arrival_s <= oldest_s:
                aged.append(ticket)
            elif job.id in self._held and self._held[job.id].waiting.tier == 1:
                tickets[job.id] = ticket
            else:
                rest.append(ticket)
        aged.sort(key=_arrival)
        assert self._queue is not None
        first = [tickets[waiting.id] for waiting in self._queue.first(now_s) if waiting.id in tickets]
        if self.tenants.share:
            first, rest = self.tenants.fair(first), self.tenants.fair(rest)
        return aged + self._mixed(first, rest)

    def _mixed(self, first: list[Ticket], second: list[Ticket]) -> list[Ticket]:
        if not first or not second or self.share is None:
            return first + second
        tokens = [ticket.job.prompt_tokens for ticket in first[:WALK]], [ticket.job.prompt_tokens for ticket in second[:WALK]]
        order: list[Ticket] = []
        at = behind = 0
        for tier in turns(self.share.debt, self.share.rho, *tokens, WALK)[:WALK]:
            if tier == 1:
                order.append(first[at])
                at += 1
            else:
                order.append(second[behind])
                behind += 1
        return order + first[at:] + second[behind:]


def _arrival(ticket: Ticket) -> float:
    return ticket.job.arrival_s
