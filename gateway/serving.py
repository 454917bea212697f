"""`gateway serve`: the serving process. Shell.

The configuration is read and checked in a child process, at the start and at every reload: the settings library costs
10 MB and a third of a second of a held event loop, and the serving process needs it at neither time.
"""

import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

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
def _lean() -> Iterator[None]:
    """While libraries are imported: without what they take along and serving never uses.

    structlog takes rich for its console renderer, if it is there: 60 modules and 4 MB. aiohttp reads the system's trust
    store for a context of its own: 2.5 MB; ours is read when the first https URL is asked for, and is handed to aiohttp
    with each request. The one it gets here trusts nobody.
    """
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]
    real = ssl.create_default_context
    ssl.create_default_context = partial(ssl.SSLContext, ssl.PROTOCOL_TLS_CLIENT)
    try:
        yield
    finally:
        ssl.create_default_context = real
        if hidden:
            del sys.modules["rich"]


def run(path: str) -> str:
    """Serve until told to end. Gives the reason why it could not, or ""."""
    try:
        config = load(path)
    except BadConfigError as error:
        return str(error)
    with _lean():
        from gateway import app  # after the check: its imports are most of the start

    try:
        app.serve(config, lambda: load(path))
    except OSError as error:
        if error.filename is not None:
            return f"{path}: {error.filename}: {error.strerror}"
        return f"{path}: cannot listen: {error.strerror or error}"
    return ""
