"""Quantiles that hold what they promise: factors for a prediction's spreads, corrected by how often the truth lay beyond. Pure.

Scores are residuals over the spread foretold on their side. A quantile's factor is the scores' empirical quantile over
the last `WINDOW` of them (split conformal prediction), at a level that is moved by each miss and each hit (adaptive
conformal inference, Gibbs and Candes 2021), so that coverage holds over long stretches whatever the traffic does.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque

from predictor.kept import Kept, State

WINDOW = 400
PRIOR = 12.0  # scores that the foretold spread counts for
MIDDLE_PRIOR = 60.0  # ... for the middle, which the layers have learnt already
STEP = 0.015
SHIFT_MAX = 0.2  # of a level
CUT_EXCESS = 0.5  # how far beyond, in spreads, an answer that was cut off is taken to be where none went further
TAILS = {0.1: -1.0, 0.5: 0.0, 0.9: 1.0}


class Coverage:
    """Scores of one model's answers."""

    __slots__ = ("_latest", "_levels", "_sorted", "hits", "total")

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._levels = dict.fromkeys(TAILS, 0.0)
        self.hits = 0  # answers of at most q90
        self.total = 0

    def factor(self, quantile: float) -> float:
        """How many spreads from the middle that quantile lies; the foretold ones (-1, 0, 1) before anything was seen."""
        count = len(self._sorted)
        if not count:
            return TAILS[quantile]
        level = quantile + self._levels[quantile]
        place = min(max(level * (count + 1) - 0.5, 0.0), count - 1.0)
        below = int(place)
        above = min(below + 1, count - 1)
        found = self._sorted[below] + (place - below) * (self._sorted[above] - self._sorted[below])
        prior = (PRIOR if TAILS[quantile] else MIDDLE_PRIOR) * (1.0 - count / WINDOW)
        return (count * found + prior * TAILS[quantile]) / (count + prior)

    def saw(self, score: float, covered: dict[float, bool], cut: bool) -> None:
        """An answer's score, and below which of its quantiles it lay. One that was cut off is longer than it seems."""
        if cut:
            score = self._beyond(score)
            covered = {quantile: score <= self.factor(quantile) for quantile in TAILS}
        self.total += 1
        self.hits += covered[0.9]
        for quantile, hit in covered.items():
            moved = self._levels[quantile] + STEP * (quantile - hit)
            self._levels[quantile] = min(max(moved, -SHIFT_MAX), SHIFT_MAX)
        self._latest.append(score)
        insort(self._sorted, score)
        if len(self._latest) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def state(self) -> State:
        """For `restored`."""
        return {
            "scores": list(self._latest), "levels": list(self._levels.values()), "hits": self.hits, "total": self.total
        }  # fmt: skip

    def restored(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError."""
        scores = kept.numbers("scores", 0, WINDOW, -1e6, 1e6)
        levels = kept.numbers("levels", len(TAILS), len(TAILS), -SHIFT_MAX, SHIFT_MAX)
        total = kept.whole("total")
        self.hits, self.total = kept.whole("hits", most=total), total
        self._latest, self._sorted = deque(scores), sorted(scores)
        self._levels = dict(zip(TAILS, levels, strict=True))

    def _beyond(self, score: float) -> float:
        """The middle of the scores above: where an answer may have ended that had got so far."""
        at = bisect_right(self._sorted, score)
        if at == len(self._sorted):
            return max(score + CUT_EXCESS, 0.0)
        return self._sorted[(at + len(self._sorted)) // 2]
