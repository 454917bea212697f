"""Step times from what an engine was seen to do: a whole profile from a measurement, a correction while it serves.

The correction keeps the profile's proportions and learns two numbers, an overhead per step and a factor:

    step_s = overhead + factor * profile.step_s(...)

by least squares on relative errors in which old steps fade (recursive least squares with forgetting, as sums), held to
(0, 1) by a prior of a few steps' weight, so that it is usable from the first step and does not drift when all steps are
alike. Outliers are clipped before they count, and the two numbers are kept within bounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from predictor.profile import StepProfile
from predictor.sighting import Sighting
from predictor.spread import Spread

FADE = 0.995  # weight of the past at each step: a memory of 200 steps
PRIOR_STEPS = 4.0
FACTOR_MIN, FACTOR_MAX = 0.1, 10.0
OUTLIER = 4.0  # a step so many times as long or as short as foretold counts as just that
CHANGE_MIN = 0.01  # relative change of either number that makes a new profile
KNEES = (0, 16, 32, 64, 96, 128, 160, 192, 256)


class StepCorrection:
    """One engine's. `profile` is the corrected one; `error` the recent mean relative error of its foretold steps."""

    def __init__(self, profile: StepProfile) -> None:
        self.profile = profile
        self.overhead_s = 0.0
        self.factor = 1.0
        self.error = 0.0
        self.steps = 0
        self._base = profile
        self._spread = Spread()
        self._scale_s = max(profile.step_s(0, 1, 1000), 1e-3)  # a typical step, so that both unknowns are near 1
        self._weight = self._uu = self._uv = self._vv = self._uz = self._vz = 0.0

    def __repr__(self) -> str:
        return f"<StepCorrection x {self.factor:.3f} + {self.overhead_s * 1e3:.2f} ms, error {self.error:.1%}>"

    @property
    def spread(self) -> float:
        """The factor below which nine in ten steps stayed."""
        return self._spread.q90

    @property
    def least(self) -> float:
        """... above which they did."""
        return self._spread.q10

    def saw(self, sighting: Sighting) -> bool:
        """Take in a published state's word on a past step; whether the profile has changed with it."""
        past = sighting.past
        return self.observe(past.prefill_tokens, past.decode_seqs, past.kv_tokens, past.pairs, sighting.past_s)

    def observe(self, prefill_tokens: int, decode_seqs: int, kv_tokens: float, pairs: float, step_s: float) -> bool:
        """One step of that shape took so long; whether the profile has changed with it."""
        if not 0 < step_s < 3600 or prefill_tokens + decode_seqs < 1:
            return False
        told_s = self.profile.step_s(prefill_tokens, decode_seqs, kv_tokens, pairs)
        base_s = self._base.step_s(prefill_tokens, decode_seqs, kv_tokens, pairs)
        if told_s > 0:
            relative = abs(told_s - step_s) / step_s
            self.error += (min(relative, OUTLIER) - self.error) / min(self.steps + 1, 50)
            self._spread.saw(told_s, step_s)
            if self.steps:
                step_s = min(max(step_s, told_s / OUTLIER), told_s * OUTLIER)
        self.steps += 1
        self._learn(self._scale_s / step_s, base_s / step_s)
        return self._adopt()

    def _learn(self, u: float, v: float) -> None:
        """Shares of the observed time: of the typical step and of the foretold one; they should add up to 1."""
        self._weight = self._weight * FADE + 1.0
        self._uu = self._uu * FADE + u * u
        self._uv = self._uv * FADE + u * v
        self._vv = self._vv * FADE + v * v
        self._uz = self._uz * FADE + u
        self._vz = self._vz * FADE + v

    def _adopt(self) -> bool:
        for_overhead = PRIOR_STEPS * self._uu / self._weight
        for_factor = max(1e-12, 0.25 * PRIOR_STEPS * self._vv / self._weight)
        uu, vv, vz = self._uu + for_overhead, self._vv + for_factor, self._vz + for_factor
        determinant = uu * vv - self._uv * self._uv
        overhead = max(0.0, (self._uz * vv - vz * self._uv) / determinant)
        factor = min(max((vz - overhead * self._uv) / vv, FACTOR_MIN), FACTOR_MAX)
        overhead_s = overhead * self._scale_s
        moved = abs(factor / self.factor - 1.0), abs(overhead_s - self.overhead_s) / self._scale_s
        if max(moved) < CHANGE_MIN:
            return False
        self.factor, self.overhead_s = factor, overhead_s
        scaled = self._base.scaled(factor)
        self.profile = replace(scaled, base_s=scaled.base_s + overhead_s)
        return True


@dataclass(frozen=True, slots=True)
class Step:
    """A measured step, in the words of `StepProfile.step_s`. One that took several alike is their mean."""

    prefill_tokens: int
    decode_seqs: int
    kv_tokens: float
    pairs: float
    step_s: float


def fit(steps: Sequence[Step], form: str = "h") -> tuple[StepProfile, float]:
    """The profile with the least mean relative error on these steps, and that error.

    Coefficients that would be negative are 0 (least squares under bounds); the knee is the best of `KNEES`. The linear
    form is fitted as published, without pairs.
    Raises ValueError without steps.
    """
    if not steps:
        raise ValueError("no steps to fit")
    best: tuple[StepProfile, float] | None = None
    for knee in KNEES if form == "h" else (0,):
        profile = _fit(steps, form, knee)
        error = mean_error(profile, steps)
        if best is None or error < best[1] - 1e-4:
            best = profile, error
    assert best is not None
    return best


def mean_error(profile: StepProfile, steps: Sequence[Step]) -> float:
    """Mean relative error of a profile on these steps."""
    told = [profile.step_s(step.prefill_tokens, step.decode_seqs, step.kv_tokens, step.pairs) for step in steps]
    return sum(abs(guess / step.step_s - 1.0) for guess, step in zip(told, steps, strict=True)) / len(steps)


def _fit(steps: Sequence[Step], form: str, knee: int) -> StepProfile:
    rows = []
    for step in steps:
        work = step.prefill_tokens
        if form == "h":
            work = max(0, step.prefill_tokens + step.decode_seqs - knee)
        pairs = step.pairs if form == "h" else 0.0
        rows.append((1.0, float(work), float(step.decode_seqs), step.kv_tokens, pairs))
    base, prefill, decode, kv, pair = _bounded_least_squares(rows, [step.step_s for step in steps])
    return StepProfile(base, prefill, decode, kv, pair_s=pair, knee_tokens=knee, form=form)


def _bounded_least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """x >= 0 minimising the squared relative errors of rows * x, by going round the coordinates."""
    width = len(rows[0])
    scales = [max(abs(row[i]) for row in rows) or 1.0 for i in range(width)]
    scaled = [[row[i] / scales[i] / target for i in range(width)] for row, target in zip(rows, targets, strict=True)]
    gram = [[sum(row[i] * row[j] for row in scaled) for j in range(width)] for i in range(width)]
    moment = [sum(row[i] for row in scaled) for i in range(width)]
    x = [0.0] * width
    for _ in range(20_000):
        moved = 0.0
        for i in range(width):
            if gram[i][i] <= 0:
                continue
            better = max(0.0, x[i] + (moment[i] - sum(g * value for g, value in zip(gram[i], x, strict=True))) / gram[i][i])
            moved = max(moved, abs(better - x[i]) * gram[i][i])
            x[i] = better
        if moved < 1e-12:
            break
    return [value / scale for value, scale in zip(x, scales, strict=True)]
