"""By how many seconds of later arrivals a request may be passed, from how its size compares with those that came. Pure.

    handicap_s = overtaking_s (min(1, size / median) + 0.5 [size among the longest 0.5 %])

Place in the line is arrival + handicap. So the short half goes by size, the others keep their order among themselves, the
very longest stand back a little more, and nobody is passed by who comes more than 1.5 `overtaking_s` later. Seconds of
waiting are conserved: who is passed waits for the work that passes. The short half is a small part of all work, so it costs
the others little, and the longest 0.5 % are a large part, so they give it back. Shortest-first all the way up, with ageing,
lets the middle pass each other, too: much of the work, hence its longer tail when the line grows (docs/papers/astrolabe.md).
"""

from bisect import bisect_left, insort
from collections import deque

WINDOW = 1024
LONGEST_SHARE = 0.005
LONGEST_MORE = 0.5
KNOWN = 200  # arrivals from which so small a share can be told


class Sizes:
    """The sizes of the last arrivals."""

    __slots__ = ("_came", "_ordered")

    def __init__(self) -> None:
        self._came: deque[float] = deque()
        self._ordered: list[float] = []

    def saw(self, size: float) -> None:
        """One of this size came."""
        if len(self._came) == WINDOW:
            del self._ordered[bisect_left(self._ordered, self._came.popleft())]
        self._came.append(size)
        insort(self._ordered, size)

    def least(self, share: float) -> float:
        """Those below it make up that share of the sum of all; 0 while too few are known."""
        left = share * sum(self._ordered) if len(self._ordered) >= KNOWN else 0.0
        for size in self._ordered:
            left -= size
            if left <= 0.0:
                return size
        return 0.0

    def longest(self, size: float, share: float) -> bool:
        """Whether it is among the longest such share; nobody is while too few are known."""
        ordered = self._ordered
        count = len(ordered)
        return count >= KNOWN and size > ordered[count - 1 - int(count * share)]

    def handicap_s(self, size: float, overtaking_s: float) -> float:
        """See the module's words; the same for all while nothing came yet."""
        ordered = self._ordered
        count = len(ordered)
        if not count:
            return overtaking_s
        median = ordered[count // 2]
        share = min(1.0, size / median) if median > 0 else 1.0
        if self.longest(size, LONGEST_SHARE):
            share += LONGEST_MORE
        return overtaking_s * share
