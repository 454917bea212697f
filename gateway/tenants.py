"""Who has had how much of what is sent: one virtual token counter for each tenant that waits. Pure.

    charge = (prompt tokens not cached + 2 x output tokens) / weight

The output is the expected one when a request is sent and is set right when the real one is known, so that shares follow
the weights however wrong predictions are. Who is more than FAIR_LEAD_TOKENS ahead of the least one lets others pass. One
who comes back to the line starts at the least counter there, so nobody saves up; what turns out later of requests from
before that counts only as far as it would have mattered then. When nobody waits, nobody owes.
Source: Sheng et al., virtual token counter.
"""

from collections.abc import Iterable

from gateway.plan import WALK, Ticket

FAIR_LEAD_TOKENS = 8192.0
OUTPUT_WEIGHT = 2.0
TENANTS_MAX = 4096


class Counter:
    """Of one tenant: what it was charged, how many of it wait; by how much it was last put level, how often it was."""

    __slots__ = ("level", "levels", "spent", "waiting")

    def __init__(self) -> None:
        self.spent = 0.0
        self.waiting = 0
        self.level = 0.0
        self.levels = 0


class Charge:
    """Of a request that was sent: how many times its counter had been put level then."""

    __slots__ = ("expected", "levels", "prompt", "tenant", "weight")

    def __init__(self, ticket: Ticket, levels: int) -> None:
        job = ticket.job
        self.tenant, self.weight, self.levels = job.tenant, job.tenant_weight, levels
        self.prompt, self.expected = job.prompt_tokens - ticket.best_hit, job.lengths.q50


class Tenants:
    """See the module's words."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._waiting: dict[str, Counter] = {}  # those of whom somebody waits
        self._charges: dict[str, Charge] = {}  # by job, as long as it runs

    @property
    def share(self) -> bool:
        """Whether there is anything to share: several tenants wait."""
        return len(self._waiting) > 1

    def spent(self, tenant: str) -> float:
        """What that tenant's counter says."""
        counter = self._counters.get(tenant)
        return 0.0 if counter is None else counter.spent

    def comes(self, tenant: str) -> None:
        """One more of it waits."""
        counter = self._counters.get(tenant)
        if counter is None:
            counter = self._new(tenant)
        if not counter.waiting:
            least = min([other.spent for other in self._waiting.values()], default=0.0)
            if least > counter.spent:
                counter.level, counter.spent = least - counter.spent, least
                counter.levels += 1
            self._waiting[tenant] = counter
        counter.waiting += 1

    def _new(self, tenant: str) -> Counter:
        if len(self._counters) >= TENANTS_MAX:
            self._counters = dict(self._waiting)
        counter = self._counters[tenant] = Counter()
        return counter

    def goes(self, ticket: Ticket, sent: bool) -> None:
        """One of it leaves the line, to a replica or for good."""
        counter = self._counters[ticket.job.tenant]
        if sent:
            counter.spent += charge(ticket)
            self._charges[ticket.job.id] = Charge(ticket, counter.levels)
        counter.waiting -= 1
        if not counter.waiting:
            del self._waiting[ticket.job.tenant]
            if not self._waiting:
                self._counters.clear()
                self._charges.clear()

    def settle(self, job_id: str, output_tokens: int) -> None:
        """A request that was sent is over, with so many output tokens; below 0: nobody knows, and it stays as charged."""
        made = self._charges.pop(job_id, None)
        if made is not None and output_tokens >= 0:
            self._correct(made, OUTPUT_WEIGHT * (output_tokens - made.expected) / made.weight)

    def refund(self, job_id: str) -> None:
        """A request that was sent has never begun."""
        made = self._charges.pop(job_id, None)
        if made is not None:
            self._correct(made, -(made.prompt + OUTPUT_WEIGHT * made.expected) / made.weight)

    def _correct(self, made: Charge, tokens: float) -> None:
        counter = self._counters.get(made.tenant)
        if counter is None:
            return
        if counter.levels == made.levels:
            counter.spent += tokens
            return
        counter.level -= tokens  # it would have been put level by so much less, or more
        if counter.level < 0.0:
            counter.spent -= counter.level
            counter.level = 0.0

    def fair(self, tickets: Iterable[Ticket]) -> list[Ticket]:
        """The same with tenants that are too far ahead held back, as far as the walk looks."""
        spent = {tenant: counter.spent for tenant, counter in self._waiting.items()}
        left = list(tickets)
        order: list[Ticket] = []
        while left and len(order) < WALK:
            least = min([spent[ticket.job.tenant] for ticket in left if ticket.job.tenant], default=0.0)
            at = next(i for i, t in enumerate(left) if not t.job.tenant or spent[t.job.tenant] <= least + FAIR_LEAD_TOKENS)
            ticket = left.pop(at)
            order.append(ticket)
            if ticket.job.tenant:
                spent[ticket.job.tenant] += charge(ticket)
        return order + left


def charge(ticket: Ticket) -> float:
    """What a request is expected to cost its tenant."""
    job = ticket.job
    return (job.prompt_tokens - ticket.best_hit + OUTPUT_WEIGHT * job.lengths.q50) / job.tenant_weight
