"""What a model does when only a part of its layers lies on the GPU. Pure.

Seconds of one token add up over layers, so the decode rate at fraction f of the layers is harmonic, not linear:

    T(f) = T1 / (f + (1 - f) r),   r = T1 / T0,   r(ctx) = (c0 + c1 ctx) / (g0 + g1 ctx)

with T1 and T0 the rates all on the GPU and all on the CPU; in seconds per token f (g0 + g1 ctx) + (1 - f)(c0 + c1 ctx),
linear in four coefficients, which is how it is refined. Two measurements, one at either end, fix it. Memory is reckoned
here too, since a fraction is chosen to fit. It must never assume that half of the layers give half of the rate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.belief import LinearBelief
from predictor.kept import Kept, KeptError, State

NOISE = 0.05  # relative, of one measured rate
SERVED_NOISE = 0.15  # ... of one that a stream in service had
OUTLIER = 0.5  # relative: further off than that, beside what is not known, one alone counts for nothing
ROUNDED = 1e-6
FAR = 100.0  # times a coefficient's first value: what was learnt is refused beyond that
PRIOR_SD = 0.5  # relative, of a coefficient that was only guessed
MEASURED_SD = 0.05
LEAST_BASE = 0.1  # of a token's time, what context cannot explain


@dataclass(frozen=True, slots=True)
class OffloadCurve:
    """Seconds per generated token on either side, and what each token of context adds; seconds per prompt token."""

    gpu_s: float
    cpu_s: float
    gpu_ctx_s: float = 0.0
    cpu_ctx_s: float = 0.0
    gpu_prompt_s: float = 0.0
    cpu_prompt_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.gpu_s, self.cpu_s) <= 0 or min(self.gpu_ctx_s, self.cpu_ctx_s, self.gpu_prompt_s, self.cpu_prompt_s) < 0:
            raise ValueError("seconds per token must be above 0, the others not negative")

    def ratio(self, context_tokens: float = 0.0) -> float:
        """r: how many times as fast the GPU is."""
        return (self.cpu_s + self.cpu_ctx_s * context_tokens) / (self.gpu_s + self.gpu_ctx_s * context_tokens)

    def token_s(self, fraction: float, context_tokens: float = 0.0) -> float:
        """Seconds of one token of one sequence."""
        gpu = self.gpu_s + self.gpu_ctx_s * context_tokens
        return fraction * gpu + (1 - fraction) * (self.cpu_s + self.cpu_ctx_s * context_tokens)

    def rate_per_s(self, fraction: float, context_tokens: float = 0.0) -> float:
        """Tokens per second of one sequence."""
        return 1 / self.token_s(fraction, context_tokens)

    def slowdown(self, fraction: float) -> float:
        """How many times as long a token takes as with all layers on the GPU."""
        return self.token_s(fraction) / self.token_s(1.0)

    def ttft_s(self, fraction: float, prompt_tokens: int) -> float:
        """Seconds from an empty engine to the first token."""
        per_token = fraction * self.gpu_prompt_s + (1 - fraction) * self.cpu_prompt_s
        return prompt_tokens * per_token + self.token_s(fraction, prompt_tokens)


def from_ends(gpu_rate_per_s: float, cpu_rate_per_s: float) -> OffloadCurve:
    """The curve through two measured rates, all on the GPU and all on the CPU (above 0)."""
    return OffloadCurve(1 / gpu_rate_per_s, 1 / cpu_rate_per_s)


@dataclass(frozen=True, slots=True)
class MeasuredEnd:
    """What was measured with all layers on one side: contexts and seconds per generated token, prompts and seconds to the
    first token; one or more of each, with their tokens."""

    token_s: tuple[tuple[float, float], ...]
    ttft_s: tuple[tuple[float, float], ...] = ()

    def line(self) -> tuple[float, float, float]:
        """Seconds of a token without context, what each token of context adds, and seconds of a prompt token."""
        base_s, ctx_s = _line(self.token_s)
        if base_s < LEAST_BASE * min(seconds for _, seconds in self.token_s):
            base_s, ctx_s = sum(seconds for _, seconds in self.token_s) / len(self.token_s), 0.0
        _, per_prompt_s = _line(self.ttft_s) if self.ttft_s else (0.0, 0.0)
        return base_s, ctx_s, max(per_prompt_s - ctx_s, 0.0)


def from_measured(gpu: MeasuredEnd, cpu: MeasuredEnd) -> OffloadCurve:
    """The curve through what was measured with all layers on the GPU and with none."""
    (gpu_s, gpu_ctx_s, gpu_prompt_s), (cpu_s, cpu_ctx_s, cpu_prompt_s) = gpu.line(), cpu.line()
    return OffloadCurve(gpu_s, cpu_s, gpu_ctx_s, cpu_ctx_s, gpu_prompt_s, cpu_prompt_s)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Height at 0 and slope of the line through the points: flat where it would fall, from 0 where it would start below."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    if slope <= 0:
        return mean_y, 0.0
    if slope * mean_x > mean_y:
        return 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return mean_y - slope * mean_x, slope


class OffloadFit:
    """A curve that follows what is measured. `measured` says that the first one came from both ends, not from a guess."""

    def __init__(self, curve: OffloadCurve, measured: bool = False) -> None:
        self._first = curve
        sd = MEASURED_SD if measured else PRIOR_SD
        per_ctx = max(curve.gpu_s, curve.cpu_s) * 1e-4  # a context of 10,000 tokens may double a token's time
        means = (curve.gpu_s, curve.cpu_s, curve.gpu_ctx_s, curve.cpu_ctx_s)
        sds = (curve.gpu_s * sd, curve.cpu_s * sd, max(curve.gpu_ctx_s, per_ctx) * sd, max(curve.cpu_ctx_s, per_ctx) * sd)
        self._belief = LinearBelief(means, sds, keep=0.99)
        self._odd: dict[int, float] = {}  # by quarters of the layers: seconds of the last token served, if it was an outlier

    @property
    def seen(self) -> int:
        """Rates that it has learnt from."""
        return self._belief.seen

    def observe(self, fraction: float, rate_per_s: float, context_tokens: float = 0.0) -> None:
        """A sequence decoded at so many tokens per second."""
        if rate_per_s > 0:
            self._belief.observe(_terms(fraction, context_tokens), 1 / rate_per_s, NOISE / rate_per_s)

    def served(self, fraction: float, rate_per_s: float, context_tokens: float = 0.0) -> bool:
        """A stream in service decoded at so many tokens per second. One that is far off counts only if the one before it, with
        about as many layers, was off to the same side, and then as the nearer of both; whether it counted."""
        terms, token_s = _terms(fraction, context_tokens), 1 / rate_per_s
        guessed = self._belief.predict(terms)
        off_s, quarter = token_s - guessed.mean, round(fraction * 4)
        before_s = self._odd.pop(quarter, guessed.mean) - guessed.mean
        if abs(off_s) > OUTLIER * max(guessed.mean, 0.0) + 2 * guessed.sd:
            self._odd[quarter] = token_s
            if before_s * off_s <= 0:
                return False
            token_s = guessed.mean + min(off_s, before_s, key=abs)
        self._belief.observe(terms, token_s, SERVED_NOISE * max(token_s, guessed.mean))
        return True

    def at(self, context_tokens: float) -> OffloadCurve:
        """As believed now for answers with that many tokens of context, which it holds for alone."""
        first = self._first
        gpu_s = self._belief.predict(_terms(1.0, context_tokens)).mean
        cpu_s = self._belief.predict(_terms(0.0, context_tokens)).mean
        return OffloadCurve(max(gpu_s, first.gpu_s * 0.05), max(cpu_s, first.cpu_s * 0.05))

    def state(self) -> State:
        """For `restore`."""
        return self._belief.state()

    def restore(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError, also for seconds that make no sense beside the first
        curve's; then this one is good for nothing."""
        if not _may_be(kept.numbers("cov", 16, 16, -1e18, 1e18)):
            raise KeptError("cov is none")
        self._belief.restore(kept)
        first, (gpu_s, cpu_s, gpu_ctx_s, cpu_ctx_s) = self._first, self._belief.means
        most_s = max(first.gpu_s, first.cpu_s) * FAR
        if not (max(gpu_s, cpu_s) <= most_s and min(gpu_s, cpu_s) >= -most_s and max(abs(gpu_ctx_s), abs(cpu_ctx_s)) <= most_s):
            raise KeptError("mean is far from the rates that it was learnt from")

    def curve(self) -> OffloadCurve:
        """As believed now; coefficients that came out negative are held at their least."""
        gpu_s, cpu_s, gpu_ctx_s, cpu_ctx_s = self._belief.means
        first = self._first
        return OffloadCurve(
            max(gpu_s, first.gpu_s * 0.05),
            max(cpu_s, first.cpu_s * 0.05),
            max(gpu_ctx_s, 0.0),
            max(cpu_ctx_s, 0.0),
            first.gpu_prompt_s,
            first.cpu_prompt_s,
        )

    def uncertainty(self, fraction: float, context_tokens: float = 0.0) -> float:
        """Relative standard deviation of the rate there."""
        guessed = self._belief.predict(_terms(fraction, context_tokens))
        return guessed.sd / max(guessed.mean, 1e-9)


def _may_be(cov: Sequence[float], size: int = 4) -> bool:
    """Whether that is a covariance: symmetric, and no direction has a variance below 0 (rows are eliminated one by one)."""
    sds = [math.sqrt(max(cov[i * (size + 1)], 0.0)) or 1.0 for i in range(size)]
    left = [[cov[i * size + j] / (sds[i] * sds[j]) for j in range(size)] for i in range(size)]
    if any(abs(left[i][j] - left[j][i]) > ROUNDED for i in range(size) for j in range(i)):
        return False
    for at in range(size):
        if left[at][at] < -ROUNDED:
            return False
        for row in left[at + 1 :] if left[at][at] > ROUNDED else ():
            share = row[at] / left[at][at]
            for j in range(at, size):
                row[j] -= share * left[at][j]
    return True


def _terms(fraction: float, context_tokens: float) -> tuple[float, float, float, float]:
    rest = 1 - fraction
    return (fraction, rest, fraction * context_tokens, rest * context_tokens)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model takes of a device: weights, KV per token, and what its engine needs beside (activations, graphs)."""

    weight_bytes: float
    kv_bytes_per_token: float = 0.0
    layers: int = 1
    overhead_bytes: float = 0.0

    def resident_bytes(self, fraction: float, kv_tokens: float) -> float:
        """On the device, with that fraction of the layers there, their KV with them."""
        return self.overhead_bytes + fraction * (self.weight_bytes + self.kv_bytes_per_token * kv_tokens)

    def fits(self, free_bytes: float, fraction: float = 1.0, kv_tokens: float = 0.0) -> bool:
        """Whether it does."""
        return self.resident_bytes(fraction, kv_tokens) <= free_bytes

    def largest_fraction(self, free_bytes: float, kv_tokens: float = 0.0) -> float:
        """The largest part of the layers that fits, in whole layers: 0 where not even the overhead does."""
        whole = self.weight_bytes + self.kv_bytes_per_token * kv_tokens
        room = (free_bytes - self.overhead_bytes) / whole if whole else 1.0
        return min(max(int(room * self.layers + 1e-9), 0), self.layers) / self.layers
