"""Files that hold secrets: closed to others, and nothing that is no file is opened, changed or replaced."""

import os
import stat
from pathlib import Path

import pytest

from gateway.app import admin_key
from gateway.config import Admin, GatewayConfig
from gateway.learnt import _write
from gateway.private_file import open_private
from gateway.store import BackendStore, StoreError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Something open to all that is no file."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    path.chmod(0o666)
    return path


def test_a_file_is_made_or_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "key"
    os.close(open_private(str(path), os.O_WRONLY))
    assert mode(path) == 0o600
    path.chmod(0o644)
    os.close(open_private(str(path), os.O_WRONLY))
    assert mode(path) == 0o600


def test_what_is_no_file_stays_as_it_is(pipe: Path) -> None:
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # so that writers can open it
    try:
        with pytest.raises(OSError, match="not a regular file"):
            admin_key(GatewayConfig(admin=Admin(key_file=str(pipe))))
        with pytest.raises(StoreError, match="not a regular file"):
            BackendStore(str(pipe))
        with pytest.raises(OSError, match="not a regular file"):
            _write(str(pipe), b"learnt")
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert mode(pipe) == 0o666
    assert [path.name for path in pipe.parent.iterdir()] == ["pipe"]
