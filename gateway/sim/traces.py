"""Published request traces and length tables as rows: one reader for each format, chosen by name.

| format | file | time | prefix blocks |
|---|---|---|---|
| azure | CSV `TIMESTAMP,ContextTokens,GeneratedTokens` or `arrival_s,input_tokens,output_tokens` | date or s | no |
| mooncake | JSON lines `timestamp, input_length, output_length, hash_ids` | ms | 512 tokens |
| bailian | JSON lines `chat_id, timestamp, input_length, output_length, hash_ids` | s | 16 tokens |
| burstgpt | CSV `Timestamp, …, Request tokens, Response tokens, …` | s | no |
| lengths | CSV `input_tokens,output_tokens` or `num_prefill_tokens,num_decode_tokens` | none | no |

Files may be plain, .gz or .zst (the latter by the zstd command). Rows without an answer are left out. Reads files; the
parsing itself is pure.
"""

import csv
import gzip
import json
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NotRequired, TypedDict


class TraceError(Exception):
    """A trace cannot be read: which file, which row, why."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request. `blocks` are the hashes of its prompt's blocks of `block_tokens` each, in order."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    session: str = ""


class _Json(TypedDict):
    """A row of the traces in JSON lines; which fields there are depends on the format."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    chat_id: int
    parent_chat_id: NotRequired[int]


def read_trace(path: Path, form: str) -> list[TraceRow]:
    """The rows of a file, in order of time from 0. TraceError says what is wrong with it."""
    if form not in READERS:
        raise TraceError(f"{path}: no trace format {form!r}; known: {', '.join(READERS)}")
    rows: list[TraceRow] = []
    try:
        rows.extend(READERS[form](_lines(path)))
    except (KeyError, ValueError, TypeError) as error:
        raise TraceError(f"{path}: row {len(rows) + 1} is not a {form} row: {error!r}") from error
    rows = [row for row in rows if row.prompt_tokens > 0 and row.output_tokens > 0]
    if not rows:
        raise TraceError(f"{path}: no request with an answer in it")
    rows.sort(key=lambda row: row.at_s)
    first_s = rows[0].at_s
    return [_moved(row, row.at_s - first_s) for row in rows]


def _moved(row: TraceRow, at_s: float) -> TraceRow:
    return TraceRow(at_s, row.prompt_tokens, row.output_tokens, row.blocks, row.block_tokens, row.session)


def _lines(path: Path) -> Iterable[str]:
    try:
        if path.suffix == ".zst":
            done = subprocess.run(["zstd", "-dqc", str(path)], capture_output=True, check=True)
            return done.stdout.decode().splitlines()
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as packed:
                return packed.read().splitlines()
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise TraceError(f"{path}: {'the zstd command is missing' if error.filename == 'zstd' else 'no such file'}") from error
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise TraceError(f"{path}: {error}") from error
    except subprocess.CalledProcessError as error:
        raise TraceError(f"{path}: zstd says {error.stderr.decode(errors='replace').strip()}") from error


def _azure(lines: Iterable[str]) -> Iterator[TraceRow]:
    for row in csv.DictReader(lines):
        if "arrival_s" in row:
            yield TraceRow(float(row["arrival_s"]), int(row["input_tokens"]), int(row["output_tokens"]))
        else:
            yield TraceRow(_stamp_s(row["TIMESTAMP"]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _stamp_s(text: str) -> float:
    """Seconds of a date with up to seven decimals and perhaps a zone; only differences of them mean anything."""
    whole, _, digits = text.split("+", maxsplit=1)[0].rstrip("Z").partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{digits or 0}")


def _mooncake(lines: Iterable[str]) -> Iterator[TraceRow]:
    for row in _json_rows(lines):
        yield _hashed(row, row["timestamp"] / 1000.0, 512, "")


def _bailian(lines: Iterable[str]) -> Iterator[TraceRow]:
    roots: dict[int, int] = {}
    for row in _json_rows(lines):
        chat = row["chat_id"]
        roots[chat] = roots.get(row.get("parent_chat_id", -1), chat)
        yield _hashed(row, float(row["timestamp"]), 16, str(roots[chat]))


def _hashed(row: _Json, at_s: float, block_tokens: int, session: str) -> TraceRow:
    prompt = int(row["input_length"])
    blocks = tuple(int(block) for block in row["hash_ids"][: prompt // block_tokens])
    return TraceRow(at_s, prompt, int(row["output_length"]), blocks, block_tokens, session)


def _json_rows(lines: Iterable[str]) -> Iterator[_Json]:
    for line in lines:
        if line.strip():
            yield json.loads(line)


def _burstgpt(lines: Iterable[str]) -> Iterator[TraceRow]:
    for row in csv.DictReader(lines):
        session = row.get("Session ID") or ""
        yield TraceRow(float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"]), session=session)


def _lengths(lines: Iterable[str]) -> Iterator[TraceRow]:
    for row in csv.DictReader(lines):
        if "input_tokens" in row:
            yield TraceRow(0.0, int(row["input_tokens"]), int(row["output_tokens"]))
        else:
            yield TraceRow(0.0, int(row["num_prefill_tokens"]), int(row["num_decode_tokens"]))


READERS: Mapping[str, Callable[[Iterable[str]], Iterator[TraceRow]]] = {
    "azure": _azure,
    "mooncake": _mooncake,
    "bailian": _bailian,
    "burstgpt": _burstgpt,
    "lengths": _lengths,
}
