"""What ridges on a prompt's words and grams say of the answer's length: columns for the trees. Pure; extra `train`.

A row's column comes from weights that were fitted on other groups than its own, so that the trees see in training what
they will see in service. The weights to keep are the mean of those fits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import lsqr

from predictor.features import BUCKETS
from predictor.grams import GRAM_BUCKETS, Grams
from predictor.trees import GRAM_SCALE_MIN

Floats = NDArray[np.float64]
FOLDS = 5
STEPS = 60
SEEN_MIN = 2  # a gram of a single prompt tells nothing


@dataclass(frozen=True, slots=True)
class GramColumns:
    """Weights and scales of each bucket, as `predictor.trees` takes them, and each row's columns, one for each part."""

    weights: Floats
    scales: Floats
    columns: Floats


def word_table(words: Sequence[tuple[int, ...]]) -> sparse.csr_matrix:
    """A row for each prompt: 1 / sqrt(n) in each bucket that one of its n words is in."""
    table = _ones(words, BUCKETS)
    counts = np.array([len(one) for one in words])
    return sparse.diags_array(1.0 / np.sqrt(np.maximum(counts, 1))).dot(table).tocsr()


def fold_of(groups: Sequence[str], seed: int) -> NDArray[np.int64]:
    """Which of FOLDS parts each row is in; rows of a group are in the same one."""
    names, place = np.unique(np.array(groups), return_inverse=True)
    return np.asarray(np.random.default_rng(seed).permutation(len(names))[place] % FOLDS, dtype=np.int64)


def fitted(table: sparse.csr_matrix, target: Floats, fold: NDArray[np.int64], ridge: float) -> tuple[Floats, Floats]:
    """Weights (the mean over folds), and what each row gets by weights of the other folds."""
    weights, column = np.zeros(table.shape[1]), np.zeros(len(target))
    parts = np.unique(fold)
    for number in parts:
        there = fold == number
        found = _ridge(table[~there], target[~there], ridge)
        column[there] = table[there] @ found
        weights += found / len(parts)
    return weights, column


def of_grams(grams: Sequence[Grams], target: Floats, fold: NDArray[np.int64], ridge: float) -> GramColumns:
    """Rare grams count more (inverse document frequency), a prompt's are divided by the root of their squares' sum."""
    weights, scales, columns = np.zeros(GRAM_BUCKETS), np.zeros(GRAM_BUCKETS), []
    for part in zip(*grams, strict=True):
        table = _ones(part, GRAM_BUCKETS)
        seen = np.bincount(table.indices, minlength=GRAM_BUCKETS)
        rare = np.where(seen >= SEEN_MIN, 1.0 + np.log((1.0 + len(grams)) / (1.0 + seen)), 0.0)
        roots = np.sqrt(table.dot(rare**2) + GRAM_SCALE_MIN)
        scaled = sparse.diags_array(1.0 / roots).dot(table).dot(sparse.diags_array(rare)).tocsr()
        found, column = fitted(scaled, target, fold, ridge)
        weights += found * rare
        scales += rare**2
        columns.append(column)
    return GramColumns(weights, scales, np.column_stack(columns))


def _ones(buckets: Sequence[tuple[int, ...]], width: int) -> sparse.csr_matrix:
    counts = np.array([len(one) for one in buckets])
    starts = np.concatenate([[0], np.cumsum(counts)])
    flat = np.fromiter((bucket for one in buckets for bucket in one), np.int32, int(starts[-1]))
    return sparse.csr_matrix((np.ones(len(flat)), flat, starts), shape=(len(buckets), width))


def _ridge(table: sparse.csr_matrix, target: Floats, ridge: float) -> Floats:
    found: Floats = lsqr(table, target - target.mean(), damp=math.sqrt(ridge), iter_lim=STEPS)[0]
    return found
