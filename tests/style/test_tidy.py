"""The house's own rules, as tests: sizes, imports that work, no machine's paths, no open ends."""

import ast
import importlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "predictor", "backends")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
LEFT_OPEN = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root|tmp)/[a-z]")


def tracked() -> list[Path]:
    """Every file of the project."""
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in out.stdout.splitlines() if (ROOT / name).is_file()]


def sources() -> list[Path]:
    """Every Python file of the project."""
    return [path for path in tracked() if path.suffix == ".py"]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_are_small() -> None:
    large = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert {name: lines for name, lines in large.items() if lines > FILE_LINES_MAX} == {}


def test_functions_are_small() -> None:
    large = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sources()
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert large == []


def test_nothing_is_left_open_and_no_machine_is_named() -> None:
    found = []
    for path in tracked():
        if path.suffix not in (".py", ".md", ".toml", ".sh", ".c", ".cfg", ".service") or path.name == "test_tidy.py":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if LEFT_OPEN.search(line) or MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_tests_neither_sleep_nor_skip() -> None:
    pattern = re.compile(r"\btime\.sleep\(|asyncio\.sleep\((?!0\))|mark\.(?:skip|xfail)|pytest\.skip\(")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        if path.is_relative_to(ROOT / "tests") and path.name != "test_tidy.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


# Run inside vLLM's process, or need what the extras `train` and `otlp` bring; tests/engine and the evaluations import them.
IN_ENGINE = {"gateway/spans.py", *(f"backends/{name}.py" for name in ("vllm_cascade", "vllm_kv", "vllm_scheduler"))}
TRAINING = (
    "export", "network", "run", "sentence_fit", "sentence_writer", "sentences", "teacher", "training", "tree_columns", "trees",
)  # fmt: skip
IN_TORCH = {f"gateway/tagger/{name}.py" for name in TRAINING}
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if str(path.relative_to(ROOT)) not in IN_ENGINE | IN_TORCH
)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_imports_and_says_what_it_is_for(module: str) -> None:
    assert (importlib.import_module(module).__doc__ or "").strip()
