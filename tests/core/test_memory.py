"""What of a process's code may be let go of, and that nothing is lost by it."""

import ctypes
from pathlib import Path

import pytest

from gateway.memory import clean_code, let_go_of_code

FIGURES = "Size:                 64 kB\nRss:                  64 kB\nAnonymous:            {} kB\nVmFlags: rd ex mr mw me\n"


def mapping(rights: str, path: str, written_kib: int = 0) -> str:
    return f"7f0000010000-7f0000020000 {rights} 00001000 08:01 42                   {path}\n" + FIGURES.format(written_kib)


@pytest.mark.parametrize("path", ["/usr/lib/libpython3.11.so.1.0", "/opt/a lib.so", "/srv/replaced.so (deleted)"])
def test_code_of_files_is_let_go_of(path: str) -> None:
    assert clean_code(mapping("r-xp", path)) == [(0x7F0000010000, 0x10000)]


@pytest.mark.parametrize(
    "kept",
    [
        mapping("rw-p", "/usr/lib/libpython3.11.so.1.0"),
        mapping("r--p", "/usr/lib/libpython3.11.so.1.0"),  # tables that the linker has filled in
        mapping("r-xp", "/usr/lib/patched.so", written_kib=4),
        mapping("r-xp", "[vdso]"),
        mapping("rwxp", ""),
        mapping("r-xs", "/dev/shm/shared"),
        "7f0000010000-7f0000020000 r-xp 00001000 08:01 42                   /usr/lib/told-nothing.so\n",
    ],
)
def test_what_cannot_be_had_again_is_kept(kept: str) -> None:
    assert clean_code(kept + mapping("r-xp", "/usr/lib/other.so") + kept) == [(0x7F0000010000, 0x10000)]


def test_nothing_is_mapped() -> None:
    assert clean_code("") == []


def test_what_is_called_again_comes_back() -> None:
    def mapped_kib() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))

    before_kib = mapped_kib()
    let_go_of_code(ctypes.CDLL(None))
    assert mapped_kib() < before_kib
    assert sorted(clean_code(Path("/proc/self/smaps").read_text()))
