"""The body of a local sentence encoder, in int8 and as deep as helps: from a checkpoint's ONNX file to one vector a text. Extra
`train`, without torch.

Taken is what the checkpoint brings (`onnx/model.onnx` or `model.onnx`, and `tokenizer.json`), up to two thirds of its layers:
the last ones, which were trained to tell topics apart, tell less of an answer's length and cost time (docs/lengths.md).
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GRAPHS = ("onnx/model.onnx", "model.onnx")
TOKENIZER = "tokenizer.json"
INPUTS = ("input_ids", "attention_mask")
KINDS = "token_type_ids"  # always 0: it is made in the graph
NORMS = ("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization")
PREPARED = {"onnx.quant.pre_process": "onnxruntime.quant"}  # spares a warning to prepare what `_fused` has prepared
VECTOR = "sentence"  # 1 x width, of length 1


class CheckpointError(ValueError):
    """The folder holds no sentence encoder that can be used; the text says why."""


def body(folder: Path) -> onnx.ModelProto:
    """From `input_ids` and `attention_mask` (1 x n) to VECTOR. Raises CheckpointError."""
    found = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
    if found is None or not (folder / TOKENIZER).is_file():
        raise CheckpointError(f"{folder} holds no {' or '.join(GRAPHS)} with {TOKENIZER}; such a file is made by optimum-cli")
    try:
        return _quantized(_pruned(_fused(onnx.load(str(found)))))
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{found}: {error}") from error


def _fused(model: onnx.ModelProto) -> onnx.ModelProto:
    """As the runtime joins its nodes, whatever the machine; so norms can be told even where they were written out."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as place:
        options.optimized_model_filepath = str(Path(place) / "fused.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Up to the layer that is read, then the mean over all tokens, of length 1."""
    graph = model.graph
    hidden = _hidden(graph)
    nodes, needed = [], {hidden}
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
    kept = [tensor for tensor in graph.initializer if tensor.name in needed]
    unknown = {one.name for one in graph.input} & needed - {*INPUTS, KINDS} - {tensor.name for tensor in kept}
    if unknown:
        raise CheckpointError(f"the graph has inputs that are not known: {', '.join(sorted(unknown))}")
    kinds = [] if KINDS not in needed else [helper.make_node("Mul", [INPUTS[0], "no_kind"], [KINDS])]
    tensors = [numpy_helper.from_array(np.zeros(1, np.int64), "no_kind")] if kinds else []
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "tokens"]) for name in INPUTS]
    made = helper.make_graph(
        [*kinds, *reversed(nodes), *_pooled(hidden)],
        "sentence",
        inputs,
        [helper.make_tensor_value_info(VECTOR, TensorProto.FLOAT, None)],
        [*kept, *tensors, numpy_helper.from_array(np.array([1, -1], np.int64), "flat"), _least()],
        value_info=[helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in (hidden, "mean", "mean_down")],
    )
    whole = helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version, producer_name="leeway")
    helper.set_model_props(whole, PREPARED)
    return whole


def _hidden(graph: onnx.GraphProto) -> str:
    """The states after two thirds of the layers, where the graph is of the BERT kind: a norm, then two in each layer."""
    norms = [node.output[0] for node in graph.node if node.op_type in NORMS]
    layers = (len(norms) - 1) // 2
    if layers > 1 and len(norms) == 2 * layers + 1:
        return str(norms[2 * round(2 * layers / 3)])
    return str(graph.output[0].name)


def _pooled(hidden: str) -> list[Any]:
    """Nodes that are the same in all versions of ONNX."""
    return [
        helper.make_node("Transpose", [hidden], ["by_number"], perm=[0, 2, 1]),
        helper.make_node("GlobalAveragePool", ["by_number"], ["mean_of_each"]),
        helper.make_node("Reshape", ["mean_of_each", "flat"], ["mean"]),
        helper.make_node("Transpose", ["mean"], ["mean_down"], perm=[1, 0]),
        helper.make_node("MatMul", ["mean", "mean_down"], ["square"]),
        helper.make_node("Sqrt", ["square"], ["length"]),
        helper.make_node("Max", ["length", "least_length"], ["some_length"]),
        helper.make_node("Div", ["mean", "some_length"], [VECTOR]),
    ]


def _least() -> TensorProto:
    return numpy_helper.from_array(np.full((1, 1), 1e-9, np.float32), "least_length")


def _quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """Matrices in 7 of 8 bits: processors without VNNI add two products in 16 bits, and all are to say the same."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as place:
        plain, small = Path(place) / "plain.onnx", Path(place) / "small.onnx"
        onnx.save(model, str(plain))
        numbers = {"DefaultTensorType": TensorProto.FLOAT}  # nothing infers what comes out of the runtime's own nodes
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8, per_channel=True, reduce_range=True, extra_options=numbers)
        return onnx.load(str(small))


def tokenizer(folder: Path) -> Any:
    """Of the checkpoint, which pads and cuts nothing. Raises CheckpointError."""
    from tokenizers import Tokenizer

    try:
        made = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:
        raise CheckpointError(f"{folder / TOKENIZER}: {error}") from error
    made.no_padding()
    made.no_truncation()
    return made
