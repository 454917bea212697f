"""Rows for the boosted trees: from the gateway's length logs, or from a folder of public answers. I/O.

A log's rows hold features, so own traffic trains trees without anybody's words being kept; where text is logged, they are
trained on it, too. A row of other features than today's is left out and counted. Other files hold `messages` (a chat) or
`prompt`, and `output_tokens`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from gateway.tagger.records import HELD_OUT, group_of
from predictor.features import BUCKETS, FEATURES, Cues, cues
from predictor.grams import Grams, Spoken, grams_of, spoken_of
from predictor.prompts import view_of
from predictor.sentences import sentence_of

PER_PROMPT = 4  # answers of different models to one prompt: more of them tell little about prompts


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One answer. Rows of a group (a conversation, a template's instance) are never on both sides of a split."""

    cues: Cues
    output_tokens: int
    truncated: bool = False
    model: str = ""
    source: str = ""
    group: str = ""
    weight: float = 1.0
    grams: Grams | None = None  # None: no text is known
    text: str = ""  # what a sentence encoder reads, where text is known


def of_log(paths: Iterable[Path]) -> tuple[list[TreeRow], int]:
    """The rows of log files or of other jsonl, and how many lines could not be used."""
    rows: list[TreeRow] = []
    lost = 0
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                row = _of_line(line)
                if row is None:
                    lost += bool(line.strip())
                else:
                    rows.append(row)
    return rows, lost


def with_text(rows: Sequence[TreeRow]) -> list[TreeRow]:
    """Those whose text is known, if they are at least as many as the others; else all, as if none were known."""
    known = [row for row in rows if row.grams is not None]
    return known if 2 * len(known) >= len(rows) else [replace(row, grams=None) for row in rows]


def _of_line(line: bytes) -> TreeRow | None:
    try:
        record = orjson.loads(line)
        tokens, model = record["output_tokens"], str(record.get("model", ""))
        if not isinstance(tokens, int) or tokens < 1:
            return None
        row = _of_record(record) if "features" in record else _of_text(record)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    cut = record.get("truncated") is True or record.get("finish_reason") == "length"
    return replace(row, output_tokens=tokens, truncated=cut, model=model)


def _of_record(record: Mapping[str, Any]) -> TreeRow:
    """A line of the gateway's log."""
    features = record["features"]
    numbers = tuple([float(features[name]) for name in FEATURES])
    words = tuple([int(word) for word in record.get("words", ()) if 0 <= word < BUCKETS])
    if len(features) != len(FEATURES):
        raise ValueError("other features")
    row = TreeRow(Cues(numbers, words), 1, source=str(record.get("route", "")), group=str(words[:24]))
    return with_spoken(row, Spoken(**record["spoken"])) if "spoken" in record else row


def _of_text(record: Mapping[str, Any]) -> TreeRow:
    """A line of any jsonl that holds prompts."""
    asked = record.get("messages") or [{"role": "user", "content": record["prompt"]}]
    turns = [_as_sent(turn) for turn in (json.loads(asked) if isinstance(asked, str) else asked)]
    view = view_of({"messages": turns})
    source = str(record.get("source", ""))
    group = str(record.get("group") or group_of(source, _first_of(turns)))
    return with_spoken(TreeRow(cues(view), 1, source=source, group=group), spoken_of(view))


def with_spoken(row: TreeRow, spoken: Spoken) -> TreeRow:
    """A row whose text is known."""
    return replace(row, grams=grams_of(spoken), text=sentence_of(spoken))


def of_folder(folder: Path) -> list[TreeRow]:
    """Permissive rows of a data folder (prompts_permissive.parquet, responses.parquet), none of a source that is held out.

    Each source weighs by the root of its rows.
    """
    import pyarrow.parquet as pq

    prompts: dict[str, TreeRow] = {}
    for record in pq.read_table(folder / "prompts_permissive.parquet").to_pylist():
        if record["licence_class"] == "permissive" and record["source"] not in HELD_OUT:
            prompts[record["pid"]] = _of_prompt(record["source"], record["messages"])
    taken: Counter[str] = Counter()
    rows: list[TreeRow] = []
    answers = pq.read_table(folder / "responses.parquet", columns=["pid", "model", "out_tokens"])
    order = sorted(answers.to_pylist(), key=_mixed)
    for answer in order:
        prompt = prompts.get(answer["pid"])
        if prompt is not None and answer["out_tokens"] > 0 and taken[answer["pid"]] < PER_PROMPT:
            taken[answer["pid"]] += 1
            rows.append(replace(prompt, model=str(answer["model"]), output_tokens=int(answer["out_tokens"])))
    count = Counter(row.source for row in rows)
    return [replace(row, weight=30.0 / count[row.source] ** 0.5) for row in rows]


def _of_prompt(source: str, messages: str) -> TreeRow:
    turns = [_as_sent(turn) for turn in json.loads(messages)]
    return TreeRow(cues(view_of({"messages": turns})), 1, source=source, group=group_of(source, _first_of(turns)))


def _first_of(turns: Sequence[Mapping[str, object]]) -> str:
    """What the user said first."""
    return next((str(turn.get("content")) for turn in turns if turn.get("role") == "user"), "")


def _as_sent(turn: dict[str, object]) -> dict[str, object]:
    """Tool calls, which public files hold as text, as a client sends them."""
    content = turn.get("content")
    if turn.get("role") != "assistant" or not isinstance(content, str) or not content.startswith('[{"arguments"'):
        return turn
    return {"role": "assistant", "content": None, "tool_calls": [{"function": call} for call in json.loads(content)]}


def _mixed(answer: dict[str, object]) -> bytes:
    """An order that has nothing to do with models."""
    return blake2b(f"{answer['pid']} {answer['model']}".encode(), digest_size=8).digest()
