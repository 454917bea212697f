"""How far predictions were off: quantiles of the last observed values over what was predicted. Pure."""

from bisect import insort
from collections import deque


class Spread:
    """Of one kind of prediction; `window` observations are remembered."""

    def __init__(self, window: int = 200) -> None:
        self._last: deque[float] = deque()
        self._sorted: list[float] = []
        self._window = window

    def saw(self, predicted: float, actual: float) -> None:
        """One prediction and what came; values that are not above 0 say nothing."""
        if not (predicted > 0 and actual > 0):
            return
        ratio = actual / predicted
        self._last.append(ratio)
        insort(self._sorted, ratio)
        if len(self._last) > self._window:
            self._sorted.remove(self._last.popleft())

    @property
    def q10(self) -> float:
        """At most 1; 1 before anything was seen."""
        return min(1.0, self._sorted[len(self._sorted) // 10]) if self._sorted else 1.0

    @property
    def q90(self) -> float:
        """At least 1; 1 before anything was seen."""
        return max(1.0, self._sorted[len(self._sorted) * 9 // 10]) if self._sorted else 1.0

    @property
    def median(self) -> float:
        """1 before anything was seen."""
        return self._sorted[len(self._sorted) // 2] if self._sorted else 1.0
