"""Rows of lengths, their splits and offsets, and the scores: what training and judging stand on."""

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.tagger.records import HELD_OUT, DataError, Row, Wanted, group_of, read
from gateway.tagger.scores import score, tau_b
from gateway.tagger.scoring import scored, table
from gateway.tagger.targets import NAMES_MAX, examples, examples_by_model, is_test, names, offsets
from predictor.tagger_text import EncoderText

BLANK = Row("p", "s", "m", "g", EncoderText("", "", ()), "", 100, False)


def written(folder: Path, *lines: dict[str, object]) -> Path:
    path = folder / "lengths.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_rows_may_hold_a_chat_a_text_or_what_the_length_log_keeps(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "last"}]
    path = written(
        tmp_path,
        {"messages": chat, "model": "a", "output_tokens": 5, "finish_reason": "length"},
        {"messages": json.dumps(chat), "model": "b", "output_tokens": 7, "finish_reason": "stop"},
        {"prompt": "hello", "output_tokens": 9},
        {"encoder": {"end": "the end", "begin": "so it begins", "hints": [3]}, "output_tokens": 11, "truncated": True},
        {"prompt": "nothing came", "output_tokens": 0},
    )
    rows = read([path], Wanted())
    assert [(row.output_tokens, row.truncated) for row in rows] == [(5, True), (7, False), (9, False), (11, True)]
    assert rows[0].text == rows[1].text
    assert (rows[0].text.end, rows[0].first_turn, rows[0].group) == ("last", "first", rows[1].group)
    assert rows[3].text == EncoderText("the end", "so it begins", (3,))


def test_a_row_without_text_is_refused_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "hello", "output_tokens": 9}, {"model": "m", "output_tokens": 9})
    with pytest.raises(DataError, match=r"row 2.*none of messages"):
        read([path], Wanted())


def test_of_a_length_log_the_lines_with_text_count(tmp_path: Path) -> None:
    bare = {"v": 1, "features": {"turns": 1}, "model": "m", "output_tokens": 9, "truncated": False}
    told = {**bare, "encoder": {"end": "hello", "begin": "", "hints": [0, 19]}}
    log = written(tmp_path, bare, told).rename(tmp_path / "lengths.log.1")
    assert [row.text.end for row in read([log], Wanted())] == ["hello"]
    with pytest.raises(DataError, match="keeps text only where that is switched on"):
        read([written(tmp_path, bare)], Wanted())
    with pytest.raises(DataError, match="another version"):
        read([written(tmp_path, {**bare, "encoder": {"end": "", "begin": "", "hints": [9999]}})], Wanted())


@pytest.mark.parametrize("line", ["{", '{"prompt": "a"}', '{"prompt": "a", "output_tokens": "many"}'])
def test_a_broken_file_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=r"x\.jsonl"):
        read([path], Wanted())


def test_held_out_sources_are_not_read_unless_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, *[{"prompt": name, "source": name, "output_tokens": 1} for name in ("other", *HELD_OUT)])
    assert [row.source for row in read([path], Wanted())] == ["other"]
    assert len(read([path], Wanted(sources_out=frozenset()))) == 1 + len(HELD_OUT)
    with pytest.raises(DataError, match="no rows"):
        read([path], Wanted(models=frozenset(["none"])))


def test_groups_keep_near_copies_on_one_side() -> None:
    long = "Tell me   about the history of the Roman empire and the people who built"
    assert group_of("flask", long + " it.") == group_of("alpaca_eval", long.upper() + " roads.")
    assert group_of("zeroeval_gsm", long + " it.") != group_of("zeroeval_gsm", long + " roads.")
    assert group_of("classeval", "import x\n\nclass Bank(Base):\n  a") == group_of("classeval", "import y\nclass Bank:\n  b")


def test_a_split_is_the_same_each_time_and_about_as_large_as_asked() -> None:
    groups = [f"group {number}" for number in range(4000)]
    tested = {group for group in groups if is_test(group, 0.1)}
    assert 320 < len(tested) < 480
    assert tested < {group for group in groups if is_test(group, 0.3)}


def test_a_models_own_length_is_taken_off_where_prompts_are_shared() -> None:
    rng = random.Random(4)
    rows = []
    for number in range(400):
        base = rng.gauss(5.0, 0.8)
        for model, more in (("short", -0.5), ("middle", 0.0), ("long", 0.7)):
            tokens = max(1, round(math.exp(base + more + rng.gauss(0.0, 0.1))))
            rows.append(replace(BLANK, pid=str(number), model=model, output_tokens=tokens))
    rows += [replace(BLANK, pid=f"alone {number}", model="alone", output_tokens=9000) for number in range(50)]
    known = offsets(rows)
    assert known["long"] - known["short"] == pytest.approx(1.2, abs=0.1)
    assert "alone" not in known
    made = examples(rows, known, 2, rng)
    assert len(made) == 450
    assert {len(example.logs) for example in made} == {1, 2}
    spreads = [abs(example.logs[0] - example.logs[1]) for example in made if len(example.logs) == 2]
    assert sum(spreads) / len(spreads) < 0.2


def test_each_answer_may_be_learnt_with_its_model_and_some_without() -> None:
    rows = [replace(BLANK, pid=str(n), model=model) for n in range(300) for model in ("a", "b", "c")]
    made = examples_by_model(rows, {"b": 0.5}, 2, random.Random(1))
    assert len(made) == 600
    assert all(len(example.logs) == 1 for example in made)
    assert {example.model for example in made} == {"", "a", "b", "c"}
    assert sum(not example.model for example in made) == pytest.approx(120, abs=35)
    off = {(example.model, round(math.log(100) - example.logs[0], 2)) for example in made}
    assert off == {("", 0.0), ("", 0.5), ("a", 0.0), ("b", 0.0), ("c", 0.0)}, "a named model's own length is left to be learnt"


def test_models_with_answers_enough_are_known_by_one_name_each() -> None:
    served = ["org/Some-8B"] * 12 + ["some-8b"] * 12 + ["rare"] * 19 + [""] * 90
    assert names([replace(BLANK, pid=str(n), model=model) for n, model in enumerate(served)]) == ("some-8b",)
    many = [replace(BLANK, pid=f"{n} {k}", model=f"model-{n}") for n in range(NAMES_MAX + 9) for k in range(20 + n)]
    assert len(names(many)) == NAMES_MAX
    assert "model-0" not in names(many)


def test_tau_counts_pairs_as_its_definition_does() -> None:
    rng = random.Random(7)
    for _ in range(40):
        count = rng.randint(2, 25)
        xs, ys = ([float(rng.randint(0, 5)) for _ in range(count)] for _ in range(2))
        signs = [
            ((xs[i] > xs[j]) - (xs[i] < xs[j]), (ys[i] > ys[j]) - (ys[i] < ys[j]))
            for i, j in itertools.combinations(range(count), 2)
        ]
        scale = math.sqrt(sum(a != 0 for a, _ in signs) * sum(b != 0 for _, b in signs))
        assert tau_b(xs, ys) == pytest.approx(sum(a * b for a, b in signs) / scale if scale else 0.0)


def test_scores_of_known_answers() -> None:
    truth = [math.log(tokens) for tokens in (100, 200, 400)]
    found = [
        (math.log(50), math.log(100), math.log(150)),
        (math.log(90), math.log(100), math.log(210)),
        (4.0, 5.0, math.log(399)),
    ]
    scores = score(truth, found)
    assert scores.within_x2 == pytest.approx(2 / 3)
    assert scores.coverage_q90 == pytest.approx(2 / 3)
    assert scores.acc_50 == pytest.approx(1 / 3)
    assert scores.acc_100 == pytest.approx(2 / 3)
    assert scores.log_mae == pytest.approx((math.log(2) + math.log(400) - 5.0) / 3)
    assert math.isnan(score([], []).log_mae)


def test_calibration_takes_a_constant_error_away() -> None:
    rng = random.Random(3)
    rows = [replace(BLANK, pid=str(n), output_tokens=round(math.exp(rng.gauss(6.0, 0.3)))) for n in range(400)]
    outcome = scored(rows, lambda _: (3.0, 4.0, 5.0), {}, 1)
    assert outcome.cold["s"].log_mae == pytest.approx(2.0, abs=0.1)
    assert outcome.calibrated["s"].log_mae < 0.4
    assert outcome.calibrated["all"].answers == 370
    assert len(table(outcome.cold)) == 3
