"""Length data as rows: one per prompt and model, from parquet or jsonl, or from a folder that keeps the two apart. I/O.

A file's rows have `messages` (a chat, or its JSON), `prompt` or `text` (a text) or `encoder` (in a length log of the
gateway that keeps text: `end`, `begin`, `hints`), and `output_tokens`; they may have `model`, `source`, `pid`, `group` and
`finish_reason` or `truncated`. A folder has `prompts_permissive.parquet` and `responses.parquet`, joined by `pid`.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from predictor.prompts import PromptView, view_of
from predictor.tagger_text import HINTS, EncoderText, encoder_text

# Kept for tests: no weights that we ship may have seen them.
HELD_OUT = ("sharegpt_92k_sample", "tau_bench_airline")
# Prompts of these open alike across sources, so that near-copies would stand on both sides of a split.
_BY_OPENING = ("alpaca_eval", "flask", "halueval_general")
_OPENING_CHARS = 60


class DataError(ValueError):
    """A file cannot be used; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Row:
    """One answer's length. `first_turn` is the first text of the user, which the paper's rule reads."""

    pid: str
    source: str
    model: str
    group: str
    text: EncoderText
    first_turn: str
    output_tokens: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows are read. `pids_out`: prompts to leave out, by id. `restricted`: for research, never for weights to ship."""

    sources_out: frozenset[str] = frozenset(HELD_OUT)
    pids_out: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()  # only these; empty: all
    models: frozenset[str] = frozenset()  # only these; empty: all
    restricted: bool = False

    def takes(self, row: Row) -> bool:
        """Whether a row is used."""
        named = (not self.sources or row.source in self.sources) and (not self.models or row.model in self.models)
        return named and row.source not in self.sources_out and row.pid not in self.pids_out


def read(paths: Iterable[Path], wanted: Wanted) -> list[Row]:
    """All rows of files and folders, in their order. Raises DataError."""
    rows = [row for path in paths for row in _rows(path, wanted.restricted) if wanted.takes(row)]
    if not rows:
        raise DataError("no rows: nothing fits what was asked for (a length log keeps text only where that is switched on)")
    return rows


def _rows(path: Path, restricted: bool) -> Iterator[Row]:
    if path.is_dir():
        yield from _folder(path if (path / "responses.parquet").exists() else path / "lengths", restricted)
        return
    seen: dict[str, Row] = {}
    records = _parquet(path) if path.suffix == ".parquet" else _jsonl(path)
    for number, record in enumerate(records, 1):
        if "features" in record and "encoder" not in record:
            continue  # of a length log, from before text was switched on
        try:
            row = _row(record, seen)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}, row {number}: {type(error).__name__} {error}") from error
        if row.output_tokens > 0:
            yield row


def _row(record: dict[str, object], seen: dict[str, Row]) -> Row:
    """`seen`: a prompt's first row, by what it was asked, so that each prompt is looked at once."""
    asked = next((record[name] for name in ("messages", "encoder", "prompt", "text") if record.get(name)), None)
    if asked is None:
        raise ValueError("none of messages, encoder, prompt, text is there")
    key = asked if isinstance(asked, str) else json.dumps(asked)
    prompt = seen.get(key)
    if prompt is None:
        prompt = seen[key] = _prompt(record, asked, key)
    cut = bool(record.get("truncated")) or record.get("finish_reason") == "length"
    return replace(prompt, model=str(record.get("model", "")), output_tokens=int(str(record["output_tokens"])), truncated=cut)


def _prompt(record: dict[str, object], asked: object, key: str) -> Row:
    pid = str(record.get("pid") or _hash(key))
    source = str(record.get("source", ""))
    if isinstance(asked, dict):
        hints = tuple([int(hint) for hint in asked["hints"]])
        if len(set(hints)) != len(hints) or not all(0 <= hint < len(HINTS) for hint in hints):
            raise ValueError(f"hints {hints} are of another version")
        text = EncoderText(str(asked["end"]), str(asked["begin"]), hints)
        return Row(pid, source, "", str(record.get("group") or pid), text, text.begin or text.end, 0, False)
    messages = _messages(asked)
    first = _first_turn(messages)
    view = view_of({"messages": messages})
    return Row(pid, source, "", str(record.get("group") or group_of(source, first)), encoder_text(view), first, 0, False)


def _messages(asked: object) -> list[object]:
    if isinstance(asked, str) and asked.lstrip()[:1] == "[":
        with suppress(json.JSONDecodeError):
            asked = json.loads(asked)
    return asked if isinstance(asked, list) else [{"role": "user", "content": asked}]


def _first_turn(messages: list[object]) -> str:
    for message in messages:
        view: PromptView = view_of({"messages": [message]})
        if view.turns:
            return view.head
    return ""


def group_of(source: str, first_turn: str) -> str:
    """Prompts of one group never stand on both sides of a split."""
    text = " ".join(first_turn.lower().split())
    if source == "classeval":
        return "class " + _after(text, " class ")
    return text[:_OPENING_CHARS] if source in _BY_OPENING else _hash(text)


def _after(text: str, word: str) -> str:
    return text.partition(word)[2].split(":", 1)[0].split("(", 1)[0][:60]


def _hash(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _folder(folder: Path, restricted: bool) -> Iterator[Row]:
    names = ["prompts_permissive.parquet", *(["prompts_restricted.parquet"] if restricted else [])]
    prompts: dict[str, Row] = {}
    for name in names:
        for record in _parquet(folder / name):
            if restricted or record["licence_class"] == "permissive":
                prompts[str(record["pid"])] = _prompt(record, record["messages"], "")
    for record in _parquet(folder / "responses.parquet"):
        prompt = prompts.get(str(record["pid"]))
        tokens = int(str(record["out_tokens"]))
        if prompt is not None and tokens > 0:
            yield replace(prompt, model=str(record["model"]), output_tokens=tokens)


def _jsonl(path: Path) -> Iterator[dict[str, object]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.strip():
                    yield json.loads(line)
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: {error}") from error


def _parquet(path: Path) -> Iterator[dict[str, object]]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        file = ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: {error}") from error
    for batch in file.iter_batches():
        yield from batch.to_pylist()
