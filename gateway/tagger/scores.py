"""How good predicted lengths are: the figures of the README's table, and those of the paper's rule. Pure."""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Scores:
    """Over some answers. Errors in natural logs of tokens; `pinball` is the mean over q10, q50, q90."""

    answers: int
    log_mae: float
    within_x2: float
    tau: float
    coverage_q90: float
    pinball: float
    mae_tokens: float
    acc_50: float
    acc_100: float


def score(truth: Sequence[float], quantiles: Sequence[tuple[float, float, float]]) -> Scores:
    """Log tokens as they were, and as foretold."""
    count = len(truth)
    if not count:
        return Scores(0, *[math.nan] * 8)
    middle = [q50 for _, q50, _ in quantiles]
    errors = [abs(y - q) for y, q in zip(truth, middle, strict=True)]
    tokens = [abs(math.exp(y) - math.exp(min(q, 14.0))) for y, q in zip(truth, middle, strict=True)]
    pairs = list(zip(truth, quantiles, strict=True))
    return Scores(
        count,
        sum(errors) / count,
        sum(error <= math.log(2.0) for error in errors) / count,
        tau_b(truth, middle),
        sum(y <= q[2] for y, q in pairs) / count,
        sum(_pinball(y, q) for y, q in pairs) / count,
        sum(tokens) / count,
        sum(error <= 50 for error in tokens) / count,
        sum(error <= 100 for error in tokens) / count,
    )


def _pinball(y: float, quantiles: tuple[float, float, float]) -> float:
    total = 0.0
    for share, q in zip((0.1, 0.5, 0.9), quantiles, strict=True):
        total += max(share * (y - q), (share - 1.0) * (y - q))
    return total / 3


def tau_b(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Kendall's rank correlation with ties; 0 where one side is constant."""
    order = sorted(range(len(xs)), key=lambda i: (xs[i], ys[i]))
    pairs = len(xs) * (len(xs) - 1) // 2
    tied_x = _tied([xs[i] for i in order])
    tied_y = _tied(sorted(ys))
    tied_both = _tied([(xs[i], ys[i]) for i in order])
    scale = math.sqrt((pairs - tied_x) * (pairs - tied_y))
    if not scale:
        return 0.0
    behind: list[float] = []
    swaps = 0
    for i in order:
        swaps += len(behind) - _place_after(behind, ys[i])
        insort(behind, ys[i])
    return (pairs - tied_x - tied_y + tied_both - 2 * swaps) / scale


def _place_after(ordered: Sequence[float], value: float) -> int:
    return bisect_left(ordered, math.nextafter(value, math.inf))


def _tied(ordered: Sequence[object]) -> int:
    """Pairs of equal neighbours' runs."""
    total, run = 0, 1
    for before, after in pairwise(ordered):
        run = run + 1 if before == after else 1
        total += run - 1
    return total
