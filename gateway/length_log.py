"""The opt-in length log: a JSON line for each finished answer, to train on. Shell; off unless a file is named.

A row holds numbers: the prompt's features and the answer's length (docs/tagger.md). What models that know text read of
the prompt, at most 1,200 characters of its end and its beginning, only with `log_text`. Rows are rendered and written by a
thread from a bounded queue; when that is full they are dropped and counted, and a file of `log_bytes` makes room: PATH,
PATH.1 and so on, `log_files` of them.
"""

import os
import threading
import time
from collections import deque
from dataclasses import asdict
from typing import NamedTuple

import orjson

from gateway.config import Tagger
from gateway.prompt_ends import Ends, view_of_ends
from predictor.features import FEATURES, Cues
from predictor.grams import spoken_of
from predictor.tagger_text import encoder_text

VERSION = 1
FLUSH_S = 0.2
CLOSE_S = 2.0


class Row(NamedTuple):
    """What is logged of one answer; `ends` only where the text is."""

    model: str
    route: str
    cues: Cues
    max_tokens: int
    prompt_tokens: int
    output_tokens: int
    truncated: bool
    ends: Ends | None = None


def rendered(row: Row, time_s: float) -> bytes:
    """The row's line."""
    fields: dict[str, object] = {
        "v": VERSION,
        "time": round(time_s, 3),
        "model": row.model,
        "route": row.route,
        "features": dict(zip(FEATURES, row.cues.numbers, strict=True)),
        "words": row.cues.words,
        "max_tokens": row.max_tokens,
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "truncated": row.truncated,
    }
    if row.ends is not None:
        view = view_of_ends(row.ends, row.max_tokens)
        fields["encoder"] = asdict(encoder_text(view))
        fields["spoken"] = asdict(spoken_of(view))
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


class LengthLog:
    """The queue and its writer. `dropped` counts rows that were lost; `take_problem` says why the file can't be written."""

    def __init__(self, settings: Tagger) -> None:
        self.dropped = 0
        self.written = 0
        self._settings = settings
        folder = os.path.dirname(settings.log) or "."
        self._problem = "" if os.access(folder, os.W_OK) else f"{folder} can't be written to"
        self._told = ""
        self._torn = False  # a full disk may have taken a part of a row
        self._rows: deque[tuple[Row, float]] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="length-log", daemon=True)
        self._thread.start()

    def add(self, row: Row) -> None:
        """Queue one row."""
        if len(self._rows) >= self._settings.log_rows:
            self.dropped += 1
        else:
            self._rows.append((row, time.time()))  # noqa: TID251 - rows are stamped as log lines are

    def take_problem(self) -> str:
        """What is wrong with the file, once."""
        problem = "" if self._problem == self._told else self._problem
        self._told = self._problem
        return problem

    def close(self) -> None:
        """Write what is queued; a disk that stalls is not waited for longer than CLOSE_S."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        count = len(self._rows)
        if not count:
            return
        lines = [rendered(*self._rows.popleft()) for _ in range(count)]
        try:
            self._write(lines)
        except OSError as error:
            self._problem = f"{self._settings.log}: {error.strerror or error}"
            self._torn = True
            self.dropped += count
        else:
            self._problem = ""
            self.written += count

    def _write(self, lines: list[bytes]) -> None:
        path, limit = self._settings.log, self._settings.log_bytes
        at = 0
        while at < len(lines):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(fd, "ab") as file:
                size = file.tell()
                if self._torn and size:
                    size += file.write(b"\n")
                self._torn = False
                while at < len(lines) and (size + len(lines[at]) <= limit or not size):
                    size += file.write(lines[at])
                    at += 1
            if at < len(lines):
                self._rotate()

    def _rotate(self) -> None:
        path = self._settings.log
        for number in range(self._settings.log_files - 1, 0, -1):
            older = path if number == 1 else f"{path}.{number - 1}"
            if os.path.exists(older):
                os.replace(older, f"{path}.{number}")
        if self._settings.log_files == 1:
            os.remove(path)
