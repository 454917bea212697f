"""`gateway tagger train-trees` as a user runs it, and rows from parquet: what needs the extra `train` without torch.

Run by `make test-training`.
"""

import json
import math
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gateway.cli import cli
from gateway.tagger.records import DataError, Wanted, read
from gateway.tagger.scores import tau_b
from gateway.tagger.trees import POINTS, ROWS_MIN, ranked
from predictor.features import FEATURES, cues
from predictor.grams import grams_of, spoken_of
from predictor.prompts import view_of
from predictor.trees import Trees

KINDS = {"Name the capital of": 3.0, "List ten facts about": 5.0, "Write an essay about": 6.5}


def line(rng: random.Random, number: int, *, text: bool) -> tuple[dict[str, object], float]:
    """One answer, and the log length that its prompt stands for."""
    words, log = rng.choice(list(KINDS.items()))
    prompt, tokens = f"{words} place {number}", max(1, round(math.exp(rng.gauss(log, 0.2))))
    if text:
        return {"prompt": prompt, "output_tokens": tokens, "model": "m"}, log
    seen = cues(view_of({"prompt": prompt}))
    features = dict(zip(FEATURES, seen.numbers, strict=True))
    return {"v": 1, "features": features, "words": list(seen.words), "output_tokens": tokens, "model": "m"}, log


def trained(tmp_path: Path, *more: str, text: bool, count: int = 400, cut: float = math.inf) -> Trees:
    rng = random.Random(3)
    lines = [line(rng, number, text=text)[0] for number in range(count)]
    for one in lines:
        if isinstance(tokens := one["output_tokens"], int) and tokens > cut:
            one["output_tokens"], one["truncated"] = int(cut), True
    log, out = tmp_path / "lengths.jsonl", tmp_path / "trees.onnx"
    log.write_text("\n".join(map(json.dumps, lines)))
    done = CliRunner().invoke(cli, ["tagger", "train-trees", str(log), "--out", str(out), *more])
    assert done.exit_code == 0, done.output
    assert ("with text" if text else "without text") in done.output
    return Trees.from_onnx(out.read_bytes())


@pytest.mark.parametrize("more", [(), ("--ranks",)])
@pytest.mark.parametrize("text", [True, False])
def test_trees_of_a_log_tell_kinds_of_prompts_apart_and_how_long_their_answers_are(
    tmp_path: Path, text: bool, more: tuple[str, ...]
) -> None:
    trees = trained(tmp_path, *more, text=text)
    assert (trees.stretch is not None) == bool(more)
    assert trees.reads_grams == text
    rng, truth, middles, covered = random.Random(8), [], [], 0
    for number in range(150):
        asked, log = line(rng, 10_000 + number, text=True)
        view = view_of({"prompt": asked["prompt"]})
        q10, q50, q90 = trees.quantiles(cues(view), grams_of(spoken_of(view)))
        assert q10 <= q50 <= q90
        assert q50 == pytest.approx(log, abs=0.35)
        truth.append(math.log(int(str(asked["output_tokens"]))))
        middles.append(q50)
        covered += truth[-1] <= q90
    assert tau_b(truth, middles) > 0.6
    assert 0.75 < covered / 150 <= 1.0


@pytest.mark.parametrize("more", [(), ("--ranks",)])
def test_answers_that_were_cut_off_are_taken_for_longer(tmp_path: Path, more: tuple[str, ...]) -> None:
    view = view_of({"prompt": "Write an essay about place 9"})
    told = trained(tmp_path, *more, text=True, cut=300).quantiles(cues(view), grams_of(spoken_of(view)))
    assert told[1] > math.log(300) + 0.2


def test_too_few_answers_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "lengths.jsonl"
    log.write_text("\n".join([json.dumps(line(random.Random(1), n, text=True)[0]) for n in range(ROWS_MIN - 1)]))
    done = CliRunner().invoke(cli, ["tagger", "train-trees", str(log), "--out", str(tmp_path / "x")])
    assert done.exit_code == 1
    assert f"at least {ROWS_MIN}" in done.output


def test_ranks_turn_back_into_lengths() -> None:
    logs = np.log(np.random.default_rng(2).integers(1, 900, 1000).astype(float))
    scores, stretch = ranked(logs)
    assert len(stretch.at) == POINTS
    assert np.array_equal(np.argsort(scores, kind="stable")[:3], np.argsort(logs, kind="stable")[:3])
    back = np.array([stretch(score) for score in scores])
    assert float(np.abs(back - logs).mean()) < 0.02
    same, flat = ranked(np.full(10, 4.0))
    assert [flat(score) for score in (*same, -3.0, 3.0)] == pytest.approx([4.0] * 12)


def test_rows_of_parquet_files_are_read_like_those_of_jsonl(tmp_path: Path) -> None:
    lines = [{"prompt": f"question {n}", "model": "m", "output_tokens": n + 1, "finish_reason": "stop"} for n in range(5)]
    pq.write_table(pa.Table.from_pylist(lines), tmp_path / "lengths.parquet")
    (tmp_path / "lengths.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = [read([tmp_path / name], Wanted()) for name in ("lengths.parquet", "lengths.jsonl")]
    assert found[0] == found[1]
    assert len(found[0]) == 5
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"broken\.parquet"):
        read([tmp_path / "broken.parquet"], Wanted())


def test_the_own_data_that_is_committed_can_be_trained_from() -> None:
    own = Path(__file__).parents[2] / "examples" / "lengths" / "smollm2.parquet"
    rows = read([own], Wanted())
    assert len(rows) == 2000
    assert len({row.pid for row in rows}) == 1000
    assert {row.output_tokens <= 512 for row in rows} == {True}
    assert all(row.truncated == (row.output_tokens == 512) for row in rows)
