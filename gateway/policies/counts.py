"""Policies by what the gateway itself counts: cheap, and right where requests are alike. Pure.

Sources: power of two choices, Mitzenmacher 2001; random, round robin and min QPM as in the Astrolabe paper.
"""

import bisect
import zlib
from collections.abc import Sequence
from itertools import chain
from random import Random

from gateway.config import ModelSpec
from gateway.policies.base import Asked, Base, V, least, load


class RandomChoice(Base):
    """Uniform."""

    def choose(self, ask: Asked, views: Sequence[V], now_s: float) -> V:
        """One of them."""
        return views[int(self.rng.random() * len(views))]


class RoundRobin(Base):
    """In turn, by name, whatever the set of open replicas is (request number modulo N)."""

    _last = ""

    def choose(self, ask: Asked, views: Sequence[V], now_s: float) -> V:
        """The next by name."""
        ordered = sorted(views, key=lambda view: view.name)
        chosen = next((view for view in ordered if view.name > self._last), ordered[0])
        self._last = chosen.name
        return chosen


class LeastRequest(Base):
    """Fewest in flight per weight; ties at random, so that several gateways do not agree on the first."""

    def choose(self, ask: Asked, views: Sequence[V], now_s: float) -> V:
        """The least loaded."""
        return least(views, load, self.rng)


class MinQpm(Base):
    """Fewest requests sent in the last 60 s per weight, ties at random."""

    def choose(self, ask: Asked, views: Sequence[V], now_s: float) -> V:
        """The least used."""
        return least(views, lambda view: view.minute.count(now_s) / view.weight, self.rng)


class PowerOfDRequests(Base):
    """The one with fewer requests in flight per weight, of d distinct random ones (Mitzenmacher 2001)."""

    def choose(self, ask: Asked, views: Sequence[V], now_s: float) -> V:
        """The less loaded of those drawn."""
        count = len(views)
        if count == 1:
            return views[0]
        if self.rule.d != 2:
            return min(self.rng.sample(list(views), min(self.rule.d, count)), key=load)
        drawn = int(self.rng.random() * (count * (count - 1)))
        first, second = divmod(drawn, count - 1)
        if second >= first:
            second += 1
        a, b = views[first], views[second]
        return a if a.in_flight * b.weight <= b.in_flight * a.weight else b


POINTS_PER_REPLICA = 64
RING_NAMES_MAX = 4096


class Ring:
    """Names on a circle, several points each. It holds every name seen so far, and who is not there now is passed over:
    that is the ring without it, and a full home costs no new ring."""

    def __init__(self, points: int) -> None:
        self._points = points
        self.names: frozenset[str] = frozenset()
        self._ring: list[tuple[int, str]] = []

    def onward(self, key: str, names: set[str]) -> list[str]:
        """`names` in the order of the circle from the key's place on, each once."""
        if not self.names.issuperset(names):
            joined = self.names | names
            self.names = joined if len(joined) <= RING_NAMES_MAX else frozenset(names)
            self._ring = sorted((point(f"{name}#{i}"), name) for name in self.names for i in range(self._points))
        ring, seen = self._ring, dict[str, None]()
        at = bisect.bisect(ring, (point(key), ""))
        for place in chain(range(at, len(ring)), range(at)):
            name = ring[place][1]
            if name in names and name not in seen:
                seen[name] = None
                if len(seen) == len(names):
                    break
        return list(seen)

    def home(self, key: str, names: set[str]) -> str:
        """The first of `names` from the key's place on."""
        if not self.names.issuperset(names):
            return self.onward(key, names)[0]
        ring = self._ring
        at = bisect.bisect(ring, (point(key), ""))
        onward = chain(range(at, len(ring)), range(at))
        return next(name for place in onward if (name := ring[place][1]) in names)


class ConsistentHash(Base):
    """The session key's place on a ring of 64 points per replica; without a key as `po2_requests` (Karger 1997)."""

    def __init__(self, rule: ModelSpec, rng: Random) -> None:
        super().__init__(rule, rng)
        self._without = PowerOfDRequests(rule, rng)
        self.ring = Ring(POINTS_PER_REPLICA)

    def choose(self, ask: Asked, views: Sequence[V], now_s: float) -> V:
        """The key's home."""
        if not ask.session:
            return self._without.choose(ask, views, now_s)
        by_name = {view.name: view for view in views}
        return by_name[self.ring.home(ask.session, set(by_name))]


def point(text: str) -> int:
    """A place on the circle. crc32 spreads near-equal strings badly in its high bits alone: mixed once more by Knuth's
    multiplicative constant."""
    return (zlib.crc32(text.encode()) * 2654435761) & 0xFFFFFFFF
