"""How good predictions of lengths are: errors and ranking, overall and within a workload, with bootstrap intervals.

All in natural logs of tokens. "Within" is the mean over sources of at least 100 rows, which takes out the easy gain from
telling workloads apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import kendalltau, rankdata

LONG = np.log(400)
WITHIN_ROWS_MIN = 100
DRAWS = 300
LEVELS = (0.1, 0.5, 0.9)
Measure = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True, slots=True)
class Scores:
    """One predictor on one split."""

    log_mae: float
    x2: float
    tau: float
    pair: float
    tau_within: float
    auc400: float
    mae: float  # in tokens, as the paper scores
    acc50: float  # share that is off by at most 50 tokens
    acc100: float


def scores(truth: np.ndarray, told: np.ndarray, sources: np.ndarray) -> Scores:
    """Of point predictions (medians)."""
    errors = np.abs(truth - told)
    tokens = np.abs(np.exp(truth) - np.exp(told))
    return Scores(
        float(errors.mean()),
        float((errors <= np.log(2)).mean()),
        tau(truth, told),
        pairs(truth, told),
        within(truth, told, sources),
        auc(truth > LONG, told),
        float(tokens.mean()),
        float((tokens <= 50).mean()),
        float((tokens <= 100).mean()),
    )


def tau(truth: np.ndarray, told: np.ndarray) -> float:
    """Kendall's tau-b; 0 for a constant."""
    if np.ptp(told) == 0 or np.ptp(truth) == 0:
        return 0.0
    return float(kendalltau(truth, told).statistic)


def within(truth: np.ndarray, told: np.ndarray, sources: np.ndarray) -> float:
    """Mean tau over sources of enough rows."""
    parts = [sources == name for name in np.unique(sources)]
    return float(np.mean([tau(truth[part], told[part]) for part in parts if part.sum() >= WITHIN_ROWS_MIN] or [0.0]))


def pairs(truth: np.ndarray, told: np.ndarray) -> float:
    """Share of random pairs of unlike truth that are ordered rightly; a tie in the prediction counts one half."""
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, len(truth), (2, 200_000))
    unlike = truth[left] != truth[right]
    agree = np.sign(truth[left] - truth[right])[unlike] * np.sign(told[left] - told[right])[unlike]
    return float((agree > 0).mean() + 0.5 * (agree == 0).mean())


def auc(positive: np.ndarray, told: np.ndarray) -> float:
    """Area under the ROC curve; NaN if all are alike."""
    count = int(positive.sum())
    if count in (0, len(positive)):
        return float("nan")
    ranks = rankdata(told)
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def pinball(truth: np.ndarray, quantiles: np.ndarray) -> float:
    """Mean loss over q10, q50, q90 (columns)."""
    left = truth[:, None] - quantiles
    levels = np.array(LEVELS)
    return float(np.maximum(levels * left, (levels - 1.0) * left).mean())


def gain(truth: np.ndarray, ours: np.ndarray, theirs: np.ndarray, groups: np.ndarray) -> tuple[float, float, float]:
    """(5th percentile, middle, 95th percentile) of the gain in tau, groups drawn anew: the ends of a 90 % interval."""
    found = resampled([ours, theirs], truth, groups)
    gains = found[0] - found[1]
    low, high = np.percentile(gains, [5, 95])
    return float(low), float(tau(truth, ours) - tau(truth, theirs)), float(high)


def interval(measure: Measure, truth: np.ndarray, told: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """The ends of a 90 % interval of one prediction's figure, groups drawn anew."""
    low, high = np.percentile(resampled([told], truth, groups, measure)[0], [5, 95])
    return float(low), float(high)


def log_mae(truth: np.ndarray, told: np.ndarray) -> float:
    """Mean absolute error."""
    return float(np.abs(truth - told).mean())


def resampled(predictions: Sequence[np.ndarray], truth: np.ndarray, groups: np.ndarray, measure: Measure = tau) -> np.ndarray:
    """Tau (or another figure) of each prediction on each of DRAWS draws of groups."""
    rng = np.random.default_rng(1)
    _, place = np.unique(groups, return_inverse=True)
    order = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[order], np.arange(place.max() + 2))
    result = np.empty((len(predictions), DRAWS))
    for draw in range(DRAWS):
        chosen = rng.integers(0, place.max() + 1, place.max() + 1)
        rows = np.concatenate([order[bounds[group] : bounds[group + 1]] for group in chosen])
        for number, told in enumerate(predictions):
            result[number, draw] = measure(truth[rows], told[rows])
    return result


def table(title: str, rows: dict[str, Scores]) -> str:
    """For people."""
    lines = [f"\n{title}", f"{'':44s} log-MAE    x2     tau    pair  within  auc400    MAE Acc-50 Acc-100"]
    for name, one in rows.items():
        figures = f"{one.log_mae:7.3f} {one.x2:6.3f} {one.tau:7.3f} {one.pair:7.3f} {one.tau_within:7.3f} {one.auc400:7.3f}"
        lines.append(f"{name:44s} {figures} {one.mae:6.0f} {one.acc50:6.3f} {one.acc100:7.3f}")
    return "\n".join(lines)
