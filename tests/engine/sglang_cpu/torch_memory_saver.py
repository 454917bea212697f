"""What SGLang's --enable-memory-saver asks of the package of this name, for a CPU: storage made in a region can be given back
to the system and be there again at the same tensors, with its content where a copy was to be kept, else with rubbish.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_MAKES = frozenset({"empty", "zeros", "ones", "full", "empty_strided"})
RUBBISH = 0xFF  # read as bfloat16 it is not a number


class _Made(TorchDispatchMode):
    """Collects the storage of all that is made from nothing."""

    def __init__(self, into: list[Any]) -> None:
        super().__init__()
        self._into = into

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _MAKES and isinstance(made, torch.Tensor) and made.device.type == "cpu":
            self._into.append(made.untyped_storage())
        return made


class _Saver:
    """The one of a process."""

    enabled = True

    def __init__(self) -> None:
        self._made: dict[str, list[Any]] = {}
        self._kept: dict[str, bool] = {}
        self._away: dict[str, list[tuple[Any, int, Any]]] = {}

    @contextmanager
    def region(self, tag: str, enable_cpu_backup: bool = False) -> Iterator[None]:
        """What is made inside belongs to `tag`."""
        self._kept[tag] = enable_cpu_backup
        with _Made(self._made.setdefault(tag, [])):
            yield

    def pause(self, tag: str) -> None:
        """Give its memory back."""
        away = self._away[tag] = []
        for storage in self._made.get(tag, []):
            size = storage.nbytes()
            away.append((storage, size, storage.clone() if self._kept[tag] else None))
            storage.resize_(0)

    def resume(self, tag: str) -> None:
        """Have it again."""
        for storage, size, copy in self._away.pop(tag):
            storage.resize_(size)
            if copy is not None:
                storage.copy_(copy)
            elif size:
                torch.tensor([], dtype=torch.uint8).set_(storage).fill_(RUBBISH)

    def disable(self) -> AbstractContextManager[None]:
        """What is made inside belongs to no region."""
        return nullcontext()


torch_memory_saver = _Saver()


def configure_subprocess() -> AbstractContextManager[None]:
    """Nothing has to be loaded before a process starts."""
    return nullcontext()
