"""By what factor an engine's steps are slower than its profile says, learned while it works. Pure.

Two witnesses. Running requests gain a token a step, and first tokens tell which prompts were computed meanwhile: the
time this took over what it should have taken is the factor, to a percent or two. Single first tokens tell little of it,
for they also wait for memory and on the way to the gateway and back: they tell how well first tokens are predicted
(`error`), and give engines believed to be alike a common factor until each has its own. One that was asked once must
not look slow for it: nobody would ask it again. The factor is applied in rungs of a quarter, each left only when clearly
off: engines that are alike must not differ by what was noise, or the ones that seem faster fill up.
"""

import math
from collections import deque

from predictor.kept import Kept, State
from predictor.spread import Spread

WEIGHT = 0.1
LOG_MAX = 5.0  # 150 times as slow, or as fast
RUNG_LOG = 0.25
MEDIAN_OF, OWN_MIN, COMMON_MIN = 25, 11, 3
FIRST_LESSONS = 3  # so many first tokens show what the profile is worth before predictions are judged
OFF_MAX = 2.0  # one first token that is off by more (as a logarithm) counts as this
JUDGED = 50  # first tokens that tell the interval
SLACK_S = 0.1  # a few steps: 20 ms foretold and 90 seen are no reason to distrust the next prediction


class Pace:
    """`value` multiplies all step times; `error` is the mean |log(observed / predicted)| of first tokens,
    each with SLACK_S added; `residuals` are the last ones as they were."""

    __slots__ = ("_firsts", "_least", "_log", "_rung", "_seen", "_windows", "error", "residuals", "value")

    def __init__(self, least: int = OWN_MIN) -> None:
        """`least` lessons before anything is believed."""
        self._least = least
        self.value = 1.0
        self.error = 0.0
        self.residuals = Spread(JUDGED)
        self._log = 0.0
        self._rung = 0
        self._firsts = self._windows = 0
        self._seen: deque[float] = deque(maxlen=MEDIAN_OF)

    @property
    def grown(self) -> bool:
        """Whether enough was learned to tell this engine from others."""
        return self._windows >= self._least

    def first_token(self, predicted_s: float, observed_s: float) -> None:
        """A first token came after `observed_s`, not after `predicted_s`."""
        if predicted_s > 1e-6 and observed_s > 1e-6:
            self._firsts += 1
            off = min(abs(math.log((observed_s + SLACK_S) / (predicted_s + SLACK_S))), OFF_MAX)
            if self._firsts > FIRST_LESSONS:
                self.error += WEIGHT * (off - self.error)  # from 0 on: a few bad ones condemn nobody
                self.residuals.saw(predicted_s, observed_s)

    def hint(self, predicted_s: float, observed_s: float, applied: float) -> None:
        """For a pace that many engines learn together: a first token's factor, predicted with the factor `applied`."""
        if predicted_s > 1e-6 and observed_s > 1e-6:
            self._lesson(math.log(applied * observed_s / predicted_s))

    def window(self, predicted_s: float, observed_s: float) -> None:
        """What an engine did between two instants at which its work is known took `observed_s`; the profile alone says
        `predicted_s`."""
        self._lesson(math.log(observed_s / predicted_s))

    def state(self) -> State:
        """For `restore`."""
        return {
            "log": self._log,
            "rung": self._rung,
            "firsts": self._firsts,
            "windows": self._windows,
            "error": self.error,
            "seen": list(self._seen),
        }

    def restore(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError."""
        log, error = kept.number("log", -LOG_MAX, LOG_MAX), kept.number("error", 0.0, OFF_MAX)
        rung = kept.whole("rung", -round(LOG_MAX / RUNG_LOG), round(LOG_MAX / RUNG_LOG))
        firsts, windows = kept.whole("firsts"), kept.whole("windows")
        seen = kept.numbers("seen", 0, MEDIAN_OF, -1e3, 1e3)
        self._log, self._rung, self.value, self.error = log, rung, math.exp(rung * RUNG_LOG), error
        self._firsts, self._windows, self._seen = firsts, windows, deque(seen, maxlen=MEDIAN_OF)

    def _lesson(self, seen_log: float) -> None:
        self._windows += 1
        self._seen.append(seen_log)
        if self._windows >= self._least:  # some hold what nobody knew of: a prefix that was gone
            self._adjust(sorted(self._seen)[len(self._seen) // 2], max(WEIGHT, 1.0 / (self._windows - self._least + 1)))

    def _adjust(self, seen_log: float, weight: float) -> None:
        """The factor (its logarithm) that was seen."""
        self._log = max(-LOG_MAX, min(LOG_MAX, self._log + weight * (seen_log - self._log)))
        rung = self._log / RUNG_LOG
        if abs(rung - self._rung) > 0.75:
            self._rung = round(rung)
            self.value = math.exp(self._rung * RUNG_LOG)
