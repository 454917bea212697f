"""Extremely randomised trees (Geurts, Ernst, Wehenkel 2006): at each node a few features, each at a random threshold, and the
best of those. Pure; extra `train`.

Beside boosted trees they miss other answers, so that both together miss fewer. A level of a tree is grown at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """For each node of a level: the feature to look at, its limit, and whether splitting there leaves enough on both sides."""

    feature: Ints
    limit: Floats
    splits: NDArray[np.bool_]
    left: NDArray[np.bool_]  # of each row: at most the limit of its node


def tree(
    numbers: Floats, target: Floats, weights: Floats, leaf: int, share: float, random: np.random.Generator
) -> Mapping[str, Any]:
    """One, as LightGBM dumps it. `leaf`: rows that a leaf has at least; `share`: of the features, looked at in each node."""
    top: Node = {}
    level, rows, at = [top], np.arange(len(target)), np.zeros(len(target), np.int64)
    while level:
        starts = np.searchsorted(at, np.arange(len(level)))
        chosen = _chosen(numbers, target, weights, (rows, at, starts), leaf, share, random)
        weighed = np.add.reduceat(weights[rows], starts)
        values = np.add.reduceat(weights[rows] * target[rows], starts) / weighed
        level, places = _grown(level, chosen, values)
        place = places[at, np.where(chosen.left, 0, 1)]
        order = np.argsort(place, kind="stable")[int((place < 0).sum()) :]
        rows, at = rows[order], place[order]
    return {"tree_structure": top}


def _chosen(
    numbers: Floats,
    target: Floats,
    weights: Floats,
    now: tuple[Ints, Ints, Ints],
    leaf: int,
    share: float,
    random: np.random.Generator,
) -> Chosen:
    """`now`: the rows of the level's nodes, which node each is in (rising), and where each node's rows begin."""
    rows, at, starts = now
    nodes, width = len(starts), numbers.shape[1]
    looked = max(1, round(share * width))
    features = random.random((nodes, width)).argsort(axis=1)[:, :looked]
    seen = numbers[rows[:, None], features[at]]
    low, high = np.minimum.reduceat(seen, starts), np.maximum.reduceat(seen, starts)
    limits = low + (high - low) * random.random(low.shape)
    left = seen <= limits[at]
    weight = weights[rows]
    weighed, there = np.add.reduceat(weight, starts)[:, None], np.add.reduceat(left * weight[:, None], starts)
    total = np.add.reduceat(weight * target[rows], starts)[:, None]
    below = np.add.reduceat(left * (weight * target[rows])[:, None], starts)
    count = np.diff(starts, append=len(rows))[:, None]
    lefts = np.add.reduceat(left, starts, dtype=np.int64)
    enough = (lefts >= leaf) & (count - lefts >= leaf)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = np.where(enough, below**2 / there + (total - below) ** 2 / (weighed - there), -np.inf)
    best, node = gain.argmax(axis=1), np.arange(nodes)
    return Chosen(features[node, best], limits[node, best], enough[node, best], left[np.arange(len(rows)), best[at]])


def _grown(level: list[Node], chosen: Chosen, values: Floats) -> tuple[list[Node], Ints]:
    """The next level's nodes, and for each node of this one the places of its two children there, -1 for a leaf."""
    following: list[Node] = []
    places = np.full((len(level), 2), -1)
    for number, node in enumerate(level):
        if not chosen.splits[number]:
            node["leaf_value"] = float(values[number])
            continue
        places[number] = len(following), len(following) + 1
        node |= {"split_feature": int(chosen.feature[number]), "threshold": float(chosen.limit[number])}
        node["left_child"], node["right_child"] = {}, {}
        following += [node["left_child"], node["right_child"]]
    return following, places
