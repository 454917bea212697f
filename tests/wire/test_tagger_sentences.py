"""A sentence encoder in the tagger's process: it answers beside the trees that it was trained with, and no others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gateway.tag_link import SHIPPED
from gateway.tag_sentences import SHARED, TREES, metadata_of
from gateway.tag_worker import Models
from gateway.tagger.shipped import Shipped
from predictor.features import FEATURES
from predictor.prompts import view_of
from predictor.sentences import TOKENS_MAX, Reading, runs_of
from tests.wire.kit import Rig, chat, run
from tests.wire.tagger_kit import patient
from tests.wire.test_tagger import Trusting, config, up

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "answer", "as", "briefly", "you", "can", "hello")
READING = Reading(2, 3, frozenset(runs_of([4, 5, 6, 5, 7, 8])))  # "answer as briefly as you can" is left out


def folder_of(folder: Path, width: int = len(FEATURES)) -> Path:
    """Shipped trees, and a graph that tells the features' first number, how many tokens there were, and a hundredth of that."""
    shutil.copy(SHIPPED / "trees.onnx", folder)
    ids, mask = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, "n"]) for name in ("input_ids", "attention_mask")]
    numbers = helper.make_tensor_value_info("numbers", TensorProto.FLOAT, [1, width])
    pick = helper.make_tensor("pick", TensorProto.FLOAT, [width, 1], [1.0, *[0.0] * (width - 1)])
    small = helper.make_tensor("small", TensorProto.FLOAT, [1, 1], [0.01])
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["as_float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["as_float"], ["count"], keepdims=1),
        helper.make_node("Mul", ["count", "small"], ["least"]),
        helper.make_node("MatMul", ["numbers", "pick"], ["first"]),
        helper.make_node("Concat", ["first", "count", "least"], ["quantiles"], axis=1),
    ]
    out = helper.make_tensor_value_info("quantiles", TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph(nodes, "tiny", [ids, mask, numbers], [out], [pick, small])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, metadata_of(READING, (folder / "trees.onnx").read_bytes()))
    onnx.save(model, folder / "lengths.onnx")
    vocab = {word: number for number, word in enumerate(WORDS)}
    document = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": []}
    words = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps({**document, "model": words, "truncation": cut}))
    return folder


def told(models: Models, text: str) -> tuple[float, float, float]:
    return models.encoder(view_of({"prompt": text}))["encoder"]


def test_it_reads_the_features_and_the_prompts_own_tokens_and_answers_in_order(tmp_path: Path) -> None:
    models = Models(folder_of(tmp_path))
    assert not models.problems
    assert models.names == ("trees", "encoder")
    assert not models.reads_model
    low, middle, high = told(models, "answer as briefly as you can hello")
    assert (low, high) == pytest.approx((0.03, 3.5), abs=0.1)
    assert middle == 3.0  # begin, hello, end
    assert told(models, "hello " * 500)[2] == TOKENS_MAX
    assert told(models, "")[2] == 2.0


def _other_trees(folder: Path) -> None:
    (folder / "trees.onnx").write_bytes((folder / "trees.onnx").read_bytes() + b"\x1a\x00")


def _no_trees(folder: Path) -> None:
    (folder / "trees.onnx").unlink()


def _spoilt(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(b"neither graph nor words") and None


def _about(key: str, value: str) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        model = onnx.load(folder / "lengths.onnx")
        found = {one.key: one.value for one in model.metadata_props} | {key: value}
        del model.metadata_props[:]
        helper.set_model_props(model, found)
        onnx.save(model, folder / "lengths.onnx")

    return changed


def _narrow(folder: Path) -> None:
    folder_of(folder, width=3)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_other_trees, "train both anew"),
        (_no_trees, "train both anew"),
        (_about(TREES, "0123"), "train both anew"),
        (_about(SHARED, "12 x"), "can't be read"),
        (_narrow, "numbers"),
        (_spoilt("lengths.onnx"), "lengths.onnx: "),
        (_spoilt("tokenizer.json"), "tokenizer.json: "),
    ],
)
def test_files_that_do_not_fit_are_left_out_and_told(tmp_path: Path, spoil: Callable[[Path], None], problem: str) -> None:
    spoil(folder_of(tmp_path))
    models = Models(tmp_path)
    assert models.names == (("trees",) if (tmp_path / "trees.onnx").exists() else ())
    (told,) = models.problems
    assert problem in told
    models.warm()


def test_what_asks_an_encoder_alone_says_why_it_does_not_ask_this_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only the serving process asks it"):
        Shipped(folder_of(tmp_path))


def test_a_request_is_told_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    monkeypatch.setattr("gateway.tagging.LengthTagger", Trusting)

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        assert tagging.link is not None
        assert tagging.link.models == ("trees", "encoder")
        assert (await rig.ask(chat("hello hello"))).status == 200
        assert tagging.counts.layers == {"encoder": 1}
        assert not tagging.counts.misses

    run(case, config(str(folder_of(tmp_path))), backends=2)
