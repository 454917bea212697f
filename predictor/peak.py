"""The most KV tokens an engine will hold at once, if each answer ends when expected and gains a token a step. Pure.

Sorted by what is left, longest first: when the i-th ends, the first i are still there and each has gained left_i, so
the peak is the largest of sum(tokens of the first i) + i left_i (the check of past-future scheduling). One more request
shifts those behind it by its tokens and by one; so two running maxima answer for it in O(log n). The maximum before a
place is also the peak once all behind it have ended: that tells how long memory has to be waited for.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


class PeakCurve:
    """The sorted requests of one engine, and the maxima before and behind each place."""

    __slots__ = ("_before", "_behind", "_held", "_lefts", "tokens")

    def __init__(self, parts: Sequence[tuple[int, int]], base: int) -> None:
        """`parts` are (tokens left to produce, tokens held now) of each request, `base` tokens are held to the end."""
        ordered = sorted(parts, reverse=True)
        count = len(ordered)
        self._lefts = [-left for left, _ in ordered]  # rising, for bisect
        self._held = [base] * (count + 1)
        self._before = [base] * (count + 1)
        self._behind = [0] * (count + 1)
        for i, (left, tokens) in enumerate(ordered):
            held = self._held[i + 1] = self._held[i] + tokens
            self._before[i + 1] = max(self._before[i], held + left * (i + 1))
        for i in range(count - 1, -1, -1):
            left = ordered[i][0]
            self._behind[i] = max(self._behind[i + 1], self._held[i + 1] + left * (i + 2))
        self.tokens = self._before[count]

    def with_one(self, left: int, tokens: int) -> int:
        """The peak with one more request."""
        place = bisect_left(self._lefts, -left)
        own = self._held[place] + tokens + left * (place + 1)
        behind = self._behind[place]
        return max(self._before[place], own, behind + tokens if behind else 0)

    def steps_until(self, tokens: float) -> int:
        """Steps until so many of those that end first have ended that the peak of the rest is at most `tokens`; until all
        have, if it never is."""
        stay = max(0, bisect_right(self._before, tokens) - 1)
        return -self._lefts[stay] if stay < len(self._lefts) else 0
