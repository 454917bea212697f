"""Randomised trees: what they hold, what they tell, the same for the same seed. Run by `make test-training`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gateway.tagger.forest import tree
from gateway.tagger.tree_writer import Ensemble, onnx_of
from predictor.features import FEATURES, Cues
from predictor.trees import Trees

ROWS = 400
LEAF = 5


def told(node: Mapping[str, Any], numbers: np.ndarray) -> float:
    """One row's way down."""
    while "leaf_value" not in node:
        node = node["left_child" if numbers[node["split_feature"]] <= node["threshold"] else "right_child"]
    return float(node["leaf_value"])


def leaves(node: Mapping[str, Any], rows: np.ndarray, numbers: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """Each leaf's value and its rows."""
    if "leaf_value" in node:
        yield node["leaf_value"], rows
        return
    left = numbers[rows, node["split_feature"]] <= node["threshold"]
    yield from leaves(node["left_child"], rows[left], numbers)
    yield from leaves(node["right_child"], rows[~left], numbers)


def drawn(seed: int, width: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(ROWS, width))
    return numbers, numbers[:, 0] + 0.5 * np.sign(numbers[:, 1]) + rng.normal(0.0, 0.1, ROWS), rng.uniform(0.5, 2.0, ROWS)


def test_a_leaf_says_the_weighed_mean_of_its_rows_which_are_enough() -> None:
    numbers, target, weights = drawn(1)
    found = tree(numbers, target, weights, LEAF, 0.5, np.random.default_rng(2))
    parts = list(leaves(found["tree_structure"], np.arange(ROWS), numbers))
    assert sorted(np.concatenate([rows for _, rows in parts]).tolist()) == list(range(ROWS))
    assert len(parts) > 20
    for value, rows in parts:
        assert len(rows) >= LEAF
        assert value == pytest.approx(float(np.average(target[rows], weights=weights[rows])))


def test_many_tell_rows_that_none_has_seen() -> None:
    numbers, target, weights = drawn(3)
    rng = np.random.default_rng(4)
    trees = [tree(numbers, target, weights, LEAF, 0.5, rng)["tree_structure"] for _ in range(30)]
    asked, truth, _ = drawn(5)
    means = np.array([np.mean([told(one, row) for one in trees]) for row in asked])
    assert float(np.abs(means - truth).mean()) < 0.5 * float(np.abs(truth - np.median(truth)).mean())
    assert float(np.corrcoef(means, truth)[0, 1]) > 0.9


def test_the_same_seed_grows_the_same_tree_and_another_seed_another() -> None:
    numbers, target, weights = drawn(6)
    one, same, other = (tree(numbers, target, weights, LEAF, 0.5, np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert one == same
    assert one != other


def test_where_nothing_can_be_split_there_is_one_leaf() -> None:
    alike = np.ones((ROWS, 3))
    found = tree(alike, np.arange(ROWS, dtype=float), np.ones(ROWS), LEAF, 1.0, np.random.default_rng(0))
    assert found == {"tree_structure": {"leaf_value": pytest.approx((ROWS - 1) / 2)}}
    few = tree(np.arange(9.0)[:, None], np.arange(9.0), np.ones(9), LEAF, 1.0, np.random.default_rng(0))
    assert set(few["tree_structure"]) == {"leaf_value"}


def test_the_file_counts_each_tree_by_its_share() -> None:
    numbers, target, weights = drawn(9, len(FEATURES))
    rng = np.random.default_rng(10)
    trees = [tree(numbers, target, weights, LEAF, 0.5, rng) for _ in range(4)]
    shares = (0.4, 0.3, 0.2, 0.1)
    flat = Ensemble([{"tree_structure": {"leaf_value": 0.0}}])
    top = Ensemble([{"tree_structure": {"leaf_value": 9.0}}])
    built = Trees.from_onnx(onnx_of([flat, Ensemble(trees, shares), top], np.zeros(len(FEATURES)), None))
    for row in numbers[:50].astype(np.float32).astype(float):
        wanted = sum(share * told(one["tree_structure"], row) for one, share in zip(trees, shares, strict=True))
        low, middle, high = sorted((0.0, wanted, 9.0))
        assert built.quantiles(Cues(tuple(row.tolist()))) == pytest.approx((low, middle, high), abs=1e-5)
