"""The length log: one row for each answer, no text unless it is wanted, bounded in size, never in the way."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import Tagger
from gateway.length_log import LengthLog, Row, rendered
from gateway.prompt_ends import ends_of
from predictor.features import FEATURES, Cues
from tests.wire.kit import CANARY, Rig, chat, run, until
from tests.wire.scripted import STREAM
from tests.wire.tagger_kit import tiny_models
from tests.wire.test_tagger import config, up

CUES = Cues(tuple(float(number) for number in range(len(FEATURES))), (5, 9))
ROW = Row("m", "chat", CUES, 700, 12, 34, truncated=False)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def asked(path: Path) -> list[dict[str, object]]:
    """Rows of the test's own requests: the rig's first one, of a token at most, may be among them."""
    return [row for row in rows(path) if row["max_tokens"] == 50]


def test_a_row_holds_numbers_by_name() -> None:
    row = json.loads(rendered(ROW, 1234.5678))
    assert row == {
        "v": 1,
        "time": 1234.568,
        "model": "m",
        "route": "chat",
        "features": dict(zip(FEATURES, CUES.numbers, strict=True)),
        "words": [5, 9],
        "max_tokens": 700,
        "prompt_tokens": 12,
        "output_tokens": 34,
        "truncated": False,
    }


def test_the_text_is_what_the_encoder_and_the_trees_read() -> None:
    ends = ends_of(json.dumps(chat("\ud800 my words " * 2000 + "the end")).encode())
    row = json.loads(rendered(ROW._replace(ends=ends), 0.0))
    assert row["encoder"]["end"].endswith("the end")
    assert set(row["encoder"]) == {"end", "begin", "hints"}
    assert len(row["encoder"]["end"]) < 1000
    assert row["spoken"]["tail"].endswith("the end")
    assert set(row["spoken"]) == {"head", "tail", "opening", "reply", "first", "calls"}
    assert sum(map(len, row["spoken"].values())) < 1900


def test_files_are_bounded_and_renamed(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    size = len(rendered(ROW, 0.123))
    log = LengthLog(Tagger(log=str(path), log_bytes=10 * size + 50, log_files=3))
    for number in range(45):
        log.add(ROW._replace(output_tokens=10 + number))
    log.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lengths", "lengths.1", "lengths.2"]
    told = [row["output_tokens"] for name in ("lengths.2", "lengths.1", "lengths") for row in rows(tmp_path / name)]
    assert told == list(range(55 - len(told), 55)), "the latest are kept, in order"
    assert 20 < len(told) <= 30
    assert (log.written, log.dropped) == (45, 0)


def test_a_full_queue_and_a_bad_path_drop_and_count(tmp_path: Path) -> None:
    log = LengthLog(Tagger(log=str(tmp_path / "missing" / "lengths"), log_rows=5))
    for _ in range(9):
        log.add(ROW)
    log.close()
    assert log.dropped == 9
    assert "missing" in log.take_problem()
    assert log.take_problem() == "", "told once"


@pytest.mark.parametrize("text", [False, True])
def test_every_answer_is_logged_when_asked_for(text: bool, tmp_path: Path) -> None:
    """Of requests that the tagger is not asked about as well; nothing of a prompt's text without `log_text`."""
    path = tmp_path / "rows"

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        for number in range(4):
            await rig.ask(chat(f"{CANARY} number {number}", stream=number % 2 == 0, max_tokens=50))
        log = tagging.log
        assert log is not None
        await until(lambda: len(asked(path)) == 4, say=lambda: (log.written, log.dropped))
        logged = asked(path)
        assert {row["route"] for row in logged} == {"chat"}
        assert {row["output_tokens"] for row in logged if row["output_tokens"] != 1} <= {len(STREAM), len(STREAM) + 1}
        assert (CANARY in path.read_text()) is text
        assert not log.dropped

    options = config(tiny_models(tmp_path), "plan", log=str(path), log_text=text)
    run(case, replace(options), backends=2)


def test_a_log_that_can_t_be_written_is_told(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        await until(lambda: any(line["event"] == "length log" and "nowhere" in line["reason"] for line in rig.log()))

    run(case, config("", mode="auto", log=str(tmp_path / "nowhere" / "lengths")), backends=2)
