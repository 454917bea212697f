"""The form that these tests run on: the compiled wheel (`make test`) or the plain sources (`make test-plain`)."""

import os
import subprocess
import sys
from pathlib import Path

import gateway.forward

SHOW = "import gateway.forward; print(gateway.forward.__file__)"


def test_what_runs_is_what_was_asked_for() -> None:
    suffix = ".so" if os.environ.get("LEEWAY_FORM") == "compiled" else ".py"
    child = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    assert Path(str(gateway.forward.__file__)).suffix == Path(child.stdout.strip()).suffix == suffix
