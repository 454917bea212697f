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

from gateway.tagger import tree_columns
from gateway.tagger.tree_rows import TreeRow
from gateway.tagger.tree_writer import Ensemble, onnx_of
from predictor.features import FEATURES

Floats = NDArray[np.float64]
QUANTILES = (0.1, 0.5, 0.9)
CUT_EXCESS = 0.4  # in log tokens: what an answer that was cut off is taken to have missed at least
ROWS_MIN = 200


class TooFewRowsError(ValueError):
    """Nothing can be learnt from so few."""


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """How to train. `trees`: of each quantile. `words`: whether the words count (own traffic: yes). `middle`: the loss of the
    trees in the middle; Huber's ranks answers better than the median's."""

    trees: tuple[int, int, int] = (50, 200, 50)
    leaves: int = 15
    rate: float = 0.04
    rows_per_leaf: int = 20
    words: bool = True
    middle: str = "huber"
    words_ridge: float = 1.0
    grams_ridge: float = 3.0
    reply_slope: float = 0.3  # of the answer's log length by that of the earlier replies, before any tree
    level_share: float = 1.0
    seed: int = 0


# For traffic that has not been seen: what carries over.
ELSEWHERE = TreeOptions(
    (50, 120, 50), leaves=12, rate=0.05, rows_per_leaf=60, words=False, middle="quantile", reply_slope=0.6, level_share=0.8
)


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
    numbers, spoken, grams = _with_columns(rows, numbers, target, options)
    cut = np.array([row.truncated for row in rows])
    if cut.any():
        first = _fitted(numbers, target, weights, 0.5, options).predict(numbers)
        target = np.where(cut, np.maximum(target + CUT_EXCESS, first), target)
    fitted = [_fitted(numbers, target, weights, quantile, options) for quantile in QUANTILES]
    return onnx_of([Ensemble(one.dump_model()["tree_info"]) for one in fitted], linear, spoken, grams)


def _with_columns(
    rows: Sequence[TreeRow], numbers: Floats, target: Floats, options: TreeOptions
) -> tuple[Floats, Floats | None, tuple[Floats, Floats] | None]:
    """The numbers, with what the grams say where all rows have text, or else what the words say; weights of words, of grams."""
    if not options.words:
        return numbers, None, None
    fold = tree_columns.fold_of([row.group or str(number) for number, row in enumerate(rows)], options.seed)
    texts = [row.grams for row in rows if row.grams is not None]
    if len(texts) == len(rows):
        grams = tree_columns.of_grams(texts, target, fold, options.grams_ridge)
        return np.column_stack([numbers, grams.columns]), None, (grams.weights, grams.scales)
    table = tree_columns.word_table([row.cues.words for row in rows])
    spoken, column = tree_columns.fitted(table, target, fold, options.words_ridge)
    return np.column_stack([numbers, column]), spoken, None


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


def _fitted(numbers: Floats, target: Floats, weights: Floats, quantile: float, options: TreeOptions) -> lightgbm.Booster:
    wanted = {
        "objective": options.middle if quantile == 0.5 else "quantile",
        "alpha": quantile,
        "num_leaves": options.leaves if quantile == 0.5 else max(4, options.leaves // 2),
        "learning_rate": options.rate if quantile == 0.5 else 0.1,
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
