"""`gateway serve`: the serving process. Shell.

The configuration is read and checked in a child process, at the start and at every reload: the settings library costs
10 MB and a third of a second of a held event loop, and the serving process needs it at neither time.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.config import GatewayConfig, from_json

CHECK_TIMEOUT_S = 60.0


class BadConfigError(ValueError):
    """The configuration is wrong; the text lists every problem, one a line."""


def load(path: str) -> GatewayConfig:
    """Read and check a configuration file in a child process. Raises BadConfigError."""
    command = [sys.executable, "-m", "gateway.config_file", path]
    try:
        child = subprocess.run(command, capture_output=True, timeout=CHECK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadConfigError(f"{path}: the configuration could not be checked: {error}") from None
    if child.returncode != 0:
        raise BadConfigError(child.stderr.decode(errors="replace").strip())
    return from_json(child.stdout)


@contextmanager
def _without_rich() -> Iterator[None]:
    """structlog takes rich along for its console renderer, if it is there: 60 modules and 4 MB that serving never uses."""
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["rich"]


def run(path: str) -> str:
    """Serve until told to end. Gives the reason why it could not, or ""."""
    try:
        config = load(path)
    except BadConfigError as error:
        return str(error)
    with _without_rich():
        from gateway import app  # after the check: its imports are most of the start

    try:
        app.serve(config, lambda: load(path))
    except OSError as error:
        return f"{path}: cannot listen: {error.strerror or error}"
    return ""
