"""The poison rule's memory: which body made which backend drop the connection, or answer that it broke. Pure.

A drop speaks against the body only if it was the backend's only one around that moment: a server that dies takes all
its requests along, and none of them need be the cause. An answer of 5xx comes from a server that lives: it harms nobody
else, so such a body is never refused, only tried elsewhere. Bounded, and forgotten after a while.
"""

from collections import OrderedDict, deque

BODIES_MAX = 1024
DROPS_MAX = 1024
TOGETHER_S = 1.0


LIKENESS_BYTES = 65536


def likeness(body: bytes) -> int:
    """What tells one body from another: of a large one its length and both ends, since hashing all of it takes long."""
    if len(body) <= 2 * LIKENESS_BYTES:
        return hash(body)
    return hash((len(body), body[:LIKENESS_BYTES], body[-LIKENESS_BYTES:]))


class Suspicion:
    """Bodies by hash -> the backends that failed at them, when, and whether by a drop."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._bodies: OrderedDict[int, dict[str, tuple[float, bool]]] = OrderedDict()
        self._drops: deque[tuple[str, float]] = deque(maxlen=DROPS_MAX)

    def __bool__(self) -> bool:
        return bool(self._bodies)

    def failed(self, body_hash: int, backend: str, now_s: float, dropped: bool) -> None:
        """A backend dropped the connection on this body, or answered 5xx."""
        if dropped:
            self._drops.append((backend, now_s))
        backends = self._bodies.pop(body_hash, {})
        backends[backend] = now_s, dropped
        self._bodies[body_hash] = backends
        if len(self._bodies) > BODIES_MAX:
            self._bodies.popitem(last=False)

    def droppers(self, body_hash: int, now_s: float) -> frozenset[str]:
        """Backends that dropped this body, and nothing else around that moment."""
        fresh = self._fresh(body_hash, now_s)
        return frozenset(name for name, at_s, dropped in fresh if dropped and self._alone(name, at_s))

    def refusers(self, body_hash: int, now_s: float) -> frozenset[str]:
        """Backends that answered 5xx to this body."""
        return frozenset(name for name, _, dropped in self._fresh(body_hash, now_s) if not dropped)

    def _fresh(self, body_hash: int, now_s: float) -> list[tuple[str, float, bool]]:
        backends = self._bodies.get(body_hash, {})
        return [(name, at_s, dropped) for name, (at_s, dropped) in backends.items() if now_s - at_s <= self._ttl_s]

    def _alone(self, backend: str, at_s: float) -> bool:
        return sum(name == backend and abs(when_s - at_s) <= TOGETHER_S for name, when_s in self._drops) == 1

    def works(self, body_hash: int) -> frozenset[str]:
        """The body got an answer somewhere: who failed at it is to blame, not it."""
        return frozenset(self._bodies.pop(body_hash, {}))

    def forget(self, now_s: float) -> None:
        """Let go of what is too old to matter."""
        bodies = self._bodies
        while bodies and now_s - max(at_s for at_s, _ in next(iter(bodies.values())).values()) > self._ttl_s:
            bodies.popitem(last=False)
