"""Which replica gets a request: policies in two steps, `probes` then `choose`. Pure.

`probes` names the sidecars to ask (none for these policies); `choose` picks among the routable replicas or answers
Hold. The random source is given at construction. Adding a policy = one class, one table of cases in the tests, one
line in POLICIES. Sources: power of two choices (Mitzenmacher 2001); min_qpm as in papers.md 1.3.
"""

import bisect
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import NamedTuple, Protocol

from gateway.config import ModelSpec
from gateway.fleet import Replica


class Ask(NamedTuple):
    """What a policy may know of a request."""

    model: str
    session: str = ""
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Nobody is open: wait. `reason` is for metrics and the refusal's message."""

    reason: str


class Policy(Protocol):
    """See the module's words. `replicas` is never empty and holds only open ones."""

    def probes(self, ask: Ask, replicas: Sequence[Replica]) -> tuple[str, ...]: ...
    def choose(self, ask: Ask, replicas: Sequence[Replica], now_s: float) -> Replica: ...


class _NoProbes:
    def __init__(self, spec: ModelSpec, rng: Random) -> None:
        self._d = spec.d
        self._rng = rng

    def probes(self, ask: Ask, replicas: Sequence[Replica]) -> tuple[str, ...]:
        return ()


class RandomChoice(_NoProbes):
    """Uniform."""

    def choose(self, ask: Ask, replicas: Sequence[Replica], now_s: float) -> Replica:
        return replicas[int(self._rng.random() * len(replicas))]


class RoundRobin(_NoProbes):
    """In turn, by name, whatever the set of open replicas is."""

    def __init__(self, spec: ModelSpec, rng: Random) -> None:
        super().__init__(spec, rng)
        self._last = ""

    def choose(self, ask: Ask, replicas: Sequence[Replica], now_s: float) -> Replica:
        ordered = sorted(replicas, key=lambda r: r.name)
        chosen = next((r for r in ordered if r.name > self._last), ordered[0])
        self._last = chosen.name
        return chosen


def load(replica: Replica) -> float:
    """In-flight requests per unit of weight."""
    return replica.in_flight / replica.spec.weight


class LeastRequest(_NoProbes):
    """Fewest in flight per weight; ties at random, so that several gateways do not agree on the first."""

    def choose(self, ask: Ask, replicas: Sequence[Replica], now_s: float) -> Replica:
        least = min(load(r) for r in replicas)
        tied = [r for r in replicas if load(r) == least]
        return tied[int(self._rng.random() * len(tied))]


class MinQpm(_NoProbes):
    """Fewest requests sent in the current minute per weight."""

    def choose(self, ask: Ask, replicas: Sequence[Replica], now_s: float) -> Replica:
        return min(replicas, key=lambda r: (r.minute_rate(now_s) / r.spec.weight, self._rng.random()))


class PowerOfD(_NoProbes):
    """The less loaded of d distinct random replicas (d = 2: power of two choices)."""

    def choose(self, ask: Ask, replicas: Sequence[Replica], now_s: float) -> Replica:
        count = len(replicas)
        if count == 1:
            return replicas[0]
        if self._d != 2:
            return min(self._rng.sample(list(replicas), min(self._d, count)), key=load)
        drawn = int(self._rng.random() * (count * (count - 1)))
        first, second = divmod(drawn, count - 1)
        if second >= first:
            second += 1
        a, b = replicas[first], replicas[second]
        return a if a.in_flight * b.spec.weight <= b.in_flight * a.spec.weight else b


POINTS_PER_REPLICA = 64
RING_NAMES_MAX = 4096


class ConsistentHash(_NoProbes):
    """The session key's place on a ring of 64 points per replica; without a key as power of two choices.

    The ring holds every replica seen so far, and who is not there now is passed over: that is the ring without it, and
    a full home costs no new ring.
    """

    def __init__(self, spec: ModelSpec, rng: Random) -> None:
        super().__init__(spec, rng)
        self._without = PowerOfD(spec, rng)
        self._names: frozenset[str] = frozenset()
        self._ring: list[tuple[int, str]] = []

    def choose(self, ask: Ask, replicas: Sequence[Replica], now_s: float) -> Replica:
        if not ask.session:
            return self._without.choose(ask, replicas, now_s)
        by_name = {r.name: r for r in replicas}
        if not self._names.issuperset(by_name):
            names = self._names | by_name.keys()
            self._names = names if len(names) <= RING_NAMES_MAX else frozenset(by_name)
            self._ring = sorted((_point(f"{name}#{i}"), name) for name in self._names for i in range(POINTS_PER_REPLICA))
        ring = self._ring
        at = bisect.bisect(ring, (_point(ask.session), ""))
        onward = chain(range(at, len(ring)), range(at))
        return next(by_name[name] for place in onward if (name := ring[place][1]) in by_name)


def _point(text: str) -> int:
    # crc32 spreads near-equal strings badly in its high bits alone: mix once more (Knuth's multiplicative constant)
    return (zlib.crc32(text.encode()) * 2654435761) & 0xFFFFFFFF


POLICIES: dict[str, Callable[[ModelSpec, Random], Policy]] = {
    "po2": PowerOfD,
    "po2_requests": PowerOfD,
    "random": RandomChoice,
    "round_robin": RoundRobin,
    "least_request": LeastRequest,
    "min_qpm": MinQpm,
    "consistent_hash": ConsistentHash,
}


class Dispatcher:
    """One policy object per model, and what surrounds every choice: only open replicas, none that this request tried."""

    def __init__(self, rule: Callable[[str], ModelSpec], rng: Random) -> None:
        self._rule = rule
        self._rng = rng
        self._policies: dict[str, Policy] = {}

    def choose(
        self, ask: Ask, replicas: Sequence[Replica], now_s: float, exclude: frozenset[str] = frozenset()
    ) -> Replica | Hold:
        """A replica, or why to wait. `replicas` are the routable ones; Hold("excluded") when all were tried."""
        policy = self._policies.get(ask.model)
        if policy is None:
            policy = self._policy(ask.model)
        if not exclude and replicas:
            chosen = policy.choose(ask, replicas, now_s)
            if chosen.open(now_s):
                return chosen
        left = [r for r in replicas if r.name not in exclude]
        if not left:
            return Hold("excluded" if replicas else "none ready")
        opened = [r for r in left if r.open(now_s)]
        return policy.choose(ask, opened, now_s) if opened else Hold("all full")

    def _policy(self, model: str) -> Policy:
        if len(self._policies) >= 4096:
            self._policies.clear()
        spec = self._rule(model)
        policy = self._policies[model] = POLICIES[spec.policy](spec, self._rng)
        return policy
