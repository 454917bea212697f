# cython: annotation_typing=False, infer_types=True, wraparound=False, initializedcheck=False
"""The two loops that boosted trees spend their time in: from every root to a leaf, and sums over a prompt's grams. Pure.

It runs as it stands, and with `walk.pxd` it compiles to C, with the same sums in the same order. Whoever makes these
objects has judged what is in them: every walk ends, every feature is there. Not re-entrant: `Walk` has a scratch area.
"""

from array import array
from collections.abc import MutableSequence, Sequence
from math import sqrt

COMPILED = not __file__.endswith(".py")


def _whole(values: Sequence[int]) -> MutableSequence[int]:
    """Lists are faster than arrays when interpreted; compiled, the fields are views of arrays."""
    return array("i", values) if COMPILED else list(values)


def _real(values: Sequence[float]) -> MutableSequence[float]:
    return array("d", values) if COMPILED else list(values)


class Walk:
    """Nodes of all trees: of a branch the feature that is looked at, of a leaf minus one less than its target; `limit` is
    a branch's limit or a leaf's value, `low` and `high` are where to go on. `width`: how many numbers are looked at."""

    def __init__(
        self,
        roots: Sequence[int],
        feature: Sequence[int],
        limit: Sequence[float],
        low: Sequence[int],
        high: Sequence[int],
        width: int,
    ) -> None:
        self.roots, self.feature, self.low, self.high = _whole(roots), _whole(feature), _whole(low), _whole(high)
        self.limit, self.seen, self.total = _real(limit), _real([0.0] * width), _real([0.0] * 3)

    def sums(self, numbers: Sequence[float]) -> tuple[float, float, float]:
        """What the leaves add up to, for each target. Raises ValueError for another count of numbers."""
        seen, total = self.seen, self.total
        if len(numbers) != len(seen):
            raise ValueError(f"{len(numbers)} numbers for {len(seen)}")
        for place, number in enumerate(numbers):
            seen[place] = number
        total[0] = total[1] = total[2] = 0.0
        roots, feature, limit, low, high = self.roots, self.feature, self.limit, self.low, self.high
        for tree in range(len(roots)):
            node = roots[tree]
            looked = feature[node]
            while looked >= 0:
                node = low[node] if seen[looked] <= limit[node] else high[node]
                looked = feature[node]
            total[-1 - looked] += limit[node]
        return total[0], total[1], total[2]


class Table:
    """A number for each bucket that a gram may fall into, and by how much it adds to the square of what is divided by."""

    def __init__(self, weights: Sequence[float], scales: Sequence[float]) -> None:
        self.weights, self.scales = array("f", weights), array("f", scales)

    def weighed(self, grams: Sequence[int], least: float) -> float:
        """The sum of the weights, divided by the root of the scales' sum, which is `least` at least."""
        weights, scales = self.weights, self.scales
        total, square = 0.0, least
        for gram in grams:
            total += weights[gram]
            square += scales[gram]
        return total / sqrt(square)
