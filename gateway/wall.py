"""The wall clock as engines are told it, which order their queues by such instants. Shell.

Set back by an hour, it would put all that comes before all that waits, for an hour. So from then on it goes at half speed
until it is right again: never back, and never still. Set forward it is believed at once.
"""

import time
from collections.abc import Callable


class Wall:
    """`now` tells the loop's time."""

    def __init__(self, now: Callable[[], float], clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._now = now
        self._clock_ns = clock_ns
        self._told_ns = 0.0
        self._told_s = now()

    def unix_ms(self) -> int:
        """Milliseconds since the epoch; never less than the last time."""
        now_s = self._now()
        slow_ns = self._told_ns + (now_s - self._told_s) * 0.5e9
        self._told_ns, self._told_s = max(float(self._clock_ns()), slow_ns), now_s
        return int(self._told_ns // 1_000_000)
