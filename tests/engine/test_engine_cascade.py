"""What runs in the engine's environment: CascadeScheduler on vLLM's real scheduler without a model, KV connectors, spans."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.engine.engine_run import ROOT

MODULES = ("stepped_cases", "begun_cases", "place_cases", "kv_contract_cases", "span_cases")


def names(module: str) -> list[str]:
    """The cases that a module lists."""
    listed = Path(__file__).with_name(f"{module}.py").read_text().partition("\nCASES = [\n")[2].partition("]")[0]
    return [line.strip(" ,") for line in listed.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, tuple[list[str], str]]:
    """Which cases of each module held, and what the others said. All run at once."""
    python = Path(os.environ.get("LEEWAY_ENGINE", ROOT / ".engine")) / "bin" / "python"
    model = Path(os.environ.get("LEEWAY_ENGINE_MODELS", ROOT / ".models")) / "tiny"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"}
    running = {
        module: subprocess.Popen(
            [python, "-m", f"tests.engine.{module}", model],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for module in MODULES
    }
    found = {}
    try:
        for module, process in running.items():
            out, err = process.communicate(timeout=600)
            assert process.returncode == 0, err[-3000:]
            found[module] = json.loads(out.splitlines()[-1]), err
    finally:
        for process in running.values():
            process.kill()
    return found


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in MODULES for name in names(module)])
def test_in_the_engine(module: str, name: str, outcomes: dict[str, tuple[list[str], str]]) -> None:
    held, said = outcomes[module]
    assert name in held, said.partition(f"--- {name}")[2].partition("\n---")[0][-2000:]
