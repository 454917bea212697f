"""`gateway tagger train-trees --sentences` as a user runs it, with a checkpoint of two layers made here; asked as the tagger's
process asks. Run by `make test-training`.
"""

import json
import math
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import Result
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from gateway.cli import cli
from gateway.tag_worker import Models
from gateway.tagger import sentence_body, sentence_fit
from gateway.tagger.sentence_body import VECTOR, CheckpointError
from gateway.tagger.sentence_fit import Points
from gateway.tagger.shipped import session
from predictor.features import cues
from predictor.prompts import view_of

WIDTH, WORDS = 8, 1600
SIGNS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "tell", "me", "of")
LOGS = (3.0, 5.5)  # what the answer's length is for each of two kinds of words
NAMES = [f"{chr(97 + number % 26)}{chr(97 + number // 26 % 26)}{chr(97 + number // 676)}" for number in range(WORDS)]


def kind(word: int) -> int:
    """Which of the two; nothing in how a word is spelt says so."""
    return random.Random(word).randrange(2)


def checkpoint(folder: Path, *, kinds: bool = True, layers: int = 2) -> Path:
    """A body whose vectors tell the two kinds of words apart, though each word was seen in no other prompt."""
    (folder / "onnx").mkdir(parents=True)
    rng = np.random.default_rng(5)
    table = 0.3 * rng.normal(size=(len(SIGNS) + WORDS, WIDTH))
    for word in range(WORDS):
        table[len(SIGNS) + word, 0] += 4.0 * kind(word) - 2.0
    ids, mask, kinds_in = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "n"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    tensors = [numpy_helper.from_array(table.astype(np.float32), "table")]
    tensors += [numpy_helper.from_array(np.ones(WIDTH, np.float32), "one")]
    tensors += [numpy_helper.from_array(np.zeros(WIDTH, np.float32), "zero")]
    tensors += [numpy_helper.from_array(np.zeros((2, WIDTH), np.float32), "kind_table")]
    tensors += [numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "turn")]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["words"])]
    if kinds:
        nodes += [helper.make_node("Gather", ["kind_table", "token_type_ids"], ["kind"])]
    nodes += [helper.make_node("Add", ["words", "kind"] if kinds else ["words", "zero"], ["state"])]
    last = "state"
    for number in range(2 * layers + 1):
        nodes += [helper.make_node("LayerNormalization", [last, "one", "zero"], [f"normal_{number}"], axis=-1)]
        nodes += [helper.make_node("MatMul", [f"normal_{number}", "turn"], [f"turned_{number}"])]
        last = f"turned_{number}"
    nodes += [helper.make_node("Identity", [last], ["last_hidden_state"])]
    out = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "n", WIDTH])
    graph = helper.make_graph(nodes, "tiny", [ids, mask, *([kinds_in] if kinds else [])], [out], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "onnx/model.onnx")
    vocab = {word: number for number, word in enumerate((*SIGNS, *NAMES))}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"}
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}  # as checkpoints bring one
    document = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model, "truncation": truncation}
    (folder / "tokenizer.json").write_text(json.dumps({**document, "added_tokens": []}))
    return folder


def prompt(word: int) -> str:
    return f"tell me of {NAMES[word]}"


def trained(folder: Path, *more: str, count: int = 700) -> Result:
    """Each word once."""
    rng = random.Random(3)
    lines = [{"prompt": prompt(w), "output_tokens": round(math.exp(rng.gauss(LOGS[kind(w)], 0.1)))} for w in range(count)]
    log = folder / "lengths.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    return CliRunner().invoke(cli, ["tagger", "train-trees", str(log), "--out", str(folder / "trees.onnx"), *more])


@pytest.mark.parametrize("more", [(), ("--ranks",)])
def test_what_only_the_encoder_understands_tells_lengths(tmp_path: Path, more: tuple[str, ...]) -> None:
    done = trained(tmp_path, "--sentences", str(checkpoint(tmp_path / "tiny")), *more)
    assert done.exit_code == 0, done.output
    models = Models(tmp_path)
    assert not models.problems
    assert models.names == ("trees", "encoder")
    errors, trees_errors, covered = [], [], 0
    for word in range(1000, 1100):
        view = view_of({"prompt": prompt(word)})
        (told,) = models.encoder(view).values()
        assert told == tuple(sorted(told))
        errors.append(abs(told[1] - LOGS[kind(word)]))
        covered += told[0] <= LOGS[kind(word)] <= told[2]
        (trees,) = models.trees(cues(view), view).values()
        trees_errors.append(abs(trees[1] - LOGS[kind(word)]))
    assert np.mean(trees_errors) > 0.5
    assert np.mean(errors) < 0.2
    assert covered > 80


def test_the_rest_of_the_command_is_as_without(tmp_path: Path) -> None:
    assert trained(tmp_path, count=300).exit_code == 0
    before = (tmp_path / "trees.onnx").read_bytes()
    assert trained(tmp_path, "--sentences", str(checkpoint(tmp_path / "tiny")), count=300).exit_code == 0
    assert (tmp_path / "trees.onnx").read_bytes() == before


def test_what_can_not_be_trained_is_told(tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty", checkpoint(tmp_path / "broken")
    empty.mkdir()
    (broken / "onnx/model.onnx").write_bytes(b"no graph")
    for folder, words in ((empty, "holds no onnx/model.onnx"), (broken, "broken/onnx/model.onnx: ")):
        done = trained(tmp_path, "--sentences", str(folder), count=300)
        assert done.exit_code == 1
        assert words in done.output
        assert not (tmp_path / "trees.onnx").exists()
    log = str(tmp_path / "lengths.jsonl")
    done = CliRunner().invoke(cli, ["tagger", "train-trees", log, "--out", str(tmp_path / "x"), "--sentences", str(empty)])
    assert done.exit_code == 1
    assert "named trees.onnx" in done.output


def test_a_checkpoint_without_signs_of_begin_and_end_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text().replace("[SEP]", "[PES]"))
    done = trained(tmp_path, "--sentences", str(folder), count=300)
    assert done.exit_code == 1
    assert "none of the signs" in done.output


@pytest.mark.parametrize("kinds", [True, False])
@pytest.mark.parametrize(("layers", "read"), [(2, 1), (6, 4)])
def test_of_a_body_two_thirds_of_the_layers_are_read(tmp_path: Path, kinds: bool, layers: int, read: int) -> None:
    made = sentence_body.body(checkpoint(tmp_path / "tiny", kinds=kinds, layers=layers))
    norms = [node for node in made.graph.node if node.op_type in sentence_body.NORMS]
    assert len(norms) == 2 * read + 1
    assert {one.name for one in made.graph.input} == {"input_ids", "attention_mask"}
    ids = np.array([[2, 8, 9, 3]], np.int64)
    vector = session(made.SerializeToString()).run([VECTOR], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    assert vector.shape == (1, WIDTH)
    assert float((vector**2).sum()) == pytest.approx(1.0, abs=1e-3)


def test_a_graph_with_inputs_of_its_own_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "tiny") / "onnx/model.onnx"
    model = onnx.load(path)
    model.graph.node[0].input[1] = "pixels"
    model.graph.input.append(helper.make_tensor_value_info("pixels", TensorProto.INT64, ["batch", "n"]))
    onnx.save(model, path)
    with pytest.raises(CheckpointError, match="pixels"):
        sentence_body.body(tmp_path / "tiny")


def points(count: int, seed: int = 1) -> Points:
    rng = np.random.default_rng(seed)
    return Points(rng.normal(size=(count, 3)), rng.normal(size=(count, 2)))


def test_a_rows_column_knows_nothing_of_its_own_answer() -> None:
    seen, fold = points(200), np.arange(200) % 5
    target = np.random.default_rng(2).normal(size=200)
    before = sentence_fit.columns(seen, target, fold, sentence_fit.ridges(seen, target))
    target[7] += 100.0
    after = sentence_fit.columns(seen, target, fold, sentence_fit.ridges(seen, target))
    assert np.array_equal(before[fold == fold[7]], after[fold == fold[7]])
    assert not np.allclose(before[fold != fold[7]], after[fold != fold[7]])


def test_with_more_rows_than_bounds_all_get_columns_that_follow_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_fit, "LANDMARKS_MAX", 150)
    monkeypatch.setattr(sentence_fit, "LEARNT_MAX", 300)
    seen, fold = points(500), np.arange(500) % 5
    target = np.sin(seen.vectors[:, 0]) + 3.0
    kept = sentence_fit.ridges(seen, target)
    assert len(kept.landmarks) == 150
    told = sentence_fit.columns(seen, target, fold, kept)
    for part in (slice(0, 300), slice(300, 500)):
        for column in told[part].T:
            assert np.corrcoef(column, target[part])[0, 1] > 0.8
