"""The few statistics that reports need: quantiles, fairness, rank correlation, intervals over paired seeds. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, one-sided 90 %, for 1 to 10 degrees of freedom; beyond, the expansion below is exact to 1e-3.
T90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372)
Z90 = 1.2816


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of sorted values, linear between neighbours; NaN of nothing."""
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 = all equal, 1/n = one has all; 1 where nobody has anything."""
    square = sum(values) ** 2
    squares = sum(value * value for value in values)
    return square / (len(values) * squares) if squares else 1.0


def t90(freedom: int) -> float:
    """One-sided 90 % quantile of Student's t."""
    if freedom <= len(T90):
        return T90[freedom - 1]
    return Z90 + (Z90**3 + Z90) / (4 * freedom) + (5 * Z90**5 + 16 * Z90**3 + 3 * Z90) / (96 * freedom**2)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure over seeds: its mean, and the one-sided 90 % bounds on either side (the mean itself for one seed)."""

    mean: float
    low: float
    high: float
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """Of independent values."""
    centre = mean(values)
    if len(values) < 2:
        return Interval(centre, centre, centre, len(values))
    variance = math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
    half = t90(len(values) - 1) * math.sqrt(variance / len(values))
    return Interval(centre, centre - half, centre + half, len(values))


def ratio_of_means(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Ratio of the two means over seeds, with bounds by the delta method on pairs. NaN where theirs are all 0."""
    a, b = mean(ours), mean(theirs)
    if not b:
        return Interval(math.nan, math.nan, math.nan, len(ours))
    count = len(ours)
    if count < 2 or not a:
        return Interval(a / b, a / b, a / b, count)
    spread = math.fsum((x / a - y / b) ** 2 for x, y in zip(ours, theirs, strict=True)) / (count * (count - 1))
    factor = math.exp(t90(count - 1) * math.sqrt(spread))
    return Interval(a / b, a / b / factor, a / b * factor, count)


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 0; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            found[order[place]] = (start + end) / 2
        start = end + 1
    return found


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Rank correlation, -1 to 1; NaN where one side does not vary."""
    a, b = ranks(xs), ranks(ys)
    mean_a, mean_b = mean(a), mean(b)
    cross = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = math.fsum((x - mean_a) ** 2 for x in a) * math.fsum((y - mean_b) ** 2 for y in b)
    return cross / math.sqrt(spread) if spread else math.nan
