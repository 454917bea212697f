"""Gives memory back to the system: what a start or a burst of bodies took is of no use to this process afterwards. Shell.

glibc keeps what is freed in the middle of its heap, so free pages are let go now and then, and threads share one arena.
Its thresholds stay as they are: with fixed ones a body of 220 KB cost half as much CPU again, in page faults. Another C
library is left alone. A quarter of the mapped code is used at the start alone; it is let go of once, and what is called
again comes back page by page from where the system keeps its file. The figures are from mallopt(3) and madvise(2).
"""

import asyncio
import ctypes
import re
from pathlib import Path

EVERY_S = 5.0
STARTED_S = 2.0
_ARENA_MAX = -8  # mallopt's name of that parameter
_DONT_NEED = 4  # madvise's name of that advice
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ *(.*)$", re.MULTILINE)
_WRITTEN = re.compile(r"^Anonymous: +(\d+) kB$", re.MULTILINE)


def clean_code(smaps: str) -> list[tuple[int, int]]:
    """(address, bytes) of the files' code in /proc/PID/smaps of which no page was ever written to: such pages, and no
    others, can be had again from their files."""
    out = []
    _, *rest = _MAPPING.split(smaps)
    for start, end, rights, path, figures in zip(*[iter(rest)] * 5, strict=True):
        written = _WRITTEN.search(figures)
        if rights == "r-xp" and path.startswith("/") and written is not None and written[1] == "0":
            out.append((int(start, 16), int(end, 16) - int(start, 16)))
    return out


def let_go_of_code(library: ctypes.CDLL) -> None:
    """Unmap the pages of code that is not called just now. Nothing where the system does not tell what is mapped."""
    try:
        smaps = Path("/proc/self/smaps").read_text()
    except OSError:
        return
    for address, size_bytes in clean_code(smaps):
        library.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), _DONT_NEED)


class GiveBack:
    """From construction to `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._once: asyncio.TimerHandle | None = None
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim") and hasattr(library, "mallopt"):
            library.mallopt(_ARENA_MAX, 1)
            self._trim = library.malloc_trim
            self._again()
            self._once = self._loop.call_later(STARTED_S, self._let_go_of_code, library)

    def _again(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._begin)

    def _begin(self) -> None:
        # in a thread: the call waits without the GIL, and small blocks are served meanwhile
        self._loop.run_in_executor(None, self._trim, 0)
        self._again()

    def _let_go_of_code(self, library: ctypes.CDLL) -> None:
        self._loop.run_in_executor(None, let_go_of_code, library)

    def close(self) -> None:
        """Stop. A call under way ends by itself."""
        for timer in (self._timer, self._once):
            if timer is not None:
                timer.cancel()
