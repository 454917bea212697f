"""Gives memory back to the system: what a burst of bodies took is of no use to this process afterwards. Shell.

glibc keeps what is freed in the middle of its heap, and after a few large blocks it takes all later ones from the heap,
too. So large blocks are pinned to mappings of their own, threads share one arena, and free pages are let go now and then.
Another C library is left alone. The figures are from mallopt(3).
"""

import asyncio
import ctypes

EVERY_S = 5.0
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # names of mallopt's parameters
TOP_BYTES = 8 << 20  # at the heap's end at most, free: letting go of it with each body would cost more than it is worth
MAPPED_BYTES = 1 << 20  # and more: blocks with a mapping of their own


class GiveBack:
    """From construction to `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim") and hasattr(library, "mallopt"):
            for parameter, value in ((_TRIM_THRESHOLD, TOP_BYTES), (_MMAP_THRESHOLD, MAPPED_BYTES), (_ARENA_MAX, 1)):
                library.mallopt(parameter, value)
            self._trim = library.malloc_trim
            self._again()

    def _again(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._begin)

    def _begin(self) -> None:
        # in a thread: the call waits without the GIL, and small blocks are served meanwhile
        self._loop.run_in_executor(None, self._trim, 0)
        self._again()

    def close(self) -> None:
        """Stop. A call under way ends by itself."""
        if self._timer is not None:
            self._timer.cancel()
