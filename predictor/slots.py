"""How many requests an engine runs at once at most, found out from what it says of its queue. Pure.

Where requests wait although there is KV for them, an engine has run out of slots, or of tokens in its steps. Slots it is if
the number that runs comes back to the same height from reading to reading while requests end (an engine counts before those
who wait take the places of the ended), and never exceeds it: PROOFS such readings in a row are believed, and one in which
more run refutes them. What is told is one more than what was seen, so that a wrong belief, too, gets the chance to be
refuted. Settings and what a server says go before it.
"""

from collections import deque

PROOFS = 8  # readings
ENDS_MIN = 3  # requests that ended meanwhile, or a quarter of those that run
KV_AMPLE = 0.7  # no more of the KV in use


class Slots:
    """`limit` is what is believed, 0 while nothing is."""

    def __init__(self) -> None:
        self.limit = 0
        self._readings: deque[tuple[int, int]] = deque(maxlen=PROOFS)  # how many ran, how many had ended since the last one

    def report(self, running: int, waiting: int, kv_usage: float, ends: int) -> int:
        """A reading; `kv_usage` is a share, below 0 where the engine does not say, `ends` how many requests ended since the
        last one. Gives `limit`."""
        if running >= self.limit > 0:
            self.limit = 0
            self._readings.clear()
        if waiting < 1 or running < 1 or not 0.0 <= kv_usage <= KV_AMPLE:
            self._readings.clear()
            return self.limit
        self._readings.append((running, ends))
        if len(self._readings) == PROOFS and self._agree():
            self.limit = max(count for count, _ in self._readings) + 1
        return self.limit

    def _agree(self) -> bool:
        counts = [running for running, _ in self._readings]
        top = max(counts)
        ended = sum(ends for _, ends in self._readings)
        often = counts.count(top) >= PROOFS // 2 and min(counts) >= top - max(1, top // 16)
        return often and ended >= max(ENDS_MIN, top // 4)
