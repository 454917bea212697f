"""Writes boosted trees as the ONNX file that `predictor.trees` reads and onnxruntime runs. Extra `train`.

Inputs: `numbers` (1 x features) and, where they count, `words` or the parts of `Grams` (buckets); output: `quantiles` (1 x 3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from predictor.features import FEATURES
from predictor.grams import Grams
from predictor.treefile import BRANCH, FEATURES_KEY, LEAF
from predictor.trees import (
    GRAM_SCALE_MIN,
    GRAM_SCALES,
    GRAM_WEIGHTS,
    LINEAR,
    SHIFT,
    STRETCH_AT,
    STRETCH_TO,
    TARGETS,
    WORD_WEIGHTS,
    Stretch,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The trees of one target, as LightGBM dumps them. `shares`: what each counts; empty: all as they are."""

    trees: Sequence[Mapping[str, Any]]
    shares: Sequence[float] = ()


@dataclass(slots=True)
class _Table:
    """The node's attributes, one list for each."""

    ints: dict[str, list[int]] = field(default_factory=dict)
    floats: dict[str, list[float]] = field(default_factory=dict)
    modes: list[str] = field(default_factory=list)

    def add(self, tree: int, node: int, branch: tuple[int, float, int, int] | None) -> None:
        feature, limit, low, high = branch or (0, 0.0, 0, 0)
        self.modes.append(BRANCH if branch else LEAF)
        values = {"treeids": tree, "nodeids": node, "featureids": feature, "truenodeids": low, "falsenodeids": high}
        for name, value in values.items():
            self.ints.setdefault(f"nodes_{name}", []).append(value)
        self.floats.setdefault("nodes_values", []).append(limit)

    def attributes(self) -> dict[str, Any]:
        """By their names in the file."""
        return {"n_targets": TARGETS, "nodes_modes": self.modes, **self.ints, **self.floats}

    def leaf(self, tree: int, node: int, target: int, value: float) -> None:
        for name, number in {"treeids": tree, "nodeids": node, "ids": target}.items():
            self.ints.setdefault(f"target_{name}", []).append(number)
        self.floats.setdefault("target_weights", []).append(value)


def onnx_of(
    ensembles: Sequence[Ensemble],
    linear: Floats,
    words: Floats | None,
    grams: tuple[Floats, Floats] | None = None,
    stretch: Stretch | None = None,
) -> bytes:
    """The file. `linear`: a weight for each feature; `words`: one for each bucket, or None; `grams`: weights and scales;
    `stretch`: what makes logs of tokens of the trees' sums, if those are none already."""
    tensors = [
        numpy_helper.from_array(linear.astype(np.float32).reshape(-1, 1), LINEAR),
        numpy_helper.from_array(np.zeros(TARGETS, np.float32), SHIFT),
    ]
    inputs = [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, [1, len(FEATURES)])]
    nodes, columns = [], ["numbers"]
    tensors.append(numpy_helper.from_array(np.array([1, 1], np.int64), "one_by_one"))
    if words is not None:
        tensors.append(_column(WORD_WEIGHTS, words))
        inputs.append(helper.make_tensor_value_info("words", TensorProto.INT64, ["n"]))
        nodes += _word_nodes()
        columns.append("spoken")
    if grams is not None:
        tensors += [_column(GRAM_WEIGHTS, grams[0]), _column(GRAM_SCALES, grams[1])]
        tensors.append(numpy_helper.from_array(np.array([[GRAM_SCALE_MIN]], np.float32), "gram_scale_min"))
        for part in Grams._fields:
            inputs.append(helper.make_tensor_value_info(part, TensorProto.INT64, [f"n_{part}"]))
            nodes += _gram_nodes(part)
            columns.append(f"{part}_weighed")
    grown, stretched = tree_parts(ensembles, stretch)
    tensors += stretched
    nodes += [
        helper.make_node("Concat", columns, ["seen"], axis=1),
        *grown,
        helper.make_node("MatMul", ["numbers", LINEAR], ["straight"]),
        helper.make_node("Add", ["grown" if stretch is None else "stretched", "straight"], ["sum"]),
        helper.make_node("Add", ["sum", SHIFT], ["quantiles"]),
    ]
    output = helper.make_tensor_value_info("quantiles", TensorProto.FLOAT, [1, TARGETS])
    graph = helper.make_graph(nodes, "lengths", inputs, [output], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="leeway")
    helper.set_model_props(model, {FEATURES_KEY: " ".join(FEATURES)})
    onnx.checker.check_model(model)
    written: bytes = model.SerializeToString()
    return written


def tree_parts(ensembles: Sequence[Ensemble], stretch: Stretch | None) -> tuple[list[Any], list[TensorProto]]:
    """Nodes and tensors from `seen` (1 x all that is looked at) to `grown` (1 x 3), or `stretched` where there is a line."""
    attributes = _table_of(ensembles).attributes()
    trees = helper.make_node("TreeEnsembleRegressor", ["seen"], ["grown"], domain="ai.onnx.ml", **attributes)
    return ([trees], []) if stretch is None else ([trees, *_stretch_nodes()], _stretch_tensors(stretch))


def _column(name: str, values: Floats) -> TensorProto:
    return numpy_helper.from_array(values.astype(np.float32).reshape(-1, 1), name)


def _word_nodes() -> list[Any]:
    return [
        helper.make_node("Gather", [WORD_WEIGHTS, "words"], ["word_said"], axis=0),
        helper.make_node("ReduceSum", ["word_said"], ["word_sum"], keepdims=1),
        helper.make_node("Shape", ["words"], ["count"]),
        helper.make_node("Cast", ["count"], ["count_float"], to=TensorProto.FLOAT),
        helper.make_node("Sqrt", ["count_float"], ["root"]),
        helper.make_node("Div", ["word_sum", "root"], ["word_mean"]),
        helper.make_node("Reshape", ["word_mean", "one_by_one"], ["spoken"]),
    ]


def _gram_nodes(part: str) -> list[Any]:
    return [
        helper.make_node("Gather", [GRAM_WEIGHTS, part], [f"{part}_said"], axis=0),
        helper.make_node("ReduceSum", [f"{part}_said"], [f"{part}_sum"], keepdims=1),
        helper.make_node("Gather", [GRAM_SCALES, part], [f"{part}_squares"], axis=0),
        helper.make_node("ReduceSum", [f"{part}_squares"], [f"{part}_square"], keepdims=1),
        helper.make_node("Add", [f"{part}_square", "gram_scale_min"], [f"{part}_above"]),
        helper.make_node("Sqrt", [f"{part}_above"], [f"{part}_root"]),
        helper.make_node("Div", [f"{part}_sum", f"{part}_root"], [f"{part}_mean"]),
        helper.make_node("Reshape", [f"{part}_mean", "one_by_one"], [f"{part}_weighed"]),
    ]


def _stretch_tensors(stretch: Stretch) -> list[TensorProto]:
    """Its points, and what adds up to it: the first piece's slope all along, and from each point on by how much it changes."""
    at, to = np.array(stretch.at), np.array(stretch.to)
    slopes = np.diff(to) / np.diff(at)
    floors = np.zeros((1, len(slopes)))
    floors[0, 0] = -1e9
    made = {
        STRETCH_AT: at,
        STRETCH_TO: to,
        "stretch_from": at[:-1].reshape(1, -1),
        "stretch_floors": floors,
        "stretch_turns": np.diff(slopes, prepend=0.0).reshape(-1, 1),
        "stretch_first": to[:1].reshape(1, 1),
    }
    tensors = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in made.items()]
    shapes = {"down": [TARGETS, 1], "across": [1, TARGETS]}
    return tensors + [numpy_helper.from_array(np.array(shape, np.int64), name) for name, shape in shapes.items()]


def _stretch_nodes() -> list[Any]:
    return [
        helper.make_node("Reshape", ["grown", "down"], ["scores"]),
        helper.make_node("Sub", ["scores", "stretch_from"], ["stretch_past"]),
        helper.make_node("Max", ["stretch_past", "stretch_floors"], ["stretch_reached"]),
        helper.make_node("MatMul", ["stretch_reached", "stretch_turns"], ["stretch_risen"]),
        helper.make_node("Add", ["stretch_risen", "stretch_first"], ["stretch_sum"]),
        helper.make_node("Reshape", ["stretch_sum", "across"], ["stretched"]),
    ]


def _table_of(ensembles: Sequence[Ensemble]) -> _Table:
    table = _Table()
    tree = 0
    for target, ensemble in enumerate(ensembles):
        for dumped, share in zip(ensemble.trees, ensemble.shares or [1.0] * len(ensemble.trees), strict=True):
            _add(table, tree, (target, share), dumped["tree_structure"])
            tree += 1
    return table


def _add(table: _Table, tree: int, of: tuple[int, float], top: Mapping[str, Any]) -> None:
    """All nodes of a tree, each before its children. `of`: the target, and what the tree counts."""
    target, share = of
    todo: list[tuple[int, Mapping[str, Any]]] = [(0, top)]
    count = 1
    while todo:
        number, node = todo.pop()
        if "leaf_value" in node and "split_feature" not in node:
            table.add(tree, number, None)
            table.leaf(tree, number, target, share * float(node["leaf_value"]))
            continue
        low, high = count, count + 1
        count += 2
        table.add(tree, number, (int(node["split_feature"]), float(np.float32(node["threshold"])), low, high))
        todo += [(high, node["right_child"]), (low, node["left_child"])]
