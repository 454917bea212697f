"""A TOML file as one record, with errors that name file and key. Reads files."""

import tomllib
from pathlib import Path
from typing import TypeVar

from gateway.sim.tables import TableError, record

Record = TypeVar("Record")


def read_table(kind: type[Record], path: Path) -> Record:
    """The file as a record of that kind. Raises TableError."""
    try:
        return record(kind, tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TableError(path.name, "", str(error)) from error
