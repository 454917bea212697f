"""Modules that SGLang imports and that do not exist beside a CPU's torch: GPU kernels, and packages for pictures and sound.

A stand-in has every name that is asked of it: a class where the name begins like one, else something that decorates (as
kernels are declared where they are imported) and cannot compute: calling or launching it with data is an error. So SGLang
works here by its own plain torch code or not at all.
"""

import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence

ABSENT = frozenset({"triton", "sgl_kernel", "torchvision", "soundfile", "IPython"})


class _Class:
    """To be derived from, or made while a module is imported (a kernel's configurations)."""

    def __init__(self, *_: object, **__: object) -> None: ...


class _Name:
    """Any other name of a stand-in."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Name":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self._name}.{name}")

    def __call__(self, *given: object, **named: object) -> object:
        """As a decorator, with arguments or without."""
        if len(given) == 1 and not named and isinstance(given[0], types.FunctionType | type):
            return given[0]
        if any(hasattr(value, "untyped_storage") for value in (*given, *named.values())):
            raise TypeError(f"{self._name} is a stand-in and computes nothing")
        return _undecorated

    def __repr__(self) -> str:
        return f"<stand-in for {self._name}>"


def _undecorated(function: Callable[..., object]) -> Callable[..., object]:
    return function


class _Module(types.ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Class,), {}) if name[0].isupper() else _Name(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder:
    """Finds each of those packages, and whatever is imported from inside it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = name.partition(".")[0] in ABSENT
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "soundfile":  # mistral_common makes an enumeration of them
            module.available_formats = dict  # type: ignore[attr-defined]


def put_in() -> None:
    """From now on in this process. transformers is asked first, and remembers that there is no torchvision."""
    from transformers.utils.import_utils import is_torchvision_available

    is_torchvision_available()
    sys.meta_path.insert(0, _Finder())
