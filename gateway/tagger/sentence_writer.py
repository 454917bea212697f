"""Puts a head on a sentence encoder's body: kernel ridges, and trees that look at what those say. One graph, which the tagger's
process asks. Extra `train`.

Inputs: those of the body, and `numbers` (1 x what the trees beside it look at); output: `quantiles` (1 x 3).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, compose, helper, numpy_helper

from gateway.tagger.sentence_body import VECTOR
from gateway.tagger.sentence_fit import COLUMNS, FAR, Places, Ridges
from gateway.tagger.tree_writer import Ensemble, tree_parts
from predictor.trees import TARGETS, Stretch

Floats = NDArray[np.float64]


def with_head(
    body: onnx.ModelProto,
    places: Places,
    ridges: Ridges,
    trees: tuple[Sequence[Ensemble], Stretch | None],
    linear: Floats,
    metadata: Mapping[str, str],
) -> bytes:
    """The file. `trees` look at the numbers, then at what the ridges say; `linear`: what a number adds as it is."""
    made = compose.add_prefix(body, "body_", rename_inputs=False, rename_outputs=False)
    graph = made.graph
    grown, tensors = tree_parts(*trees)
    graph.initializer.extend([*_tensors(places, ridges, linear), *tensors])
    graph.node.extend([*_point_nodes(), *_ridge_nodes(), *grown, *_last_nodes(trees[1])])
    graph.input.extend([helper.make_tensor_value_info("numbers", TensorProto.FLOAT, [1, len(places.middle)])])
    del graph.output[:]
    graph.output.extend([helper.make_tensor_value_info("quantiles", TensorProto.FLOAT, [1, TARGETS])])
    made.opset_import.extend([helper.make_opsetid("ai.onnx.ml", 3)])
    helper.set_model_props(made, dict(metadata))
    written: bytes = made.SerializeToString()
    return written


def _tensors(places: Places, ridges: Ridges, linear: Floats) -> list[TensorProto]:
    landmarks = ridges.landmarks
    made = {
        "centre": places.centre.reshape(1, -1),
        "axes": places.axes,
        "middle": places.middle.reshape(1, -1),
        "spread": places.spread.reshape(1, -1),
        "scale": places.scale.reshape(1, -1),
        "far": np.array([[FAR]]),
        "minus_far": np.array([[-FAR]]),
        "twice": np.array([[2.0]]),
        "nothing": np.array([[0.0]]),
        "level": np.array([[ridges.level]]),
        "linear": linear.reshape(-1, 1),
    }
    for part, values in (("vector", landmarks.vectors), ("number", landmarks.numbers)):
        made |= {f"{part}_landmarks": values.T, f"{part}_squares": (values**2).sum(axis=1).reshape(1, -1)}
    made |= {f"weights_{one}": ridges.weights[:, one : one + 1] for one in range(COLUMNS)}
    return [numpy_helper.from_array(values.astype(np.float32), name) for name, values in made.items()]


def _node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def _point_nodes() -> list[onnx.NodeProto]:
    """A prompt's place: the vector's and the numbers'."""
    return [
        _node("Sub", f"{VECTOR} centre", "off"),
        _node("MatMul", "off axes", "vector"),
        _node("Sub", "numbers middle", "away"),
        _node("Div", "away spread", "spreads"),
        _node("Min", "spreads far", "below"),
        _node("Max", "below minus_far", "within"),
        _node("Mul", "within scale", "number"),
    ]


def _ridge_nodes() -> list[onnx.NodeProto]:
    """How far from each landmark, and what the ridges make of it."""
    nodes = [*_apart_nodes("vector"), *_apart_nodes("number"), _node("Add", "vector_apart number_apart", "apart")]
    for one, apart in enumerate(("vector_apart", "apart")):
        nodes += [
            _node("Sqrt", apart, f"root_{one}"),
            _node("Neg", f"root_{one}", f"minus_{one}"),
            _node("Exp", f"minus_{one}", f"kernel_{one}"),
            _node("MatMul", f"kernel_{one} weights_{one}", f"weighed_{one}"),
            _node("Add", f"weighed_{one} level", f"ridged_{one}"),
        ]
    ridged = " ".join([f"ridged_{one}" for one in range(COLUMNS)])
    return [*nodes, _node("Concat", f"numbers {ridged}", "seen", axis=1)]


def _apart_nodes(part: str) -> list[onnx.NodeProto]:
    """The squared distances to the landmarks."""
    return [
        _node("Transpose", part, f"{part}_down", perm=[1, 0]),
        _node("MatMul", f"{part} {part}_down", f"{part}_square"),
        _node("MatMul", f"{part} {part}_landmarks", f"{part}_product"),
        _node("Mul", f"{part}_product twice", f"{part}_products"),
        _node("Add", f"{part}_squares {part}_square", f"{part}_both"),
        _node("Sub", f"{part}_both {part}_products", f"{part}_less"),
        _node("Max", f"{part}_less nothing", f"{part}_apart"),
    ]


def _last_nodes(stretch: Stretch | None) -> list[onnx.NodeProto]:
    return [
        _node("MatMul", "numbers linear", "straight"),
        _node("Add", f"{'grown' if stretch is None else 'stretched'} straight", "quantiles"),
    ]
