"""Training and export of the length encoder where torch is: every architecture, taken up again, from a checkpoint.

Runs the command as a user does, with the engine's interpreter; small shapes, so each run is some seconds of loading.
"""

import json
import os
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from gateway.tag_worker import Models
from predictor.model_names import model_key
from predictor.prompts import view_of
from tests.engine.engine_http import wait_until
from tests.engine.engine_run import ROOT

PYTHON = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine")) / "bin" / "python"
SMALL = ("--layers", "1", "--width", "32", "--heads", "2", "--vocabulary", "700", "--batch", "16", "--threads", "1")
SHORT, LONG = ("Answer briefly: number", "Write a long essay about number")


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts whose kind tells their length, answered by two models of which one says twice as much."""
    path, rng = tmp_path_factory.mktemp("lengths") / "lengths.jsonl", random.Random(5)
    rows = []
    for number in range(240):
        words, tokens = (SHORT, 20) if number % 2 else (LONG, 900)
        for model, times in (("plain", 1.0), ("wordy", 2.0)):
            length = round(tokens * times * rng.uniform(0.8, 1.25))
            rows.append({"prompt": f"{words} {number}", "model": model, "output_tokens": length, "source": "made"})
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def command(lengths: Path, out: Path, *more: str) -> tuple[str, ...]:
    return (str(PYTHON), "-m", "gateway", "tagger", "train", str(lengths), "--out", str(out), *SMALL, *more)


def train(lengths: Path, out: Path, *more: str) -> str:
    """What the command printed."""
    return ran(command(lengths, out, *more))


def tagger(*words: str) -> str:
    """What `gateway tagger` printed."""
    return ran((str(PYTHON), "-m", "gateway", "tagger", *words))


def ran(asked: Sequence[str]) -> str:
    """What a command printed that must not fail."""
    done = subprocess.run(
        asked, check=False, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def about(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    described: dict[str, dict[str, dict[str, float]]] = json.loads((folder / "about.json").read_text())
    return described


def test_a_small_roberta_learns_which_prompts_have_long_answers(lengths: Path, tmp_path: Path) -> None:
    printed = train(lengths, tmp_path / "a", "--epochs", "12", "--learning-rate", "0.003")
    assert re.search(r"training .*?(\d+)/\1\b.*loss \d", printed, re.DOTALL), "a progress bar that came to its end"
    described = about(tmp_path / "a")
    assert described["cold"]["made"]["tau"] > 0.4
    assert described["offsets"]["wordy"] - described["offsets"]["plain"] == pytest.approx(0.69, abs=0.15)
    train(lengths, tmp_path / "b", "--start", str(tmp_path / "a"), "--epochs", "0.1", "--learning-rate", "0.00001")
    assert about(tmp_path / "b")["cold"]["made"]["log_mae"] == pytest.approx(described["cold"]["made"]["log_mae"], abs=0.05)


def test_a_finished_run_is_not_trained_again_and_gives_the_same(lengths: Path, tmp_path: Path) -> None:
    train(lengths, tmp_path, "--epochs", "0.3")
    first, weights = about(tmp_path), (tmp_path / "model.safetensors").read_bytes()
    train(lengths, tmp_path, "--epochs", "0.3")
    assert about(tmp_path) == first
    assert (tmp_path / "model.safetensors").read_bytes() == weights


def test_a_run_that_was_killed_ends_as_one_that_was_not(lengths: Path, tmp_path: Path) -> None:
    plan = ("--epochs", "8")
    train(lengths, tmp_path / "whole", *plan)
    with (tmp_path / "log").open("wb") as log:
        killed = subprocess.Popen(command(lengths, tmp_path / "killed", *plan), cwd=ROOT, stdout=log, stderr=log)
    try:
        wait_until((tmp_path / "killed" / "state.pt").exists, 120.0, "an epoch is done")
    finally:
        killed.kill()
        killed.wait()
    train(lengths, tmp_path / "killed", *plan)
    whole, resumed = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed"))
    assert whole == resumed


@pytest.mark.parametrize("architecture", ["roberta", "bert", "modernbert"])
def test_every_body_trains_and_is_exported_as_the_gateway_runs_it(lengths: Path, tmp_path: Path, architecture: str) -> None:
    """The export itself compares graph and network; here the gateway's own reader runs what was written."""
    weights, out = tmp_path / "weights", tmp_path / "out"
    train(lengths, weights, "--architecture", architecture, "--epochs", "0.2")
    assert about(weights)["architecture"] == architecture
    printed = tagger("export", str(weights), "--out", str(out))
    differs = re.search(r"int8 against fp32, log tokens: mean ([0-9.]+), most ([0-9.]+)", printed)
    assert differs is not None, printed
    assert float(differs[2]) < 0.02
    assert sorted(path.name for path in out.iterdir()) == ["lengths.onnx", "tokenizer.json"]
    matrices = [node.op_type for node in onnx.load(str(out / "lengths.onnx")).graph.node]
    assert matrices.count("MatMulInteger") >= 4, "its matrices are in int8"
    models = Models(out)
    assert (models.names, models.problems) == (("encoder",), [])
    for prompt in ("", f"{SHORT} 7", "\U0001f600 " * 500):
        q10, q50, q90 = models.encoder(view_of({"prompt": prompt}))["encoder"]
        assert 0.0 < q10 <= q50 <= q90 < 12.0


def test_the_model_that_answers_is_read_where_that_is_asked_for(tmp_path: Path) -> None:
    """Two models that never answer the same prompt: the prompt tells nothing, the model everything."""
    path, rng = tmp_path / "lengths.jsonl", random.Random(5)
    rows = []
    for number in range(400):
        model, tokens = rng.choice((("plain", 20), ("wordy", 900)))
        length = round(tokens * rng.uniform(0.8, 1.25))
        rows.append({"prompt": f"{LONG} {number}", "model": model, "output_tokens": length, "source": "made"})
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    weights, out, plan = tmp_path / "weights", tmp_path / "out", ("--epochs", "30", "--learning-rate", "0.003")
    train(path, weights, "--by-model", *plan)
    assert about(weights)["cold"]["made"]["log_mae"] < 0.4, "lengths scatter by 0.12 around the model's own"
    train(path, tmp_path / "blind", *plan)
    assert about(tmp_path / "blind")["cold"]["made"]["log_mae"] > 0.9, "the two are 3.8 apart"
    tagger("export", str(weights), "--out", str(out))
    middles = {}
    models, view = Models(out), view_of({"prompt": f"{LONG} 7"})
    assert models.reads_model
    for model in ("plain", "wordy"):
        said = tagger("inspect", "--model-folder", str(out), "--prompt", f"{LONG} 7", "--model", model)
        assert "knows 2 models (others are read as none): plain, wordy" in said
        middles[model] = models.encoder(view, model_key(model))["encoder"][1]
    assert middles["wordy"] > middles["plain"] + 1.0
    judged = json.loads(tagger("eval", str(path), "--model-folder", str(out), "--json").splitlines()[-1])
    assert judged["cold"]["made"]["log_mae"] < 0.4


def test_training_starts_from_a_foreign_checkpoint_folder(lengths: Path, tmp_path: Path) -> None:
    """As all-MiniLM-L6-v2 is one: a BERT body, a WordPiece tokenizer, nothing of ours."""
    start, out = tmp_path / "start", tmp_path / "out"
    ran((str(PYTHON), "-c", FOREIGN, str(start)))
    train(lengths, tmp_path / "weights", "--start", str(start), "--epochs", "6", "--learning-rate", "0.003")
    described = about(tmp_path / "weights")
    assert described["architecture"] == "bert"
    assert described["cold"]["made"]["tau"] > 0.3
    tagger("export", str(tmp_path / "weights"), "--out", str(out))
    assert Models(out).names == ("encoder",)


FOREIGN = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel
words = "[PAD] [UNK] [CLS] [SEP] [MASK] Answer briefly : number Write a long essay about".split()
tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=128, **sizes)).save_pretrained(sys.argv[1])
tokenizer.save(sys.argv[1] + "/tokenizer.json")
"""


def test_the_papers_rule_trains_one_output(lengths: Path, tmp_path: Path) -> None:
    printed = train(lengths, tmp_path, "--baseline", "paper", "--epochs", "0.2")
    assert "Acc-50" in printed
    assert about(tmp_path)["point"] is True


def test_what_is_missing_is_named_with_the_remedy(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(('onnx', 'onnxruntime', 'onnxscript')));"
    started = f"{hidden} from gateway.__main__ import main; main()"
    asked = (str(PYTHON), "-c", started, "tagger", "export", str(tmp_path), "--out", str(tmp_path / "x"))
    done = subprocess.run(asked, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "missing: onnx, onnxruntime, onnxscript" in done.stderr
    assert "pip install 'leeway-gateway[train]'" in done.stderr
