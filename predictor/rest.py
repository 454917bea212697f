"""What is left of an answer under way, given that it is not complete yet. Pure.

The length is taken as log-normal on both sides of its median, each with the deviation that its own outer quantile tells: one
that a limit cuts has none above. With z the standard score of the tokens so far, the share p of the answers that get there
is complete at Q(1 - (1 - p) (1 - P(z))), P the normal distribution and Q its inverse; far out the tail falls like an
exponential. `Rest` gives the median alone, from a table, since it is asked for all that run at each look at an engine.
Where nothing is known beyond the median it is the paper's repair: the estimate, then ten tokens more.
"""

import math
from statistics import NormalDist
from typing import Final

from predictor.request import LengthEstimate

REPAIR_TOKENS: Final = 10  # what is still expected of an answer that is longer than expected, where nothing else is known
DOUBT_MIN: Final = 0.01  # a narrower spread of the log is none
Q90_SIGMAS: Final = NormalDist().inv_cdf(0.9)
Z_MIN: Final = -4.0  # earlier than that hardly any answer ends
Z_MAX: Final = 5.0
STEPS: Final = 16  # of the table, for each deviation
LN_2: Final = 0.6931471805599453


def score_of_rest(z: float, p: float) -> float:
    """The standard score by which the share `p` is complete of those that have come to score `z`."""
    normal = NormalDist()
    if z > Z_MAX:
        return z - math.log(1.0 - p) / z
    return -normal.inv_cdf((1.0 - p) * normal.cdf(-z))  # by the lower tail, which floats hold to full precision


_MEDIANS: Final = [score_of_rest(Z_MIN + i / STEPS, 0.5) for i in range(int((Z_MAX - Z_MIN) * STEPS) + 1)]


class Rest:
    """Of one answer: its median, and the deviations of the length's logarithm below and above it."""

    __slots__ = ("above", "below", "median")

    def __init__(self, lengths: LengthEstimate) -> None:
        self.median: Final = lengths.q50
        self.below: Final = math.log(lengths.q50 / lengths.q10) / Q90_SIGMAS
        self.above: Final = math.log(lengths.q90 / lengths.q50) / Q90_SIGMAS

    def score(self, generated: int) -> float:
        """The standard score of so many tokens."""
        deviation = self.below if generated < self.median else self.above
        return math.log(generated / self.median) / max(deviation, DOUBT_MIN)

    def share(self, generated: int, p: float) -> int:
        """Tokens after which the share `p` of those that have come so far is complete; at least 1. `generated` from 1 on."""
        further = score_of_rest(self.score(generated), p)
        deviation = self.below if further < 0 else self.above
        if deviation < DOUBT_MIN and generated >= self.median:
            return REPAIR_TOKENS
        return max(1, round(self.median * math.exp(deviation * further)) - generated)

    def tokens(self, generated: int) -> int:
        """The median of what is still to come after so many; at least 1."""
        median = self.median
        if generated < 1:
            return median
        if self.above < DOUBT_MIN:
            return median - generated if generated < median else REPAIR_TOKENS
        z = self.score(generated)
        if z <= Z_MIN:
            return median - generated
        if z < Z_MAX:
            place = (z - Z_MIN) * STEPS
            index = int(place)
            low = _MEDIANS[index]
            further = low + (place - index) * (_MEDIANS[index + 1] - low)
        else:
            further = z + LN_2 / z
        return max(1, round(median * math.exp(self.above * further)) - generated)
