"""Backends that came by REST, kept in one SQLite file so that a restart has them again. Shell.

The file holds their API keys, so it and its journal have mode 0600. An empty path keeps everything in memory. A row
that no longer validates is left where it is and reported, so that one bad row never keeps the others from coming back.
One process writes it: a second one reads what is there, and nothing that it is told is kept until the first is gone.
"""

import json
import os
import re
import sqlite3
from typing import get_args

from gateway.addresses import check_publisher, check_url, sendable_key
from gateway.claim import Claim
from gateway.config import BackendSpec, EngineName, Scheduling
from gateway.private_file import MODE, open_private

BUSY_S = 0.2
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SCHEMA = "CREATE TABLE IF NOT EXISTS backends (name TEXT PRIMARY KEY, spec TEXT NOT NULL)"


class StoreError(Exception):
    """The state file can't be used; the text names the file and the reason, and no content."""


class StoreTakenError(StoreError):
    """Another gateway has the state file."""


class BackendStore:
    """A table of backend specs. Raises StoreError when the file can't be opened, read or written; writing raises
    StoreTakenError while another process has it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._claim = Claim(path)
        try:
            if path:
                _make_private(path)
            # a second process that holds the file must not stall the loop: little patience
            self._db = sqlite3.connect(path or ":memory:", timeout=BUSY_S, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from None

    def __repr__(self) -> str:
        return f"<BackendStore {self._path or 'in memory'}>"

    def read(self) -> tuple[tuple[BackendSpec, ...], tuple[str, ...]]:
        """(every stored backend by name, what is wrong with each row that had to be skipped)."""
        specs, problems = [], []
        for name, text in self._run("SELECT name, spec FROM backends ORDER BY name"):
            try:
                specs.append(decode(str(name), text))
            except ValueError as error:
                problems.append(f"{str(name)[:64]!r}: {error}")
        return tuple(specs), tuple(problems)

    def taken(self) -> str:
        """Who else has the file, in words; "" while it is ours. Looked up anew."""
        return "" if self._claim.ours() else self._claim.holder()

    def let_go(self) -> None:
        """Another process may have the file from now on; whoever writes first has it again."""
        self._claim.release()

    def put(self, spec: BackendSpec) -> None:
        """Insert or replace."""
        self._check_ours()
        self._run("INSERT OR REPLACE INTO backends (name, spec) VALUES (?, ?)", spec.name, encode(spec))

    def delete(self, name: str) -> None:
        """Forget, if there."""
        self._check_ours()
        self._run("DELETE FROM backends WHERE name = ?", name)

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        self._claim.release()

    def _check_ours(self) -> None:
        if holder := self.taken():
            raise StoreTakenError(f"state file {self._path}: {holder} uses it; each gateway needs one of its own")

    def _run(self, statement: str, *values: str) -> list[tuple[object, object]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._error(error) from None

    def _error(self, error: sqlite3.Error | OSError) -> StoreError:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return StoreError(f"state file {self._path}: {reason}")


def _make_private(path: str) -> None:
    """Create the file closed to others, or close it: SQLite gives its journal files the same mode."""
    os.close(open_private(path, os.O_RDWR))
    for journal in (f"{path}-wal", f"{path}-shm"):
        if os.path.exists(journal):
            os.chmod(journal, MODE)


def encode(spec: BackendSpec) -> str:
    """A spec as the text of its row."""
    return json.dumps(
        {
            "name": spec.name,
            "url": spec.url,
            "engine": spec.engine,
            "models": spec.models,
            "weight": spec.weight,
            "labels": spec.labels,
            "api_key": spec.api_key,
            "max_in_flight": spec.max_in_flight,
            **{field: getattr(spec, field) for field in _LATER},
        }
    )


def decode(name: str, text: object) -> BackendSpec:
    """A row as a spec. Raises ValueError, whose text holds nothing of the row's content.

    Checked by hand: this runs at each start, which must not pay for the settings library.
    """
    try:
        row = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ValueError("the row holds no JSON object")
    for field, kinds in _KINDS.items():
        if field not in row or not isinstance(row[field], kinds) or isinstance(row[field], bool):
            raise ValueError(f"{field} is missing or of the wrong type")
    for field, kind in _LATER.items():
        if field in row and type(row[field]) is not kind:
            raise ValueError(f"{field} is of the wrong type")
    _check(name, row)
    _check_engine(row)
    return BackendSpec(
        name=row["name"],
        url=row["url"],
        engine=row["engine"],
        models=tuple(row["models"]),
        weight=row["weight"],
        labels=tuple((key, value) for key, value in row["labels"]),
        api_key=row["api_key"],
        max_in_flight=row["max_in_flight"],
        declared=False,
        **{field: row[field] for field in _LATER if field in row},
    )


_KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "url": (str,),
    "engine": (str,),
    "models": (list,),
    "weight": (int, float),
    "labels": (list,),
    "api_key": (str,),
    "max_in_flight": (int,),
}
# What is known of the engine: rows of earlier versions lack it.
_LATER: dict[str, type] = {
    "profile": str,
    "kv_blocks": int,
    "block_size": int,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "sidecar": str,
    "sidecar_token": str,
    "kv_events": str,
    "kv_replay": str,
    "scheduling": str,
    "restore_tokens_per_s": float,
}


def _check(name: str, row: dict[str, object]) -> None:
    if row["name"] != name or not NAME.fullmatch(name):
        raise ValueError("name is not a backend's")
    check_url(str(row["url"]), guarded=True)
    if not sendable_key(str(row["api_key"])):
        raise ValueError("api_key holds characters that a header cannot have")
    if row["engine"] not in get_args(EngineName):
        raise ValueError("engine is unknown")
    models, labels = row["models"], row["labels"]
    assert isinstance(models, list)
    assert isinstance(labels, list)
    if not all(isinstance(model, str) and model for model in models):
        raise ValueError("models holds something else than names")
    if not all(isinstance(pair, list) and len(pair) == 2 and all(isinstance(x, str) for x in pair) for pair in labels):
        raise ValueError("labels holds something else than pairs of text")
    weight, places = row["weight"], row["max_in_flight"]
    assert isinstance(weight, int | float)
    assert isinstance(places, int)
    if not 0 < weight <= 1000 or not 1 <= places <= 1_000_000:
        raise ValueError("weight or max_in_flight is out of range")


def _check_engine(row: dict[str, object]) -> None:
    if not all(0 <= count <= 1 << 31 for field, count in row.items() if field in _LATER and isinstance(count, int)):
        raise ValueError("a limit of the engine is out of range")
    profile, sidecar, token = (str(row.get(field, "")) for field in ("profile", "sidecar", "sidecar_token"))
    if len(profile) > 1024 or profile.endswith(".toml"):
        raise ValueError("profile is not a shipped profile's name")
    if not sendable_key(token):
        raise ValueError("sidecar_token holds characters that a header cannot have")
    if sidecar:
        check_url(sidecar, guarded=True)
    for field in ("kv_events", "kv_replay"):
        if row.get(field):
            check_publisher(str(row[field]))
    if row.get("scheduling", "auto") not in get_args(Scheduling):
        raise ValueError("scheduling is unknown")
    rate = row.get("restore_tokens_per_s", 0.0)
    if not isinstance(rate, float) or not 0 <= rate <= 1e9:
        raise ValueError("restore_tokens_per_s is out of range")
