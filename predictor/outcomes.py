"""How requests that were foretold turned out, as far as the engine's states show it. Pure.

A forecast knows what is at the engine, not what will come: later arrivals have their prompts computed between our tokens,
so at high load each token takes longer than foretold (on a small CPU engine by 10 % at a quarter of its capacity, by 80 %
near it). The mean of log(seen / foretold) seconds per token over the last requests is taken as what the next one must
expect; times to first token need no such correction, since engines serve first come, first served.
"""

import math
from dataclasses import dataclass

from predictor.snapshot import Snapshot
from predictor.spread import Spread

FOLLOWED_MAX = 512
TOKENS_MIN = 6  # between the first state and the last that show a request: fewer say little
GAIN = 0.08
PRIOR = 3.0  # requests' worth of "as foretold"
LOG_MAX = 1.5
SEEN_MIN = 20  # before the observed spread is told


@dataclass(slots=True)
class _Followed:
    """A request under way: foretold seconds per token, and what the states have shown of it."""

    told_s: float
    since_s: float
    first_tokens: int = 0
    first_s: float = 0.0
    last_tokens: int = 0
    last_s: float = 0.0


class Outcomes:
    """`stretch` is the factor for seconds per token; `spread` the one below which nine in ten stayed, once known."""

    GIVE_UP_S = 30.0  # a request that is never seen

    def __init__(self) -> None:
        self.stretch = 1.0
        self.seen = 0
        self._mean = 0.0
        self._spread = Spread()
        self._followed: dict[str, _Followed] = {}

    def __repr__(self) -> str:
        return f"<Outcomes x {self.stretch:.2f} of {self.seen}, {len(self._followed)} under way>"

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def spread(self) -> float:
        """1 until enough is seen."""
        return self._spread.q90 if self.seen >= SEEN_MIN else 1.0

    @property
    def least(self) -> float:
        """The factor above which nine in ten stayed; 1 until enough is seen."""
        return self._spread.q10 if self.seen >= SEEN_MIN else 1.0

    def told(self, name: str, tpot_s: float, now_s: float) -> None:
        """That request was foretold so many seconds per token, without `stretch`."""
        if not 0 < tpot_s < math.inf or name in self._followed:
            return
        if len(self._followed) >= FOLLOWED_MAX:
            del self._followed[next(iter(self._followed))]
        self._followed[name] = _Followed(tpot_s, now_s)

    def saw(self, snapshot: Snapshot) -> None:
        """A new state of the engine."""
        if not self._followed:
            return
        at_s = snapshot.taken_s
        present = {who.id: who.generated_tokens for who in snapshot.running if who.id in self._followed}
        waiting = {who.id for who in snapshot.waiting if who.id in self._followed}
        gone = []
        for name, one in self._followed.items():
            tokens = present.get(name)
            if tokens is not None and tokens > 1:
                if not one.first_tokens:
                    one.first_tokens, one.first_s = tokens, at_s
                one.last_tokens, one.last_s = tokens, at_s
            elif tokens is None and name not in waiting and (one.first_tokens or at_s - one.since_s > self.GIVE_UP_S):
                gone.append(name)
        for name in gone:
            self._ended(self._followed.pop(name))

    def forget(self) -> None:
        """Another engine: what is under way will not be seen again."""
        self._followed.clear()

    def _ended(self, one: _Followed) -> None:
        tokens = one.last_tokens - one.first_tokens
        if tokens < TOKENS_MIN:
            return
        seen_s = (one.last_s - one.first_s) / tokens
        if seen_s <= 0:
            return
        self._spread.saw(one.told_s * self.stretch, seen_s)
        self.seen += 1
        off = min(max(math.log(seen_s / one.told_s), -LOG_MAX), LOG_MAX)
        self._mean += (off - self._mean) * max(GAIN, 1.0 / (self.seen + PRIOR))
        self.stretch = math.exp(self._mean)
