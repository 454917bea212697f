"""The maker of own length data: its choice of prompts, taking up again, and the file that it leaves."""

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from examples.lengths.own_lengths import MIX, PROMPT_TOKENS_MAX, SAMPLES, Answered, Prompt, choose, done_before, ended
from gateway.tagger.records import HELD_OUT

ANSWER = Answered("p", 0, 10, 20, "stop", "text \u2028 with\nlines")


def rows(source: str, count: int) -> list[dict[str, str | int]]:
    return [{"pid": f"{source} {n}", "source": source, "in_tokens": 100 + 10 * n, "messages": "[]"} for n in range(count)]


def test_a_thousand_prompts_are_asked_twice_and_none_that_is_held_out() -> None:
    assert sum(MIX.values()) * SAMPLES == 2000
    assert not MIX.keys() & set(HELD_OUT)


def test_the_choice_is_the_same_whatever_the_order_of_the_rows() -> None:
    table = rows("a", 60) + rows("b", 60)
    chosen = choose(table, {"a": 20, "b": 5}, random.Random(1))
    assert chosen == choose(table[::-1], {"a": 20, "b": 5}, random.Random(1))
    assert sorted(prompt.source for prompt in chosen) == ["a"] * 20 + ["b"] * 5
    assert len({prompt.pid for prompt in chosen}) == 25


def test_prompts_that_do_not_fit_the_context_are_not_asked() -> None:
    table = rows("a", 200)
    fitting = {row["pid"] for row in table if int(row["in_tokens"]) <= PROMPT_TOKENS_MAX}
    assert {prompt.pid for prompt in choose(table, {"a": len(fitting)}, random.Random(1))} == fitting
    with pytest.raises(ValueError, match="Sample larger"):
        choose(table, {"a": len(fitting) + 1}, random.Random(1))


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.partial.jsonl"
    assert done_before(path) == {}
    second = Answered("q", 1, 10, 512, "length", "")
    lines = [json.dumps(asdict(answer)) for answer in (ANSWER, second)]
    path.write_text(f"{lines[0]}\n{lines[1]}\n{lines[1][:30]}")
    assert done_before(path) == {("p", 0): ANSWER, ("q", 1): second}
    ended(path)
    with path.open("a") as file:
        file.write(json.dumps(asdict(Answered("p", 1, 10, 3, "stop", "x"))) + "\n")
    assert len(done_before(path)) == 3
    ended(path)
    assert path.read_text().count("\n") == 4


def test_prompts_are_as_the_data_has_them() -> None:
    assert choose([{**rows("a", 1)[0], "messages": "[1]"}], {"a": 1}, random.Random(1)) == [Prompt("a 0", "a", "[1]")]
