"""ARCHITECTURE.md and the import contracts know every module, and name none that is not there."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATHS = sorted(path for package in ("gateway", "predictor", "backends") for path in (ROOT / package).rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in PATHS if path.stem != "__init__"}
TREE = (ROOT / "ARCHITECTURE.md").read_text().partition("## Tree")[2].partition("## ")[0]
POLICIES = "gateway.policies."  # they stand in the tree as one
_GROUP = re.compile(r"((?:[a-z_][a-z_0-9]*\*?(?:\.pyx)? )+)[PS]\b")
_CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PURE = next(one["source_modules"] for one in _CONTRACTS if one["name"].startswith("pure modules"))


def in_tree(stem: str, words: set[str]) -> bool:
    """`mock*` stands for all that begin so."""
    return stem in words or any(word.endswith("*") and stem.startswith(word[:-1]) for word in words)


def test_every_module_stands_in_the_tree() -> None:
    words = set(re.findall(r"[a-z_0-9]+\*?", TREE))
    assert [name for name, path in MODULES.items() if not name.startswith(POLICIES) and not in_tree(path.stem, words)] == []


def test_the_tree_names_only_what_is_there() -> None:
    named = {word for group in _GROUP.findall(TREE) for word in group.split()}
    stems = {path.stem for path in MODULES.values()} | {path.name for path in ROOT.glob("gateway/**/*.pyx")}
    assert len(named) > 100
    assert [word for word in sorted(named) if not any(in_tree(stem, {word}) for stem in stems)] == []


def test_who_calls_itself_pure_is_held_to_it_and_nobody_else() -> None:
    for name, path in MODULES.items():
        first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        held = name in PURE or any(name.startswith(f"{one}.") for one in PURE)
        assert held or not first.endswith("Pure."), f"{name} is not in the contract of pure modules"
        assert not (held and first.endswith("Shell.")), f"{name} is in the contract of pure modules"


def test_the_contract_names_only_what_is_there() -> None:
    assert [one for one in PURE if not (ROOT / one.replace(".", "/")).is_dir() and one not in MODULES] == []
