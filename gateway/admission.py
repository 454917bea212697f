"""The bounded line of policies without a desk, the retry budget, and the waits that refusals announce. Pure.

Without a prediction nobody can tell who can still be in time, so this line has no tiers: it goes by the instant until
which each is ready to wait, which is its deadline where it has one, else PATIENCE_S after it came: first come, first
served among those, and nobody is overtaken by whoever comes later than that.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from gateway.config import Queue, Retry

Item = TypeVar("Item")
NEVER = float("inf")
PATIENCE_S = 30.0


class WaitingLine(Generic[Item]):
    """In its order per model, over all models together bounded by `queue.size`."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lines: dict[str, deque[tuple[float, Item]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= self._queue.size

    def push(self, model: str, item: Item, until_s: float = NEVER) -> None:
        """Join the line of `model`, behind all who wait until that instant. The caller has checked `full`."""
        assert not self.full
        line = self._lines.setdefault(model, deque())
        if not line or line[-1][0] <= until_s:
            line.append((until_s, item))
        else:
            line.insert(bisect_right(line, until_s, key=_until), (until_s, item))
        self._count += 1

    def remove(self, model: str, item: Item) -> bool:
        """Leave the line (client gone, timed out). False when not in it."""
        line = self._lines.get(model)
        for at, (_, waiting) in enumerate(line or ()):
            if waiting is item or waiting == item:
                assert line is not None
                del line[at]
                self._left(model, line)
                return True
        return False

    def release(self, model: str, place: Callable[[Item], bool]) -> None:
        """Offer the head of the line until `place` declines one."""
        line = self._lines.get(model)
        while line:
            first = line[0][1]  # compiled, a tuple is a value: only the item keeps its identity
            if not place(first):
                return
            if line and line[0][1] is first:
                line.popleft()
                self._left(model, line)

    def models(self) -> tuple[str, ...]:
        """Models somebody waits for."""
        return tuple(self._lines)

    def __iter__(self) -> Iterator[Item]:
        """All who wait."""
        return iter([item for line in self._lines.values() for _, item in line])

    def waiting(self, model: str) -> int:
        """How many wait for `model`."""
        return len(self._lines.get(model, ()))

    def _left(self, model: str, line: deque[tuple[float, Item]]) -> None:
        self._count -= 1
        if not line:
            self._lines.pop(model, None)


def _until(waiting: tuple[float, Item]) -> float:
    return waiting[0]


class DrainRate:
    """How fast requests leave, as an exponentially weighted rate; gives the expected wait of a refused one."""

    __slots__ = ("_last_s", "_rate_per_s")
    HALF_LIFE_S = 10.0

    def __init__(self) -> None:
        self._last_s = 0.0
        self._rate_per_s = 0.0

    def left(self, now_s: float) -> None:
        """One request finished."""
        weight = math.pow(0.5, (now_s - self._last_s) / self.HALF_LIFE_S)
        self._rate_per_s = self._rate_per_s * weight + 0.6931 / self.HALF_LIFE_S
        self._last_s = now_s

    def rate_per_s(self, now_s: float) -> float:
        """Finished requests per second, lately."""
        return self._rate_per_s * math.pow(0.5, (now_s - self._last_s) / self.HALF_LIFE_S)

    def retry_after_s(self, waiting: int, now_s: float) -> int:
        """Seconds until a line of `waiting` has drained, 1 to 60; 1 when nothing is known."""
        rate = self.rate_per_s(now_s)
        return 1 if rate <= 0.01 else max(1, min(60, round((waiting + 1) / rate)))


class RetryBudget:
    """A token bucket filled by `ratio` per request: second attempts stay a small share of the traffic."""

    __slots__ = ("_ratio", "_size", "_tokens")

    def __init__(self, retry: Retry) -> None:
        self._ratio = retry.ratio
        self._size = float(retry.burst)
        self._tokens = float(retry.burst)

    def request(self) -> None:
        """A first attempt went out."""
        tokens = self._tokens + self._ratio
        self._tokens = min(self._size, tokens)

    def spend(self) -> bool:
        """Take one second attempt, if there is one."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
