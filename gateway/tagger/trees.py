"""Training of the boosted trees: quantiles of the log of an answer's tokens, as an ONNX file. Extra `train`.

Rows come from the length log or from a folder of public answers. Where rows of many workloads are trained together for
use elsewhere, a workload's own level counts only in part (`level_share`) and a model's own not at all: both are learnt
where the trees are used. An answer that was cut off is taken to be as long as those that went beyond are foretold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata

from gateway.tagger import forest, tree_columns
from gateway.tagger.tree_rows import TreeRow
from gateway.tagger.tree_writer import Ensemble, onnx_of
from predictor.features import FEATURES
from predictor.trees import Stretch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
QUANTILES = (0.1, 0.5, 0.9)
CUT_EXCESS = 0.4  # in log tokens: what an answer that was cut off is taken to have missed at least
ROWS_MIN = 200
FOREST_LEAF = 5  # rows that a leaf of a randomised tree has at least, ...
FOREST_LEAVES = 800  # ... and how many leaves it has at most: a file of many rows' trees does not grow
FOREST_FEATURES = 0.5  # of all, looked at in each node


class TooFewRowsError(ValueError):
    """Nothing can be learnt from so few."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """By one draw of folds: all rows' numbers with the columns, and the weights that those are made by in service."""

    numbers: Floats
    words: Floats | None = None
    grams: tuple[Floats, Floats] | None = None  # weights and scales


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """How to train. `trees`: of each quantile. `words`: whether the words count (own traffic: yes). `middle`: the loss of the
    trees in the middle. What is said in the middle is the mean over `draws` of the folds that the columns are made by, and of
    boosted trees and randomised ones (`forest` for each draw, which count `forest_share`): each misses other answers."""

    trees: tuple[int, int, int] = (50, 133, 50)
    draws: int = 3
    forest: int = 15
    forest_share: float = 0.3
    leaves: int = 15
    rate: float = 0.06
    rows_per_leaf: int = 20
    words: bool = True
    middle: str = "huber"
    words_ridge: float = 1.0
    grams_ridge: float = 3.0
    ranked: bool = False  # trees are grown on the ranks of the lengths, as normal scores, and their sums turned back
    reply_slope: float = 0.3  # of the answer's log length by that of the earlier replies, before any tree
    level_share: float = 1.0
    seed: int = 0


# For traffic that has not been seen: what carries over.
ELSEWHERE = TreeOptions(
    (50, 120, 50),
    leaves=12,
    rate=0.05,
    rows_per_leaf=60,
    words=False,
    middle="quantile",
    draws=1,
    forest=0,
    reply_slope=0.6,
    level_share=0.8,
)
RANKS = TreeOptions(middle="quantile", ranked=True)  # conversations are ranked better so, single turns no worse
POINTS = 65  # of the line that turns ranks into lengths


@dataclass(frozen=True, slots=True)
class Grown:
    """Trees, and what they were grown on: for what is trained beside them."""

    data: bytes  # an ONNX file for `predictor.trees`
    numbers: list[Floats]  # for each draw of folds: features, and the columns as weights of other folds have them
    folds: list[Ints]
    target: Floats  # logs of tokens less `linear`; of answers that were cut off, what they were taken for
    linear: Floats  # a weight for each feature


def train(rows: Sequence[TreeRow], options: TreeOptions) -> bytes:
    """An ONNX file for `predictor.trees`. Raises TooFewRowsError."""
    return grow(rows, options).data


def grow(rows: Sequence[TreeRow], options: TreeOptions) -> Grown:
    """Raises TooFewRowsError."""
    if len(rows) < ROWS_MIN:
        raise TooFewRowsError(f"{len(rows)} rows; at least {ROWS_MIN} are needed")
    numbers = np.array([row.cues.numbers for row in rows])
    weights = np.array([row.weight for row in rows])
    target = levelled(rows, options.level_share)
    linear = np.zeros(len(FEATURES))
    linear[FEATURES.index("reply_level")] = options.reply_slope
    target = target - numbers @ linear
    grown, stretch = ranked(target) if options.ranked else (target, None)
    folds = [_fold(rows, options, draw) for draw in range(options.draws)]
    drawn = [_with_columns(rows, numbers, grown, options, fold) for fold in folds]
    cut = np.array([row.truncated for row in rows])
    if cut.any():
        first = _fitted(drawn[0].numbers, grown, weights, 0.5, options).predict(drawn[0].numbers)
        if stretch is not None:
            first = np.array([stretch(score) for score in first])
        target = np.where(cut, np.maximum(target + CUT_EXCESS, first), target)
    seen = [one.numbers for one in drawn]
    trees, stretch = ensembles(seen, target, weights, options)
    return Grown(onnx_of(trees, linear, *_kept(drawn), stretch), seen, folds, target, linear)


def ensembles(
    drawn: Sequence[Floats], target: Floats, weights: Floats, options: TreeOptions
) -> tuple[list[Ensemble], Stretch | None]:
    """Trees for the three quantiles, and what turns their sums into lengths. `drawn`: all rows' numbers, for each draw."""
    grown, stretch = ranked(target) if options.ranked else (target, None)
    low, high = [Ensemble(_dumped(_fitted(drawn[0], grown, weights, q, options))) for q in (QUANTILES[0], QUANTILES[2])]
    return [low, _middle(drawn, grown, weights, options), high], stretch


def _middle(drawn: Sequence[Floats], target: Floats, weights: Floats, options: TreeOptions) -> Ensemble:
    """What boosted trees and randomised ones say on the mean, over all draws."""
    random, leaf = np.random.default_rng(options.seed), max(FOREST_LEAF, math.ceil(len(target) / FOREST_LEAVES))
    share = options.forest_share if options.forest else 0.0
    trees: list[Mapping[str, Any]] = []
    shares: list[float] = []
    for draw, numbers in enumerate(drawn):
        boosted = _dumped(_fitted(numbers, target, weights, 0.5, replace(options, seed=options.seed + draw)))
        grown = [forest.tree(numbers, target, weights, leaf, FOREST_FEATURES, random) for _ in range(options.forest)]
        trees += [*boosted, *grown]
        shares += [(1.0 - share) / len(drawn)] * len(boosted)
        shares += [share / len(drawn) / max(1, len(grown))] * len(grown)
    return Ensemble(trees, shares)


def ranked(target: Floats) -> tuple[Floats, Stretch]:
    """Normal scores of the ranks (equals share theirs), and the way back. Where many lengths lie close together a step in
    rank is a small one in length; who ranks by length cares for the rank."""
    scores = ndtri((rankdata(target) - 0.5) / len(target))
    at = np.linspace(scores.min(), scores.max(), POINTS) if np.ptp(scores) else np.linspace(-1.0, 1.0, POINTS)
    order = np.argsort(scores)
    return scores, Stretch(tuple(at.tolist()), tuple(np.interp(at, scores[order], target[order]).tolist()))


def _with_columns(rows: Sequence[TreeRow], numbers: Floats, target: Floats, options: TreeOptions, fold: Ints) -> Drawn:
    """With what the grams say where all rows have text, or else what the words say."""
    if not options.words:
        return Drawn(numbers)
    texts = [row.grams for row in rows if row.grams is not None]
    if len(texts) == len(rows):
        grams = tree_columns.of_grams(texts, target, fold, options.grams_ridge)
        return Drawn(np.column_stack([numbers, grams.columns]), grams=(grams.weights, grams.scales))
    table = tree_columns.word_table([row.cues.words for row in rows])
    spoken, column = tree_columns.fitted(table, target, fold, options.words_ridge)
    return Drawn(np.column_stack([numbers, column]), words=spoken)


def _fold(rows: Sequence[TreeRow], options: TreeOptions, draw: int) -> Ints:
    groups = [row.group or str(number) for number, row in enumerate(rows)]
    return tree_columns.fold_of(groups, options.seed * options.draws + draw)


def _kept(drawn: Sequence[Drawn]) -> tuple[Floats | None, tuple[Floats, Floats] | None]:
    """The weights to keep: the mean over draws, of words and of grams, whose scales know of no fold."""
    words = [one.words for one in drawn if one.words is not None]
    grams = [one.grams for one in drawn if one.grams is not None]
    mean = (np.mean([weights for weights, _ in grams], axis=0), grams[0][1]) if grams else None
    return np.mean(words, axis=0) if words else None, mean


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


def _dumped(fitted: lightgbm.Booster) -> list[Mapping[str, Any]]:
    trees: list[Mapping[str, Any]] = fitted.dump_model()["tree_info"]
    return trees


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
