"""Where a request would stand in an engine's queue that is not one of arrivals. Pure; instants are unix seconds.

| kind | the order |
|---|---|
| priority | by a number of the sender's, the smallest first: unix milliseconds of the latest start, TIER_2 more in tier 2 |
| leeway | by budgets, as predictor.queues decides for those who wait and the one that comes |

Prompts that are begun stand in the same order where the engine hands out each step's tokens in it (`begun`): one that comes
behind the comer is then taken for one that waits, with what it has computed.

What is known of those who wait comes from the engine itself (backends.record_state) or from the gateway's own picture.
Who gives its slot to the first one, where that can't wait for another, is foretold as far as the engine says whose budget
leaves most (backends.cascade); a second one that comes in the same step would find nobody.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from predictor.budget import GAMMA_UNKNOWN
from predictor.queues import AGE_S, TieredQueue
from predictor.share import turns
from predictor.snapshot import Resident, Snapshot, held_blocks
from predictor.waiting import Waiting

UNPROMISED_S = 30.0  # of leeway that a request without a promise is sent with: with none it would run before all others
TIER_2 = 1 << 50
MARGIN_S = 0.05  # a budget must exceed what it is to pay for by so much


@dataclass(frozen=True, slots=True)
class Bid:
    """What decides about the place of one who waits: `number` by priority, the rest by budgets (infinite: no deadline)."""

    arrival_s: float = 0.0
    deadline_s: float = math.inf
    cost_s: float = 0.0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Queueing:
    """How an engine orders its queue, and the bids of those who wait from place `first` on; others stay where they are.

    `order`, `rho`, `alpha` and `age_s` are the tiered queue's; `step_s` is a step that only decodes, `token_s` a prompt
    token's time, `reference_s` the one that costs are reckoned with, `stretch` their relation as last taken over; `debt`
    is what tier 2 is owed in tokens, `gammas` are guards by class. `makes_way`: urgent requests don't wait for slots, which
    `gives`, whose budget leaves `spare_s` beyond its own redo, would give up. `begun`: the bids of prompts that are begun, with
    their places in the snapshot's `running`.
    """

    kind: Literal["priority", "leeway"]
    bids: tuple[Bid, ...] = ()
    first: int = 0
    order: str = "mh"
    rho: float = -1.0
    alpha: float = 0.5
    age_s: float = AGE_S
    step_s: float = 0.0
    token_s: float = 0.0
    reference_s: float = 0.0
    stretch: float = 1.0
    debt: float = 0.0
    makes_way: bool = True
    gammas: Mapping[str, float] = field(default_factory=dict)
    gives: str = ""
    spare_s: float = 0.0
    begun: tuple[tuple[int, Bid], ...] = ()


@dataclass(frozen=True, slots=True)
class Comer:
    """One who comes to the queue. `alone_s` is what its prompt takes alone, not guarded."""

    resident: Resident
    arrival_s: float
    deadline_s: float = math.inf
    slo_class: str = ""
    tier: int = 1
    alone_s: float = 0.0


def latest_start_ms(arrival_s: float, deadline_s: float, alone_s: float, tier: int = 1) -> int:
    """The number that a gateway sends with a request to an engine that orders by priority."""
    due_s = deadline_s if deadline_s < math.inf else arrival_s + UNPROMISED_S
    return int((due_s - alone_s) * 1e3) + (TIER_2 if tier == 2 else 0)


class Places:
    """The queue of one state. Residents are told apart by their place of coming, since ids need not be unique."""

    def __init__(self, queueing: Queueing, snapshot: Snapshot) -> None:
        self._how = queueing
        self._snapshot = snapshot
        self._everybody = [*snapshot.waiting]
        begin, end = queueing.first, queueing.first + len(queueing.bids)
        self._front, self._rear = [*range(begin)], [*range(end, len(snapshot.waiting))]
        self._rows: list[tuple[int, int]] = []  # number, who: by priority
        self._queue = TieredQueue(queueing.order, queueing.rho, queueing.alpha, queueing.age_s)
        for who, bid in enumerate(queueing.bids, begin):
            if queueing.kind == "priority":
                self._rows.append((bid.number, who))
            else:
                alone_s = self._alone_s(self._everybody[who], bid.cost_s)
                self._add(who, bid.arrival_s, bid.deadline_s, bid.cost_s, alone_s)
        self._begun: dict[int, Resident] = {}
        for at, bid in queueing.begun:
            resident = snapshot.running[at]
            if resident.generated_tokens:
                continue
            self._everybody.append(resident)
            who = len(self._everybody) - 1
            self._begun[who] = resident
            self._add(who, bid.arrival_s, bid.deadline_s, bid.cost_s, self._alone_s(resident, bid.cost_s), begun=True)
        self._ahead_s, self._begun_s = _ahead_s(queueing, snapshot, self._begun.values())

    def join(self, comer: Comer) -> None:
        """One more waits from now on."""
        self._everybody.append(comer.resident)
        self._enter(len(self._everybody) - 1, comer)

    def order(self, now_s: float) -> list[int]:
        """All who wait, in the engine's order."""
        if self._how.kind == "priority":
            block = [who for _, who in self._rows]
        else:
            block = self._by_budget(now_s)
        return [*self._front, *block, *self._rear]

    def place(self, comer: Comer, now_s: float) -> tuple[list[int], int]:
        """The others in their order if this one came, and how many of them stand before it."""
        me = len(self._everybody)
        self._everybody.append(comer.resident)
        self._enter(me, comer)
        order = self.order(now_s)
        self._leave(me)
        self._everybody.pop()
        at = order.index(me)
        order.pop(at)
        if at == len(order) - len(self._rear):
            at = len(order)  # behind the last one whose bid is known: perhaps behind all
        return order, at

    def gives(self, comer: Comer, at: int, now_s: float) -> bool:
        """Whether somebody gives its slot to this one, if it comes and `at` stand before it: if it is the first, would come
        too late by waiting for a slot, and the budget of who gives it affords that."""
        how, snapshot = self._how, self._snapshot
        if at or how.kind != "leeway" or not how.makes_way or comer.deadline_s == math.inf:
            return False
        alone_s = self._alone_s(comer.resident, comer.alone_s)
        cost_s = how.gammas.get(comer.slo_class, GAMMA_UNKNOWN) * alone_s * how.stretch
        release_s = _release_s(how, snapshot)
        late = 0 <= comer.deadline_s - now_s - cost_s < release_s
        giver = self._giver()
        if not late or giver is None or how.spare_s <= MARGIN_S + cost_s + release_s:
            return False
        needed = snapshot.limits.blocks_for(comer.resident.prompt_tokens) + snapshot.limits.watermark_blocks
        return needed <= snapshot.free_blocks + held_blocks(giver, snapshot.limits) - giver.shared_blocks

    def _giver(self) -> Resident | None:
        """Who would give its slot; None while not all are taken."""
        snapshot, name = self._snapshot, self._how.gives
        if not name or len(snapshot.running) < snapshot.limits.max_num_seqs:
            return None
        return next((who for who in snapshot.running if who.id == name), None)

    def arranged(self, order: Sequence[int], gives: bool = False) -> Snapshot:
        """The state with the queue in that order, or as it is when somebody has given its slot to one who comes."""
        snapshot, waiting = self._snapshot, tuple([self._everybody[who] for who in order])
        passed = [self._begun[who] for who in order if who in self._begun]
        if passed:
            freed = sum([held_blocks(who, snapshot.limits) - who.shared_blocks for who in passed])
            running = tuple([who for who in snapshot.running if not any(who is other for other in passed)])
            snapshot = replace(snapshot, running=running, free_blocks=snapshot.free_blocks + freed)
        giver = self._giver() if gives else None
        if giver is None:
            return replace(snapshot, waiting=waiting)
        return replace(
            snapshot,
            running=tuple([who for who in snapshot.running if who is not giver]),
            waiting=(*waiting, replace(giver, computed_tokens=0, shared_blocks=0)),
            free_blocks=snapshot.free_blocks + held_blocks(giver, snapshot.limits) - giver.shared_blocks,
        )

    # -- inside

    def _enter(self, who: int, comer: Comer) -> None:
        how = self._how
        if how.kind == "priority":
            number = latest_start_ms(comer.arrival_s, comer.deadline_s, comer.alone_s, comer.tier)
            at = len(self._rows)
            while at and self._rows[at - 1][0] > number:
                at -= 1
            self._rows.insert(at, (number, who))
            return
        alone_s = self._alone_s(comer.resident, comer.alone_s)
        cost_s = how.gammas.get(comer.slo_class, GAMMA_UNKNOWN) * alone_s
        self._add(who, comer.arrival_s, comer.deadline_s, cost_s, alone_s)

    def _alone_s(self, resident: Resident, otherwise_s: float) -> float:
        """What a prompt takes alone, not guarded, as the engine reckons it."""
        how = self._how
        return how.step_s + _tokens(resident) * how.reference_s if how.reference_s > 0 else otherwise_s

    def _add(self, who: int, arrival_s: float, deadline_s: float, cost_s: float, mean_s: float, begun: bool = False) -> None:
        waiting = Waiting(str(who), arrival_s, cost_s, _tokens(self._everybody[who]), deadline_s, mean_s=mean_s)
        waiting.begun = begun
        self._queue.add(waiting, arrival_s)

    def _leave(self, who: int) -> None:
        if self._how.kind == "priority":
            self._rows = [row for row in self._rows if row[1] != who]
        else:
            self._queue.remove(str(who))

    def _by_budget(self, now_s: float) -> list[int]:
        """Those who wait, and prompts that are begun from the first one on that stands behind somebody who waits: before it
        they keep their places, and all do while no slot is free."""
        queue, how, begun = self._queue, self._how, self._begun
        queue.retier(now_s, self._ahead_s, stretch=how.stretch, begun_s=self._begun_s)
        first, second = queue.first(now_s), queue.second(now_s)
        tokens = [one.tokens for one in first], [one.tokens for one in second]
        at = [0, 0]
        block: list[int] = []
        slots = self._snapshot.limits.max_num_seqs - len(self._snapshot.running)
        for tier in turns(how.debt, queue.share.rho, *tokens):
            who = int((first, second)[tier - 1][at[tier - 1]].id)
            if who not in begun or (block and slots > 0):
                block.append(who)
            at[tier - 1] += 1
        return block


def _tokens(resident: Resident) -> int:
    """What is to be computed of it before its next token."""
    return max(1, resident.prompt_tokens + resident.generated_tokens - resident.computed_tokens)


def _ahead_s(how: Queueing, snapshot: Snapshot, begun: Collection[Resident]) -> tuple[float, float]:
    """Seconds until anybody can begin: the prompts in the batch whose bids are not known; where all slots are taken, the first
    of them to be free. By how much sooner prompts that are begun go on."""
    filling = [who for who in snapshot.running if not who.decoding and not any(who is other for other in begun)]
    filling_s = how.token_s * sum([max(0, who.prompt_tokens - who.computed_tokens) for who in filling])
    ahead_s = filling_s
    if len(snapshot.running) >= snapshot.limits.max_num_seqs and not how.makes_way:
        ahead_s = max(ahead_s, _release_s(how, snapshot))
    return ahead_s, ahead_s - filling_s


def _release_s(how: Queueing, snapshot: Snapshot) -> float:
    """Until the first slot is free, if answers are as long as expected."""
    return how.step_s * min([max(1, who.output_tokens - who.generated_tokens) for who in snapshot.running], default=0)
