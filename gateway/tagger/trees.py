"""Training of the boosted trees: quantiles of the log of an answer's tokens, as an ONNX file. Extra `train`.

Rows come from the length log or from a folder of public answers. Where rows of many workloads are trained together for
use elsewhere, a workload's own level counts only in part (`level_share`) and a model's own not at all: both are learnt
where the trees are used. An answer that was cut off is taken to be as long as those that went beyond are foretold.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import lightgbm
import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import lsqr

from gateway.tagger.tree_rows import TreeRow
from gateway.tagger.tree_writer import Ensemble, onnx_of
from predictor.features import BUCKETS, FEATURES, Cues

Floats = NDArray[np.float64]
QUANTILES = (0.1, 0.5, 0.9)
FOLDS = 4
CUT_EXCESS = 0.4  # in log tokens: what an answer that was cut off is taken to have missed at least
ROWS_MIN = 200


class TooFewRowsError(ValueError):
    """Nothing can be learnt from so few."""


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """How to train. `trees`: of each quantile. `words`: whether the words count (own traffic: yes)."""

    trees: tuple[int, int, int] = (60, 160, 60)
    leaves: int = 15
    rate: float = 0.05
    rows_per_leaf: int = 20
    words: bool = True
    words_ridge: float = 1.0
    reply_slope: float = 0.3  # of the answer's log length by that of the earlier replies, before any tree
    level_share: float = 1.0
    seed: int = 0


# For traffic that has not been seen: what carries over.
ELSEWHERE = TreeOptions((50, 120, 50), leaves=12, rows_per_leaf=60, words=False, reply_slope=0.6, level_share=0.8)


def train(rows: Sequence[TreeRow], options: TreeOptions) -> bytes:
    """An ONNX file for `predictor.trees`. Raises TooFewRowsError."""
    if len(rows) < ROWS_MIN:
        raise TooFewRowsError(f"{len(rows)} rows; at least {ROWS_MIN} are needed")
    numbers = np.array([row.cues.numbers for row in rows])
    weights = np.array([row.weight for row in rows])
    target = levelled(rows, options.level_share)
    linear = np.zeros(len(FEATURES))
    linear[FEATURES.index("reply_level")] = options.reply_slope
    target = target - numbers @ linear
    spoken: Floats | None = None
    if options.words:
        spoken, column = _words(rows, target, options)
        numbers = np.column_stack([numbers, column])
    cut = np.array([row.truncated for row in rows])
    if cut.any():
        first = _fitted(numbers, target, weights, 0.5, options).predict(numbers)
        target = np.where(cut, np.maximum(target + CUT_EXCESS, first), target)
    fitted = [_fitted(numbers, target, weights, quantile, options) for quantile in QUANTILES]
    return onnx_of([Ensemble(one.dump_model()["tree_info"]) for one in fitted], linear, spoken)


def levelled(rows: Sequence[TreeRow], share: float) -> Floats:
    """Logs of the tokens; below a share of 1, without the models' own levels and with that share of the sources'."""
    logs = np.array([math.log(max(1, row.output_tokens)) for row in rows])
    if share >= 1.0:
        return logs
    sources = np.array([row.source for row in rows])
    kinds = np.array([f"{row.source}|{row.model}" for row in rows])
    levels = {source: float(np.median(logs[sources == source])) for source in set(sources.tolist())}
    middle = float(np.mean(list(levels.values())))
    own = np.empty(len(rows))
    for kind in set(kinds.tolist()):
        chosen = kinds == kind
        own[chosen] = np.median(logs[chosen])
    of_source = np.array([levels[source] for source in sources.tolist()])
    centred: Floats = logs - own + middle + share * (of_source - middle)
    return centred


def word_table(cues: Sequence[Cues]) -> sparse.csr_matrix:
    """A row for each prompt: 1 / sqrt(n) in each bucket that one of its n words is in."""
    counts = np.array([len(one.words) for one in cues])
    starts = np.concatenate([[0], np.cumsum(counts)])
    buckets = np.fromiter((word for one in cues for word in one.words), np.int32, int(starts[-1]))
    values = np.repeat(1.0 / np.sqrt(np.maximum(counts, 1)), counts)
    return sparse.csr_matrix((values, buckets, starts), shape=(len(cues), BUCKETS))


def _words(rows: Sequence[TreeRow], target: Floats, options: TreeOptions) -> tuple[Floats, Floats]:
    """Weights of the words, and what each row's words say by weights that were fitted on other groups."""
    table = word_table([row.cues for row in rows])
    groups, place = np.unique([row.group or str(number) for number, row in enumerate(rows)], return_inverse=True)
    fold = np.random.default_rng(options.seed).permutation(len(groups))[place] % FOLDS
    column = np.zeros(len(rows))
    for number in range(FOLDS):
        there = fold == number
        column[there] = table[there] @ _ridge(table[~there], target[~there], options.words_ridge)
    return _ridge(table, target, options.words_ridge), column


def _ridge(table: sparse.csr_matrix, target: Floats, ridge: float) -> Floats:
    found: Floats = lsqr(table, target - target.mean(), damp=math.sqrt(ridge), iter_lim=60)[0]
    return found


def _fitted(numbers: Floats, target: Floats, weights: Floats, quantile: float, options: TreeOptions) -> lightgbm.Booster:
    wanted = {
        "objective": "quantile",
        "alpha": quantile,
        "num_leaves": options.leaves if quantile == 0.5 else max(4, options.leaves // 2),
        "learning_rate": options.rate if quantile == 0.5 else 2 * options.rate,
        "min_data_in_leaf": options.rows_per_leaf if quantile == 0.5 else 2 * options.rows_per_leaf,
        "feature_fraction": 0.5,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "lambda_l2": 1.0,
        "num_threads": 1,
        "deterministic": True,
        "seed": options.seed,
        "verbose": -1,
    }
    rounds = options.trees[QUANTILES.index(quantile)]
    return lightgbm.train(wanted, lightgbm.Dataset(numbers, target, weight=weights), rounds)
