"""Gives memory back to the system: what a burst of bodies took is of no use to this process afterwards. Shell.

glibc keeps what is freed in the middle of its heap, so free pages are let go now and then, and threads share one arena.
Its thresholds stay as they are: with fixed ones a body of 220 KB cost half as much CPU again, in page faults. Another C
library is left alone. The figure is from mallopt(3).
"""

import asyncio
import ctypes

EVERY_S = 5.0
_ARENA_MAX = -8  # mallopt's name of that parameter


class GiveBack:
    """From construction to `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim") and hasattr(library, "mallopt"):
            library.mallopt(_ARENA_MAX, 1)
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
