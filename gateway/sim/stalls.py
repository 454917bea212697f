"""What disturbs a simulated engine's steps, and the clock its readers share. Pure; randomness is passed in."""

import math
from random import Random

NEVER = 1 << 60


class Clock:
    """The simulation's now, in seconds: set by the cluster, read by whoever asks for live progress."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0


class Stalls:
    """Which steps are stalled: each with probability `share`, by `stall_s`; drawn as gaps between stalled steps."""

    __slots__ = ("_log_rest", "_rng", "stall_s")

    def __init__(self, share: float, stall_s: float, rng: Random) -> None:
        if not 0 < share < 1:
            raise ValueError("the share of stalled steps must lie between 0 and 1")
        self.stall_s = stall_s
        self._rng = rng
        self._log_rest = math.log1p(-share)

    def gap(self) -> int:
        """Steps up to and including the next stalled one (geometric)."""
        return 1 + int(math.log(1.0 - self._rng.random()) / self._log_rest)
