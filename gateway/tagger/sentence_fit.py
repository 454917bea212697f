"""Kernel ridges on prompts' vectors, and on those and what trees look at: two more columns for trees.

The kernel is exp(-d), where d is the root of a squared distance: of the vectors; or of those, the features and the columns
for words or grams, each with a weight of its own. A row's columns come from ridges that were fitted on other groups than its
own, so that the trees see in training what they will see in service. Up to `LANDMARKS_MAX` prompts are what others are
compared with, and up to `LEARNT_MAX` are learnt from, so file and time have a bound. Pure; extra `train`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
AXES_MAX = 128  # principal components of the vectors that are kept
LANDMARKS_MAX = 4096
LEARNT_MAX = 8192
FEATURES_WEIGHT = 0.2  # of the mean over the features' squared distances, each in standard deviations; the vectors' is 1
COLUMNS_WEIGHT = 0.1  # ... and over what words or grams add up to
FAR = 4.0  # standard deviations, beyond which a number counts as that far
RIDGE = 0.05
COLUMNS = 2


@dataclass(frozen=True, slots=True)
class Points:
    """Prompts by their vectors, and by the numbers that trees look at: a row each."""

    vectors: Floats
    numbers: Floats

    def rows(self, chosen: Ints) -> "Points":
        """Some of them."""
        return Points(self.vectors[chosen], self.numbers[chosen])

    def __len__(self) -> int:
        return len(self.vectors)


@dataclass(frozen=True, slots=True)
class Places:
    """How a prompt's vector and numbers become a point."""

    centre: Floats  # of the vectors
    axes: Floats  # width x components
    middle: Floats  # of each number
    spread: Floats  # ... its standard deviation
    scale: Floats  # ... and what it counts then

    def of(self, vectors: Floats, numbers: Floats) -> Points:
        """A row each."""
        far = np.clip((numbers - self.middle) / self.spread, -FAR, FAR) * self.scale
        return Points((vectors - self.centre) @ self.axes, far)


@dataclass(frozen=True, slots=True)
class Ridges:
    """What a prompt's point is told: `level`, and the landmarks' weights (a column for each ridge) by how near they are."""

    landmarks: Points
    weights: Floats
    level: float

    def __call__(self, points: Points) -> Floats:
        """A row of COLUMNS for each point."""
        kernels = near(points, self.landmarks)
        return np.column_stack([kernel @ self.weights[:, one] for one, kernel in enumerate(kernels)]) + self.level


def places(vectors: Floats, numbers: Floats, features: int) -> Places:
    """By the rows that are learnt from. `features`: how many of the numbers are features; the others are columns."""
    centre = vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(vectors - centre, full_matrices=False)
    weight = np.full(numbers.shape[1], FEATURES_WEIGHT / features)
    weight[features:] = COLUMNS_WEIGHT / max(1, numbers.shape[1] - features)
    return Places(centre, axes[:AXES_MAX].T, numbers.mean(axis=0), numbers.std(axis=0) + 1e-9, np.sqrt(weight))


def near(points: Points, others: Points) -> tuple[Floats, Floats]:
    """Both kernels: 1 for two that are alike."""
    apart = _squares(points.vectors, others.vectors)
    return np.exp(-np.sqrt(apart)), np.exp(-np.sqrt(apart + _squares(points.numbers, others.numbers)))


def _squares(points: Floats, others: Floats) -> Floats:
    found: Floats = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * points @ others.T
    return np.maximum(found, 0.0)


def ridges(points: Points, target: Floats) -> Ridges:
    """Fitted on the first LEARNT_MAX; exact while those are no more than LANDMARKS_MAX."""
    target = target[:LEARNT_MAX]
    landmarks = points.rows(np.arange(min(len(points), LANDMARKS_MAX)))
    learnt, level = points.rows(np.arange(len(target))), float(target.mean())
    left = target - level
    between = near(landmarks, landmarks)
    if len(landmarks) == len(learnt):
        return Ridges(landmarks, np.column_stack([_solved(one + RIDGE * np.eye(len(one)), left) for one in between]), level)
    found = []
    for kernel, one in zip(near(learnt, landmarks), between, strict=True):
        found.append(_solved(kernel.T @ kernel + RIDGE * one + 1e-8 * np.eye(len(one)), kernel.T @ left))
    return Ridges(landmarks, np.column_stack(found), level)


def _solved(system: Floats, right: Floats) -> Floats:
    solved: Floats = cho_solve(cho_factor(system, overwrite_a=True), right)
    return solved


def columns(points: Points, target: Floats, fold: Ints, kept: Ridges) -> Floats:
    """What each row is told by ridges on the other folds; those after the first LEARNT_MAX, which `kept` never saw, by that."""
    learnt = np.arange(len(points)) < LEARNT_MAX
    told = np.zeros((len(points), COLUMNS))
    if not learnt.all():
        told[~learnt] = kept(points.rows(np.flatnonzero(~learnt)))
    for number in np.unique(fold[learnt]):
        there = learnt & (fold == number)
        others = np.flatnonzero(learnt & ~there)
        told[there] = ridges(points.rows(others), target[others])(points.rows(np.flatnonzero(there)))
    return told
