"""By what factor an engine's steps are slower than its profile says, learned while it works. Pure.

Two witnesses. Running requests gain a token a step: steps reckoned over tokens come is the factor, to a few percent.
First tokens tell it only until that is known, for they also wait for memory and on the way to the gateway and back; what
they do tell is how well first tokens are predicted (`error`). The factor is applied in rungs of a tenth, each left only
when clearly off: engines that are alike must not differ by what was noise, or the ones that seem faster fill up.
"""

import math

WEIGHT = 0.1
LOG_MAX = 3.0  # 20 times as slow, or as fast
RUNG_LOG = 0.1
OFF_MAX = 2.0  # one first token that is off by more (as a logarithm) counts as this


class Pace:
    """`value` multiplies all step times; `error` is the mean |log(observed / predicted)| of first tokens."""

    __slots__ = ("_firsts", "_log", "_rung", "_windows", "error", "value")

    def __init__(self) -> None:
        self.value = 1.0
        self.error = 0.0
        self._log = 0.0
        self._rung = 0
        self._firsts = self._windows = 0

    def first_token(self, predicted_s: float, observed_s: float) -> None:
        """A first token came after `observed_s`, not after `predicted_s`."""
        if not (predicted_s > 1e-6 and observed_s > 1e-6):
            return
        off = math.log(observed_s / predicted_s)
        self._firsts += 1
        weight = max(WEIGHT, 1.0 / self._firsts)
        self.error += weight * (min(abs(off), OFF_MAX) - self.error)
        if not self._windows:
            self._adjust(off, weight)

    def steps(self, reckoned: int, came: int) -> None:
        """So many steps were reckoned with the present factor while so many tokens of one request came."""
        self._windows += 1
        self._adjust(math.log(reckoned / came), max(WEIGHT, 1.0 / self._windows))

    def _adjust(self, off: float, weight: float) -> None:
        """The applied factor proved off by a factor (its logarithm)."""
        pace = self._log + weight * (self._rung * RUNG_LOG + off - self._log)
        self._log = max(-LOG_MAX, min(LOG_MAX, pace))
        rung = self._log / RUNG_LOG
        if abs(rung - self._rung) > 0.75:
            self._rung = round(rung)
            self.value = math.exp(self._rung * RUNG_LOG)
