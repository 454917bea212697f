"""Single files of the installed SGLang wheel, which lies in the engine's environment without its CUDA dependencies: loaded
alone, with what they import stood in for. Imported by the programs beside it, which run there as scripts.
"""

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any


def _wheel() -> Path:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


WHEEL = _wheel()


def load(name: str, path: Path) -> Any:
    """A file as the module of that name."""
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module


def stand_in(name: str, **members: object) -> None:
    """A module of that name with nothing but these."""
    module = sys.modules[name] = types.ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
