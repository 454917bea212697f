"""How long a model's requests run, and when those that run now will be over: a log-normal belief. Pure.

A few requests take many times as long as most, so that the last of several is awaited far longer than the mean says, and one
that has run for long will run on for long. Far out, where the belief has no numbers left, it falls as a power of the time, as a
log-normal's hazard says. It must never know of devices: who runs beside whom is told as a factor.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NEVER = math.inf
SPREAD_PRIOR = 0.5  # variance of the logarithm
SPREAD_LEAST, SPREAD_MOST = 0.02, 1.5  # a first guess that is far off looks like a wide spread
SHORTEST_S = 1e-3
FAR = 3.0  # standard deviations
MOST = 64  # requests that are looked at one by one
SURE = 0.01
GRID = tuple(0.05 * 1.35**i for i in range(22))  # in mean requests: from a twentieth to 27


@dataclass(slots=True)
class Holds:
    """Seconds of whole requests, alone on a device; the mean of their logarithm and its variance move with what is seen."""

    log_s: float
    spread: float = SPREAD_PRIOR

    def seen(self, hold_s: float, weight: float) -> None:
        """A request took so long."""
        off = math.log(max(hold_s, SHORTEST_S)) - self.log_s
        self.log_s += off * weight
        self.spread += (off * off * (1 - weight) - self.spread) * weight

    def drain(self, ages_s: Sequence[float], slower: float, until_s: float = NEVER) -> tuple[float, float]:
        """Expected seconds until all that have run for so long are over, at most `until_s`, and how many will run on then.
        They run `slower` times as long as alone."""
        if not ages_s:
            return 0.0, 0.0
        each = -(-len(ages_s) // MOST)  # of very many, one stands for several
        ages = [max(age_s / slower, 0.0) for age_s in sorted(ages_s)[::each]]
        end, unit = until_s / slower, math.exp(self.log_s + min(self.spread, SPREAD_MOST) / 2)
        total, last, some = 0.0, 0.0, 1.0
        for step in GRID:
            at = min(step * unit, end)
            nobody = 1.0
            for age in ages:
                nobody *= (1.0 - self._goes_on(age, at)) ** each
            total += (at - last) * (some + 1.0 - nobody) / 2
            last, some = at, 1.0 - nobody
            if at >= end or some < SURE:
                break
        left = each * sum([self._goes_on(age, end) for age in ages]) if end < NEVER else 0.0
        return total * slower, left

    def _goes_on(self, age_s: float, more_s: float) -> float:
        """The chance that one that has run for so long runs for more than so much longer."""
        deviation = math.sqrt(min(max(self.spread, SPREAD_LEAST), SPREAD_MOST))
        off = (math.log(max(age_s, SHORTEST_S)) - self.log_s) / deviation
        if off > FAR:
            return math.pow(1.0 + more_s / age_s, -off / deviation)
        then = (math.log(max(age_s + more_s, SHORTEST_S)) - self.log_s) / deviation
        return math.erfc(then / math.sqrt(2)) / math.erfc(off / math.sqrt(2))
