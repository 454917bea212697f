"""Trees from an ONNX file without a runtime: the same figures as onnxruntime's; files that are none are refused."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tagger.tree_rows import TreeRow, of_log, with_text
from gateway.tagger.tree_writer import Ensemble, onnx_of
from predictor.features import BUCKETS, FEATURES, Cues, cues
from predictor.grams import GRAM_BUCKETS, Grams, Spoken, grams_of, spoken_of
from predictor.prompts import view_of
from predictor.treefile import TreeFileError, read
from predictor.trees import Stretch, Trees

SHIPPED = Path(__file__).resolve().parents[2] / "predictor" / "tagger_models" / "trees.onnx"


def grown(rng: random.Random, depth: int, width: int) -> dict[str, Any]:
    """A tree as LightGBM dumps one."""
    if not depth or rng.random() < 0.2:
        return {"leaf_value": rng.gauss(0.0, 1.0)}
    children = {"left_child": grown(rng, depth - 1, width), "right_child": grown(rng, depth - 1, width)}
    return {"split_feature": rng.randrange(width), "threshold": rng.uniform(-1.0, 8.0), **children}


def made(*, words: bool = False, grams: bool = False, stretch: Stretch | None = None) -> bytes:
    rng = random.Random(4)
    width = len(FEATURES) + words + len(Grams._fields) * grams
    ensembles = [Ensemble([{"tree_structure": grown(rng, 5, width)} for _ in range(12)]) for _ in range(3)]
    linear = np.zeros(len(FEATURES))
    linear[3], linear[-1] = 0.5, -0.25
    weights = np.array([rng.gauss(0.0, 1.0) for _ in range(BUCKETS)]) if words else None
    if not grams:
        return onnx_of(ensembles, linear, weights, stretch=stretch)
    said = np.random.default_rng(8).normal(size=(2, GRAM_BUCKETS))
    return onnx_of(ensembles, linear, weights, (10.0 * said[0], said[1] ** 2), stretch)


CURVED = Stretch((-8.0, -2.0, -0.5, 0.0, 1.0, 9.0), (-3.0, 1.0, 1.0, 2.5, 4.0, 5.0))


@pytest.mark.parametrize(
    ("words", "grams", "stretch"),
    [(False, False, None), (True, False, None), (False, True, None), (True, True, None), (False, True, CURVED)],
)
def test_figures_are_those_of_the_runtime(words: bool, grams: bool, stretch: Stretch | None) -> None:
    data = made(words=words, grams=grams, stretch=stretch)
    trees, session = Trees.from_onnx(data), onnxruntime.InferenceSession(data)
    rng = random.Random(6)
    for _ in range(200):
        numbers = tuple([float(np.float32(rng.uniform(-2.0, 9.0))) for _ in FEATURES])
        spoken = tuple(rng.sample(range(BUCKETS), rng.randint(1, 60)))
        feed: dict[str, Any] = {"numbers": np.array([numbers], np.float32)}
        if words:
            feed["words"] = np.array(spoken, np.int64)
        parts = Grams(*[tuple(rng.sample(range(GRAM_BUCKETS), rng.randint(0, 200))) for _ in Grams._fields])
        if grams:
            feed |= {name: np.array(part, np.int64) for name, part in parts._asdict().items()}
        expected = sorted(session.run(None, feed)[0][0].tolist())
        assert trees.quantiles(Cues(numbers, spoken), parts) == pytest.approx(expected, abs=1e-4)


@given(st.floats(-50.0, 50.0), st.floats(-50.0, 50.0))
def test_a_line_of_straight_pieces_rises_and_goes_through_its_points(one: float, other: float) -> None:
    assert [CURVED(at) for at in CURVED.at] == pytest.approx(CURVED.to)
    assert (CURVED(one) <= CURVED(other)) or one > other
    assert CURVED(10.0) == pytest.approx(5.125)


@pytest.mark.parametrize(
    ("at", "to"),
    [((0.0,), (1.0,)), ((0.0, 0.0), (1.0, 2.0)), ((0.0, 1.0), (2.0, 1.0)), ((0.0, math.nan), (1.0, 2.0)), ((0.0, 1.0), (1.0,))],
)
def test_a_line_that_does_not_rise_is_refused(at: tuple[float, ...], to: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="does not rise"):
        Stretch(at, to)


def test_prompts_without_any_known_gram_are_answered() -> None:
    assert all(math.isfinite(log) for log in Trees.from_onnx(made(grams=True)).quantiles(Cues((1.0,) * len(FEATURES))))


def test_weights_of_grams_without_all_their_buckets_are_refused() -> None:
    data = made(grams=True).replace(b"gram_scales", b"gram_Scales")
    with pytest.raises(TreeFileError, match="scales"):
        Trees.from_onnx(data)


def test_the_shipped_trees_are_small_and_sensible() -> None:
    data = SHIPPED.read_bytes()
    assert len(data) < 300_000
    trees = Trees.from_onnx(data)
    told = {}
    for name, text in (("short", "What is the capital of France? Answer in one word."), ("long", "Write a detailed essay.")):
        told[name] = trees.quantiles(cues(view_of({"messages": [{"role": "user", "content": text}]})))
        assert told[name] == tuple(sorted(told[name]))
        assert 0.0 < told[name][1] < 9.0
    assert told["short"][1] < told["long"][1]


def test_longer_replies_before_foretell_longer_ones() -> None:
    trees = Trees.from_onnx(SHIPPED.read_bytes())
    middles = []
    for size in (40, 400, 4000):
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x" * size}]
        middles.append(trees.quantiles(cues(view_of({"messages": [*turns, {"role": "user", "content": "And then?"}]})))[1])
    assert middles == sorted(middles)
    assert middles[2] > middles[0] + 1.0


def test_trees_for_other_features_are_refused() -> None:
    data = SHIPPED.read_bytes().replace(b"log_text", b"log_tent")
    with pytest.raises(TreeFileError, match="other features"):
        Trees.from_onnx(data)


@pytest.mark.parametrize("data", [b"", b"\x00", b"hello world", b"\xff" * 40, b"\x3a\xff\xff\xff\xff\x0f"])
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    with pytest.raises(TreeFileError):
        read(data)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 40_000), st.integers(0, 255), st.booleans())
def test_a_damaged_file_is_refused_or_still_answers(place: int, byte: int, cut: bool) -> None:
    data = bytearray(made(words=False))
    place %= len(data)
    damaged = bytes(data[:place]) if cut else bytes(data[:place]) + bytes([byte]) + bytes(data[place + 1 :])
    try:
        trees = Trees.from_onnx(damaged)
    except TreeFileError:
        return
    trees.quantiles(Cues((1.0,) * len(FEATURES)))


def test_rows_come_from_the_length_log(tmp_path: Path) -> None:
    whole = {"features": dict.fromkeys(FEATURES, 1.0), "words": [3, 9], "model": "m", "route": "/v1/chat/completions"}
    lines = [
        {**whole, "output_tokens": 12, "truncated": True},
        {**whole, "output_tokens": 0},
        {**whole, "features": {"old": 1.0}, "output_tokens": 5},
        ["no object"],
        {**whole, "output_tokens": "many"},
    ]
    path = tmp_path / "lengths.jsonl"
    path.write_text("\n".join([*map(json.dumps, lines), "{broken", ""]))
    rows, lost = of_log([path])
    assert [(row.output_tokens, row.truncated, row.cues.words, row.model) for row in rows] == [(12, True, (3, 9), "m")]
    assert lost == 5


def test_rows_with_text_have_its_grams_whether_logged_or_in_another_file(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Tell me a story of ten words, then stop."}]
    spoken = {"head": turns[0]["content"], "tail": "", "opening": turns[0]["content"], "reply": ""}
    logged = {"features": dict.fromkeys(FEATURES, 1.0), "words": [3], "model": "m", "spoken": spoken, "output_tokens": 12}
    lines = [logged, {"messages": turns, "output_tokens": 7, "finish_reason": "length"}, {"prompt": "Hi", "output_tokens": 2}]
    path = tmp_path / "lengths.jsonl"
    path.write_text("\n".join(map(json.dumps, [*lines, {**logged, "spoken": {"odd": ""}}, {"output_tokens": 3}])))
    rows, lost = of_log([path])
    assert lost == 2
    assert [row.output_tokens for row in rows] == [12, 7, 2]
    assert rows[0].grams == rows[1].grams == grams_of(Spoken(**spoken)) == grams_of(spoken_of(view_of({"messages": turns})))
    assert rows[0].text == rows[1].text == turns[0]["content"]
    assert rows[1].cues == cues(view_of({"messages": turns}))
    assert rows[1].truncated


def test_rows_without_text_are_left_out_only_where_they_are_few() -> None:
    known = TreeRow(Cues((), ()), 1, grams=Grams((1,)))
    unknown = replace(known, grams=None)
    assert with_text([known, known, unknown]) == [known, known]
    assert with_text([known, unknown, unknown]) == [unknown] * 3
