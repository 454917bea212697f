"""The parts of `make paper-astrolabe` that measure instead of simulating: CPU per decision, the real stack in real time."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / "examples" / "papers" / "astrolabe" / "astrolabe_run.py"


def run(tmp_path: Path, *arguments: str) -> dict[str, float]:
    """The command's figures; its report is in `report.md`."""
    places = ["--kept", str(tmp_path / "kept"), "--out", str(tmp_path / "report.md"), "--jobs", "1"]
    command = [sys.executable, str(COMMAND), *arguments, *places]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_cpu_per_decision_grows_with_the_instances_asked(tmp_path: Path) -> None:
    figures = run(tmp_path, "--only", "e4", "--requests", "80")
    ratios = {name: value for name, value in figures.items() if name.startswith("cpu_")}
    assert {"cpu_step_by_step_26", "cpu_plain_python_32"} <= ratios.keys()
    assert all(1.5 < value < 20 for value in ratios.values()), ratios
    assert "| 32/s, plain Python |" in (tmp_path / "report.md").read_text()


def test_the_real_stack_runs_beside_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("# Head\n\nWords.\n\n## E15: the real stack, small\n\nOld.\n\n## Last\n\nKept.\n")
    figures = run(tmp_path, "--only", "e15", "--quick", "--requests", "24", "--update")
    assert len(figures) == 9
    assert all(value > 0 for value in figures.values())
    report = (tmp_path / "report.md").read_text()
    assert report.startswith("# Head\n\nWords.\n\n## E15: the real stack, small\n\nNot simulation")
    assert report.endswith("\n\n## Last\n\nKept.\n")
    assert "Old." not in report
    assert "18 counted after" in report
