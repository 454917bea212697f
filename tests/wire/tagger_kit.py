"""A tagger's process for tests: the real one with tiny models, or one that breaks every rule. Shell.

The trees are those shipped, the tiny encoder says 100, 200 and 400 tokens, whatever the prompt; the broken process is a
script that answers each question as its fault says.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from math import log
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gateway import tag_link
from gateway.tag_link import SHIPPED
from predictor.tagger_text import HINTS, SPECIAL

ENCODER = (100.0, 200.0, 400.0)


def tiny_models(folder: Path, *, trees: bool = True, encoder: bool = True) -> str:
    """The folder with models in it."""
    if trees:
        shutil.copy(SHIPPED / "trees.onnx", folder)
    if encoder:
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "n"])
        mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "n"])
        _save(folder / "lengths.onnx", [ids, mask], "input_ids", ENCODER)
        vocab = {word: number for number, word in enumerate((*SPECIAL, *HINTS, "hello"))}
        words = {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
        document = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": words}
        (folder / "tokenizer.json").write_text(json.dumps({**document, "added_tokens": []}))
    return str(folder)


def _save(path: Path, inputs: Sequence[onnx.ValueInfoProto], one: str, tokens: Sequence[float]) -> None:
    """A graph that adds 0 x the sum of its input to three constants."""
    said = helper.make_tensor("said", TensorProto.FLOAT, [1, 3], [log(count) for count in tokens])
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1, 1], [0.0])
    nodes = [
        helper.make_node("Cast", [one], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["as_float"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["said", "nothing"], ["quantiles"]),
    ]
    out = helper.make_tensor_value_info("quantiles", TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph(nodes, "tiny", inputs, [out], [said, zero])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))


BROKEN = """
import math, os, select, socket, sys
sys.path.insert(0, sys.argv[3])
from gateway.tag_frames import decode_question, encode_reply
from predictor.model_names import model_key
fault = sys.argv[2]
link = socket.socket(fileno=int(sys.argv[1]))
if fault == "refuses":
    sys.exit(3)
link.send(encode_reply(0, last=True, cues=None, guesses={"encoder": (0.0, 0.0, 0.0)}, reads_model=fault == "by_model"))
GUESS = {"nan": (math.nan,) * 3, "negative": (-3.0, -2.0, -1.0), "garbage": (3.0, 2.0, 1.0), "huge": (1.0, 2.0, 300.0)}
while frame := link.recv(65536):
    question = decode_question(frame)
    if fault == "silent":
        continue
    if fault == "dies":
        sys.exit(4)
    if fault == "rubbish":
        link.send(b"HTTP/1.1 500 Internal Server Error")
        continue
    if fault == "slow":
        select.select([], [], [], 0.05)
    while fault == "held" and not os.path.exists(sys.argv[4]):
        select.select([], [], [], 0.002)
    guess = GUESS.get(fault, (4.0, 5.0, 6.0))
    if fault == "by_text":
        guess = (1.0, 2.0, 3.0) if b"short" in question.ends.head else (3.0, 5.52, 7.0)
    if fault == "by_model":
        guess = (1.0, 2.0, 3.0) if question.model == model_key("m") else (6.0, 7.0, 8.0)
    link.send(encode_reply(question.id, last=True, cues=None, guesses={"encoder": guess}))
"""


def broken_command(fault: str, go: Path | None = None) -> tuple[str, ...]:
    """How a process with a fault is started: `held` answers once there is a file `go`. Two have none: `by_text` goes by the
    word "short", `by_model` by the model."""
    return (sys.executable, "-c", BROKEN, "{fd}", fault, str(Path(__file__).parents[2]), str(go))


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests whose every question is to be answered: a process that a busy machine lets wait is neither slow nor hung."""
    monkeypatch.setattr(tag_link, "SLOW_S", 60.0)
    monkeypatch.setattr(tag_link, "HUNG_S", 60.0)
