"""TOML files as tables and records, with errors that name file and key. Reads files."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

from gateway.sim.tables import TableError, record

Record = TypeVar("Record")


def read_toml(path: Path) -> dict[str, Any]:
    """The file as a table. Raises TableError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TableError(str(path), "", error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TableError(str(path), "", str(error)) from error


def read_table(kind: type[Record], path: Path) -> Record:
    """The file as a record of that kind. Raises TableError."""
    return record(kind, read_toml(path), path.name)
