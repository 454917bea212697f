"""How often a model is asked for, how long its requests take, and how long they may wait: running means. Pure."""

import math
from dataclasses import dataclass, field

RATE_TAU_S = 120.0
PATIENCE_S = 30.0  # of a request that nothing was promised to
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
    kinds: dict[int, float] = field(default_factory=dict)  # by patience, in steps: shares of the latest

    def arrived(self, now_s: float, patience_s: float) -> None:
        """A request came that may wait for so long."""
        self.rate.arrived(now_s)
        kind = round(min(max(patience_s, 0.0), PATIENCE_S) / SLACK_STEP_S)
        self.kinds = {one: share * KIND_KEPT for one, share in self.kinds.items() if share > KIND_LEAST}
        self.kinds[kind] = self.kinds.get(kind, 0.0) + 1 - KIND_KEPT

    def classes(self) -> tuple[tuple[float, float], ...]:
        """(share of the requests, seconds of slack) of each kind."""
        total = sum(self.kinds.values())
        return tuple(
            (share / total, max(kind * SLACK_STEP_S - self.start_s, 0.0)) for kind, share in sorted(self.kinds.items())
        )

    def rate_per_s(self, now_s: float) -> float:
        """Requests per second, lately."""
        return self.rate.per_s(now_s)

    def over(self, start_s: float, hold_s: float) -> None:
        """A request was answered: seconds to its first byte, and in all, from its dispatch."""
        self.seen = min(self.seen + 1, 100.0)
        self.start_s += (start_s - self.start_s) / self.seen
        self.hold_s += (hold_s - self.hold_s) / self.seen
