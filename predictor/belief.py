"""A linear law with uncertain coefficients, learned one observation at a time. Pure.

y = x . b + noise, b Gaussian: the recursive form of Bayesian least squares. A prior stands in for measurements until
there are some; `keep` below 1 forgets old ones (the variance grows by 1/keep before each update, never beyond the prior).
What lies further off than SURPRISE standard deviations shows that the belief was too sure, and widens it first.
It must never be asked to invert anything: two to six coefficients, plain floats.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.kept import Kept, KeptError, State

SURPRISE = 2.0


@dataclass(frozen=True, slots=True)
class Guessed:
    """A prediction: its mean, and the standard deviation of that mean (the noise of one observation not included)."""

    mean: float
    sd: float


class LinearBelief:
    """Coefficients with means and standard deviations before any observation; both of one length, sds above 0."""

    def __init__(self, means: Sequence[float], sds: Sequence[float], keep: float = 1.0) -> None:
        if len(means) != len(sds) or min(sds) <= 0 or not 0 < keep <= 1:
            raise ValueError("as many standard deviations as means, all above 0, and keep in (0, 1]")
        self._mean = list(means)
        self._prior = [sd * sd for sd in sds]
        self._cov = [[self._prior[i] if i == j else 0.0 for j in range(len(means))] for i in range(len(means))]
        self._keep = keep
        self.seen = 0

    def __repr__(self) -> str:
        return f"<LinearBelief {' '.join(f'{value:.4g}' for value in self._mean)} seen={self.seen}>"

    @property
    def means(self) -> tuple[float, ...]:
        """The coefficients as believed now."""
        return tuple(self._mean)

    def predict(self, x: Sequence[float]) -> Guessed:
        """What y is at x."""
        spread = sum(a * value for a, value in zip(self._times(x), x, strict=True))
        return Guessed(sum(b * value for b, value in zip(self._mean, x, strict=True)), math.sqrt(max(spread, 0.0)))

    def observe(self, x: Sequence[float], y: float, noise: float) -> None:
        """One observation whose own noise has that standard deviation (above 0)."""
        self._forget()
        error = y - sum(b * value for b, value in zip(self._mean, x, strict=True))
        gain_over = self._times(x)
        own = sum(a * value for a, value in zip(gain_over, x, strict=True))
        if own > 0 and error * error > SURPRISE**2 * (own + noise * noise):
            self._widen((error * error / SURPRISE**2 - noise * noise) / own)
            gain_over = self._times(x)
            own = sum(a * value for a, value in zip(gain_over, x, strict=True))
        total = own + noise * noise
        for i, a in enumerate(gain_over):
            self._mean[i] += a / total * error
            row = self._cov[i]
            for j, b in enumerate(gain_over):
                row[j] -= a * b / total
        self.seen += 1

    def state(self) -> State:
        """For `restore`."""
        return {"mean": self._mean, "cov": [one for row in self._cov for one in row], "seen": self.seen}

    def restore(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError."""
        size = len(self._mean)
        mean = kept.numbers("mean", size, size, -1e12, 1e12)
        cov, seen = kept.numbers("cov", size * size, size * size, -1e18, 1e18), kept.whole("seen")
        if min(cov[:: size + 1]) < 0:
            raise KeptError("cov has a variance below 0")
        self._mean, self._cov, self.seen = mean, [cov[at : at + size] for at in range(0, size * size, size)], seen

    def _times(self, x: Sequence[float]) -> list[float]:
        return [sum(a * value for a, value in zip(row, x, strict=True)) for row in self._cov]

    def _widen(self, times: float) -> None:
        self._cov = [[value * times for value in row] for row in self._cov]

    def _forget(self) -> None:
        if self._keep == 1.0:
            return
        factors = [math.sqrt(min(1 / self._keep, max(1.0, p / self._cov[i][i]))) for i, p in enumerate(self._prior)]
        for i, row in enumerate(self._cov):
            for j in range(len(row)):
                row[j] *= factors[i] * factors[j]
