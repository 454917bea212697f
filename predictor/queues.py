"""The order of those who wait: one queue type, five orders, two tiers. Pure; instants come in as `now_s`.

| order | tier 1 | tier 2 |
|---|---|---|
| fcfs, sjf, edf | all, by arrival, by work (+ `age_rate` x arrival), by deadline | none |
| lrb (CASCADE) | budget above 0, the least first | the rest by arrival |
| mh (predictor.moore_hodgson) | planned to meet its deadline, by deadline | the rest by work |

`cost_s` is the guarded L of a request without the queue, `mean_s` the same without the guard, `work_s` the service that it
keeps from others (less where steps are shared). Who has no SLO is in tier 2, by work after the late ones: with no SLO known
at all, lrb and mh are sjf. Tier 2 gets the share `rho` of what is handed out (`Share`). After `age_s` of waiting no later
arrival overtakes. Nothing is ever dropped. A broken assertion is a mistake of the caller.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

from predictor.moore_hodgson import MooreHodgson
from predictor.share import Share
from predictor.waiting import Waiting

ORDERS: Final = ("fcfs", "sjf", "edf", "lrb", "mh")
TIERED: Final = ("lrb", "mh")
RHO: Final = {"lrb": 0.10, "mh": 0.02}
AGE_S: Final = 120.0
HYSTERESIS: Final = 0.05
FEW: Final = 24  # so many change places one by one; of more the list is made anew


class TieredQueue:
    """See the module. Call `retier` before choosing: once each step or dispatch; tiers rest in between."""

    def __init__(
        self,
        order: str,
        rho: float = -1.0,
        alpha: float = 0.5,
        age_s: float = AGE_S,
        hysteresis: float = HYSTERESIS,
        age_rate: float = 0.0,
        chained: bool = True,
    ) -> None:
        """`rho` below 0 is the order's default. `alpha` from goodput (0) to fairness between sizes (1), for mh.
        `hysteresis`: share of its SLO by which a budget must exceed 0 before promotion. `chained`: lrb's budget also
        counts those before it in tier 1. Raises ValueError for an order that is not known or a value out of range."""
        if order not in ORDERS:
            raise ValueError(f"no order {order!r}; known: {', '.join(ORDERS)}")
        if not (rho <= 1 and alpha >= 0 and age_s > 0 and hysteresis >= 0 and age_rate >= 0):
            raise ValueError("rho, alpha, age_s, hysteresis, age_rate: out of range")
        self.order = order
        self.alpha = alpha
        self.age_s = age_s
        self.share = Share(rho if rho >= 0 else RHO.get(order, 0.0))
        self._tiered = order in TIERED
        self._hysteresis = hysteresis
        self._age_rate = age_rate
        self._chained = chained
        self._stretch = 1.0
        self._numbers = 0
        self._by_id: dict[str, Waiting] = {}
        self._arrivals: list[tuple[float, int, Waiting]] = []
        self._live: list[tuple[float, int, Waiting]] = []  # with a deadline still ahead, whichever tier
        self._first: list[tuple[float, int, Waiting]] = []
        self._second: list[tuple[tuple[int, float], int, Waiting]] = []

    def __repr__(self) -> str:
        return f"<TieredQueue {self.order} tier1={len(self._first)} tier2={len(self._second)} debt={self.share.debt:.1f}>"

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __iter__(self) -> Iterator[Waiting]:
        """Everybody, by arrival."""
        return iter([waiting for _, _, waiting in self._arrivals])

    def get(self, request_id: str) -> Waiting | None:
        """Who has that id."""
        return self._by_id.get(request_id)

    @property
    def tiers(self) -> tuple[int, int]:
        """How many are in each."""
        return len(self._first), len(self._second)

    # ---- coming and going ----

    def add(self, waiting: Waiting, now_s: float, tier: int = 1) -> None:
        """Join, in that tier if it has a chance alone; it holds until the next `retier`. An id must not wait twice."""
        assert waiting.id not in self._by_id, f"request {waiting.id!r} waits already"
        self._numbers += 1
        waiting.number = self._numbers
        self._by_id[waiting.id] = waiting
        insort(self._arrivals, (waiting.arrival_s, waiting.number, waiting))
        self._place(waiting, now_s, tier)

    def remove(self, request_id: str) -> Waiting | None:
        """Leave (dispatched, client gone). None if it does not wait here."""
        waiting = self._by_id.pop(request_id, None)
        if waiting is None:
            return None
        del self._arrivals[bisect_left(self._arrivals, (waiting.arrival_s, waiting.number, waiting))]
        self._unplace(waiting)
        return waiting

    def revise(self, request_id: str, cost_s: float, now_s: float, work_s: float = -1.0, mean_s: float = -1.0) -> None:
        """A new estimate of one who waits."""
        waiting = self._by_id[request_id]
        tier = waiting.tier
        waiting.estimated(cost_s, work_s, mean_s)
        if tier == 1 and self._stays(waiting, now_s):
            return
        self._unplace(waiting)
        self._place(waiting, now_s, tier)

    def _stays(self, waiting: Waiting, now_s: float) -> bool:
        """Whether what it needs leaves one of tier 1 where it is."""
        if self.order == "mh" and waiting.live and now_s + waiting.mean_s * self._stretch < waiting.deadline_s:
            waiting.late_key = (0, waiting.work_s)
            return True
        return self.order in ("fcfs", "edf")

    # ---- choosing ----

    def head(self, now_s: float) -> Waiting | None:
        """Whose turn it is, of those who are not begun."""
        oldest = next((waiting for _, _, waiting in self._arrivals if not waiting.begun), None)
        if oldest is None or now_s - oldest.arrival_s >= self.age_s:
            return oldest
        first = next((waiting for _, _, waiting in self._first if not waiting.begun), None)
        second = next((waiting for _, _, waiting in self._second if not waiting.begun), None)
        if second is not None and (first is None or self.share.turn(second.tokens)):
            return second
        return first

    def pop(self, now_s: float) -> Waiting | None:
        """Take whose turn it is, and count it in the share."""
        chosen = self.head(now_s)
        if chosen is None:
            return None
        if self._first and self._second and now_s - chosen.arrival_s < self.age_s:
            self.share.count(chosen.tokens if chosen.tier == 1 else 0, chosen.tokens if chosen.tier == 2 else 0)
        self.remove(chosen.id)
        return chosen

    def first(self, now_s: float) -> list[Waiting]:
        """Tier 1 in its order; before all others those who have waited `age_s`, whichever their tier, by arrival."""
        aged = self._aged(now_s)
        rest = [waiting for _, _, waiting in self._first]
        return aged + [waiting for waiting in rest if now_s - waiting.arrival_s < self.age_s] if aged else rest

    def leading(self, count: int) -> list[Waiting]:
        """The first so many of tier 1, whoever has waited how long."""
        return [waiting for _, _, waiting in self._first[:count]]

    def second(self, now_s: float) -> list[Waiting]:
        """Tier 2 in its order, without those who have waited `age_s`."""
        return [waiting for _, _, waiting in self._second if now_s - waiting.arrival_s < self.age_s]

    def _aged(self, now_s: float) -> list[Waiting]:
        aged: list[Waiting] = []
        for arrival_s, _, waiting in self._arrivals:
            if now_s - arrival_s < self.age_s:
                break
            aged.append(waiting)
        return aged

    # ---- tiers ----

    def retier(
        self, now_s: float, ahead_s: float = 0.0, capacity: float = 1.0, stretch: float = 1.0, begun_s: float = 0.0
    ) -> int:
        """Decide anew who is in which tier; returns how many moved.

        `ahead_s`: seconds until anybody can begin (the work in progress; a slot or KV blocks to be released); those who are
        begun go on `begun_s` sooner.
        `capacity`: seconds of service handed out per second (the replicas behind one queue). `stretch` multiplies all
        costs and work: how much slower the engines are now than when the costs were reckoned.
        """
        assert min(capacity, stretch) > 0 <= begun_s <= ahead_s
        if not self._tiered:
            return 0
        moved = self._forget_late(now_s)
        if stretch != self._stretch:
            self._stretch = stretch
            if self.order == "lrb":
                self._sort_live()
        if self._second:  # whose share tier 1 must do without
            capacity *= max(1.0 - self.share.rho, 0.01)
        if self.order == "mh":
            wanted = MooreHodgson(self._live, now_s + ahead_s, capacity, stretch, self._hysteresis, begun_s).tiers()
        else:
            wanted = self._plan_lrb(now_s + ahead_s, capacity, begun_s)
        changed = [item[2] for item, tier in zip(self._live, wanted, strict=True) if item[2].tier != tier]
        self._change(changed)
        if moved or changed:
            self._first = [item for item in self._live if item[2].tier == 1]
        return moved + len(changed)

    def _change(self, changed: list[Waiting]) -> None:
        """To the other tier with each of them; of tier 1's list the caller takes care."""
        if len(changed) <= FEW:
            for waiting in changed:
                if waiting.tier == 2:
                    self._drop_second(waiting)
                    waiting.tier = 1
                else:
                    self._demote(waiting)
            return
        for waiting in changed:
            waiting.tier = 3 - waiting.tier
        second = [item for item in self._second if item[2].tier == 2]
        second += [(waiting.late_key, waiting.number, waiting) for waiting in changed if waiting.tier == 2]
        second.sort()  # two runs in order, the second one short
        self._second = second

    def _plan_lrb(self, start_s: float, capacity: float, begun_s: float) -> list[int]:
        """The tier of each in `_live`: 1 while its budget is above 0."""
        stretch, chained, hysteresis = self._stretch, self._chained, self._hysteresis
        wanted: list[int] = []
        for _, _, waiting in self._live:
            cost_s = waiting.cost_s * stretch
            budget_s = waiting.deadline_s - start_s - cost_s
            if begun_s and waiting.begun:
                budget_s += begun_s
            if budget_s > 0 and (waiting.tier == 1 or budget_s > hysteresis * waiting.slo_s):
                wanted.append(1)
                if chained:
                    start_s += waiting.work_s * stretch / capacity
            else:
                wanted.append(2)
        return wanted

    # ---- the lists behind it ----

    def _place(self, waiting: Waiting, now_s: float, tier: int = 1) -> None:
        """Into the lists; into tier 1 only if that is its tier and it has a chance alone."""
        if not self._tiered:
            waiting.key = self._plain_key(waiting)
            waiting.tier = 1
            insort(self._first, (waiting.key, waiting.number, waiting))
            return
        no_slo = waiting.deadline_s == math.inf
        by_work = no_slo or self.order == "mh"
        waiting.late_key = (
            1 if no_slo and self.order == "lrb" else 0,
            waiting.work_s if by_work else waiting.arrival_s,
        )
        waiting.weight = max(waiting.tokens, 1) ** -self.alpha
        cost_s = waiting.cost_s * self._stretch
        least_s = waiting.mean_s * self._stretch if self.order == "mh" else cost_s
        waiting.key = waiting.deadline_s if self.order == "mh" else waiting.deadline_s - cost_s
        waiting.live = not no_slo and waiting.deadline_s > now_s
        item = (waiting.key, waiting.number, waiting)
        if waiting.live:
            insort(self._live, item)
        waiting.tier = tier if waiting.live and now_s + least_s < waiting.deadline_s else 2
        if waiting.tier == 1:
            insort(self._first, item)
        else:
            self._demote(waiting)

    def _plain_key(self, waiting: Waiting) -> float:
        if self.order == "sjf":
            return waiting.work_s + self._age_rate * waiting.arrival_s
        return waiting.deadline_s if self.order == "edf" else waiting.arrival_s

    def _unplace(self, waiting: Waiting) -> None:
        item = (waiting.key, waiting.number, waiting)
        if waiting.live:
            del self._live[bisect_left(self._live, item)]
            waiting.live = False
        if waiting.tier == 1:
            del self._first[bisect_left(self._first, item)]
        else:
            self._drop_second(waiting)

    def _demote(self, waiting: Waiting) -> None:
        insort(self._second, (waiting.late_key, waiting.number, waiting))
        waiting.tier = 2

    def _drop_second(self, waiting: Waiting) -> None:
        del self._second[bisect_left(self._second, (waiting.late_key, waiting.number, waiting))]

    def _forget_late(self, now_s: float) -> int:
        """Those whose deadline has passed have no chance any more: out of the planning, into tier 2."""
        if self.order == "mh" and (not self._live or self._live[0][0] > now_s):
            return 0  # sorted by deadline
        late = [waiting for _, _, waiting in self._live if waiting.deadline_s <= now_s]
        if not late:
            return 0
        moved = 0
        for waiting in late:
            waiting.live = False
            if waiting.tier == 1:
                self._demote(waiting)
                moved += 1
        self._live = [item for item in self._live if item[2].live]
        return moved

    def _sort_live(self) -> None:
        """Least remaining budget first, after the costs changed."""
        for _, _, waiting in self._live:
            waiting.key = waiting.deadline_s - waiting.cost_s * self._stretch
        self._live = sorted([(waiting.key, number, waiting) for _, number, waiting in self._live])
        self._first = [item for item in self._live if item[2].tier == 1]
