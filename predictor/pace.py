"""By what factor an engine's steps are slower than its profile says, learned while it works. Pure.

Two witnesses. Running requests gain a token a step: steps reckoned over tokens come is the factor, to a few percent.
First tokens tell it only until that is known, for they also wait for memory and on the way to the gateway and back; what
they do tell is how well first tokens are predicted (`error`). The factor is applied in rungs of a tenth, each left only
when clearly off: engines that are alike must not differ by what was noise, or the ones that seem faster fill up.
"""

import math

WEIGHT = 0.1
LOG_MAX = 5.0  # 150 times as slow, or as fast
RUNG_LOG = 0.1
GROWN_WINDOWS, GROWN_FIRSTS = 2, 8
FIRST_LESSONS = 3  # so many first tokens show what the profile is worth before predictions are judged
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

    @property
    def grown(self) -> bool:
        """Whether enough was learned to tell this engine from others."""
        return self._windows >= GROWN_WINDOWS or self._firsts >= GROWN_FIRSTS

    def first_token(self, predicted_s: float, observed_s: float, applied: float) -> None:
        """A first token came after `observed_s`, not after `predicted_s`, as predicted with the factor `applied`."""
        if not (predicted_s > 1e-6 and observed_s > 1e-6):
            return
        off = math.log(observed_s / predicted_s)
        self._firsts += 1
        if not self._windows:
            self._adjust(math.log(applied) + off, max(WEIGHT, 1.0 / self._firsts))
        judged = self._firsts - FIRST_LESSONS
        if judged > 0:
            self.error += max(WEIGHT, 1.0 / judged) * (min(abs(off), OFF_MAX) - self.error)

    def steps(self, reckoned: int, came: int, applied: float) -> None:
        """So many steps were reckoned with the factor `applied` while so many tokens of one request came."""
        self._windows += 1
        self._adjust(math.log(applied * reckoned / came), max(WEIGHT, 1.0 / self._windows))

    def _adjust(self, seen_log: float, weight: float) -> None:
        """The factor (its logarithm) that was seen."""
        self._log = max(-LOG_MAX, min(LOG_MAX, self._log + weight * (seen_log - self._log)))
        rung = self._log / RUNG_LOG
        if abs(rung - self._rung) > 0.75:
            self._rung = round(rung)
            self.value = math.exp(self._rung * RUNG_LOG)
