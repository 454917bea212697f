"""CascadeScheduler and AsyncCascadeScheduler on vLLM's real scheduler, stepped without a model (stepped.py has the cases)."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.engine.engine_run import ROOT

SCRIPT = Path(__file__).with_name("stepped.py")
NAMES = [
    line.strip(" ,\n")
    for line in SCRIPT.read_text().partition("\nCASES = [\n")[2].partition("]")[0].splitlines()
    if line.strip()
]


@pytest.fixture(scope="module")
def held() -> tuple[list[str], str]:
    """Which cases held, and what the others said."""
    python = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine")) / "bin" / "python"
    model = Path(os.environ.get("LEEWAY_ENGINE_MODELS", ROOT / ".models")) / "tiny"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, SCRIPT, model], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_stepped(name: str, held: tuple[list[str], str]) -> None:
    cases, said = held
    assert name in cases, said.partition(f"--- {name}")[2].partition("\n---")[0][-2000:]
