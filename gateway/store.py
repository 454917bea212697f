"""Backends that came by REST, kept in one SQLite file so that a restart has them again. Shell.

The file holds their API keys, so it is created with mode 0600. An empty path keeps everything in memory.
"""

import json
import os
import sqlite3

from gateway.config import BackendSpec

_SCHEMA = "CREATE TABLE IF NOT EXISTS backends (name TEXT PRIMARY KEY, spec TEXT NOT NULL)"


class BackendStore:
    """A table of backend specs. Raises sqlite3.Error when the file can't be used."""

    def __init__(self, path: str) -> None:
        if path:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = sqlite3.connect(path or ":memory:", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(_SCHEMA)

    def all(self) -> tuple[BackendSpec, ...]:
        """Every stored backend, by name."""
        rows = self._db.execute("SELECT spec FROM backends ORDER BY name").fetchall()
        return tuple(_decode(row[0]) for row in rows)

    def put(self, spec: BackendSpec) -> None:
        """Insert or replace."""
        self._db.execute("INSERT OR REPLACE INTO backends (name, spec) VALUES (?, ?)", (spec.name, _encode(spec)))

    def delete(self, name: str) -> None:
        """Forget, if there."""
        self._db.execute("DELETE FROM backends WHERE name = ?", (name,))

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _encode(spec: BackendSpec) -> str:
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
        }
    )


def _decode(text: str) -> BackendSpec:
    row = json.loads(text)
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
    )
