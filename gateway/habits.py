"""How often a model is asked for, how long its requests take, and how long they may wait: running means. Pure.

The gateway's lodging and the simulator keep one for each model, and have it say what the swap planner is told of it: its
demand, its service, and how long those that run will run. It must never know of devices or of who lies where.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.holds import SHORTEST_S, SPREAD_PRIOR, Holds
from gateway.lateness import NEVER, Demand
from gateway.residency import Service

RATE_TAU_S = 120.0
PATIENCE_S = 30.0  # of a request that nothing was promised to
LONGEST_S = 600.0  # beyond that all are alike
SLACK_STEP_S = 2.0
KIND_KEPT, KIND_LEAST = 0.98, 0.01  # of a kind's share, at each request; a smaller share is forgotten
HOLD_PRIOR_S, START_PRIOR_S = 5.0, 0.5


@dataclass(slots=True)
class Rate:
    """Requests per second, lately: each counts for less as time passes."""

    value: float = 0.0
    at_s: float = 0.0

    def arrived(self, now_s: float) -> None:
        """A request came."""
        self.value = self.per_s(now_s) + 1 / RATE_TAU_S
        self.at_s = now_s

    def per_s(self, now_s: float) -> float:
        """As of that instant."""
        return self.value * math.exp(-(now_s - self.at_s) / RATE_TAU_S)


@dataclass(slots=True)
class Habits:
    """Of one model: how often it is asked for, and how long its requests take."""

    rate: Rate = field(default_factory=Rate)
    start_s: float = START_PRIOR_S
    hold_s: float = HOLD_PRIOR_S
    seen: float = 4.0
    holds: Holds = field(default_factory=lambda: Holds(math.log(HOLD_PRIOR_S) - SPREAD_PRIOR / 2))
    kinds: dict[int, float] = field(default_factory=dict)  # by patience, in steps: shares of the latest

    def arrived(self, now_s: float, deadline_s: float) -> None:
        """A request came; its first token is late from that instant on (infinite: nothing was promised)."""
        self.rate.arrived(now_s)
        kind = round(max(latest_s(now_s, deadline_s) - now_s, 0.0) / SLACK_STEP_S)
        self.kinds = {one: share * KIND_KEPT for one, share in self.kinds.items() if share > KIND_LEAST}
        self.kinds[kind] = self.kinds.get(kind, 0.0) + 1 - KIND_KEPT

    def over(self, start_s: float, hold_s: float, shared: float = 1.0) -> None:
        """A request was answered: seconds to its first byte, and in all, from its dispatch, while so many models were busy on
        the device (times what a part of the layers costs). What is learnt is how long it takes alone and whole: the planner
        reckons with neighbours and parts itself."""
        self.seen = min(self.seen + 1, 100.0)
        self.start_s += (start_s / shared - self.start_s) / self.seen
        self.hold_s += (hold_s / shared - self.hold_s) / self.seen
        self.holds.seen(hold_s / shared, 1 / self.seen)

    # -- what the planner is told

    def classes(self) -> tuple[tuple[float, float], ...]:
        """(share of the requests, seconds of slack) of each kind."""
        total = sum(self.kinds.values())
        return tuple(
            (share / total, max(kind * SLACK_STEP_S - self.start_s, 0.0)) for kind, share in sorted(self.kinds.items())
        )

    def rate_per_s(self, now_s: float) -> float:
        """Requests per second, lately."""
        return self.rate.per_s(now_s)

    def service(self, slots: float) -> Service:
        """How it serves with so many requests at once."""
        hold_s, start_per_s = max(self.hold_s, SHORTEST_S), 1.0 / max(self.start_s, SHORTEST_S)
        return Service(slots, start_per_s, min(slots / hold_s, start_per_s), hold_s)

    def drain(self, ages_s: Sequence[float], slower: float, until_s: float = NEVER) -> tuple[float, float]:
        """Expected seconds until those that have run for so long are over, at most `until_s`, and how many run on then."""
        return self.holds.drain(ages_s, slower, until_s)

    def demand(self, waiting: Iterable[tuple[float, float]], kept: Iterable[tuple[int, float]], now_s: float) -> Demand:
        """What it is asked for. `waiting`: since when each waits, and from when on its first token is late; `kept`: requests
        that wait in engines off their devices, since when."""
        groups: dict[int, float] = {}
        oldest_s = 0.0
        for since_s, deadline_s in waiting:
            slack_s = latest_s(since_s, deadline_s) - self.start_s - now_s
            step = math.ceil(max(slack_s, -1.0) / SLACK_STEP_S)
            groups[step] = groups.get(step, 0.0) + 1.0
            oldest_s = max(oldest_s, now_s - since_s)
        for count, since_s in kept:
            groups[1] = groups.get(1, 0.0) + count
            oldest_s = max(oldest_s, now_s - since_s)
        in_turn = sorted(groups.items(), key=lambda group: (group[0] <= 0, group[0]))  # as the line has them: late ones last
        found = tuple((count, step * SLACK_STEP_S) for step, count in in_turn)
        return Demand(found, self.rate_per_s(now_s), max(PATIENCE_S - self.start_s, 0.0), oldest_s, self.classes())


def latest_s(since_s: float, deadline_s: float) -> float:
    """When a request's first token is late: as promised, else as its patience allows."""
    return since_s + (min(deadline_s - since_s, LONGEST_S) if deadline_s < NEVER else PATIENCE_S)
