"""SGLang's own load snapshot (0.5.23): counts that every scheduler puts into a file in shared memory. Shell.

The file has a head (`SLNS`, version 2, data-parallel ranks, slot size) and a slot for each rank: length, then a msgpack
map. Writers hold a lock (flock) for the write; a reader that finds it taken keeps the last state. Counts only: running
requests are taken to be alike, each with the mean context, and to go on for `expected_tokens`. A server publishes after each
prefill, every --load-snapshot-publish-interval (15) decode steps, and about once a second while idle; when it ends, the file
stays. Tested on a running server.
"""

import fcntl
import glob
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import msgspec

from predictor.profile import EngineLimits
from predictor.sighting import NoSightError, Sighting
from predictor.snapshot import Resident, Snapshot

DEFAULT_PATTERN = "/dev/shm/sglang_loads_*.shm"  # noqa: S108 - SGLang's own place
STALE_S = 10.0
MAGIC, VERSION = b"SLNS", 2
_HEAD = struct.Struct("<4sHHI")
_LENGTH = struct.Struct("<I")
_RESIDENTS_MAX = 8192


class Load(msgspec.Struct):
    """The fields of a load snapshot that are read; others are ignored. `timestamp` is wall clock."""

    timestamp: float = 0.0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int = 0
    num_used_tokens: int = 0
    max_total_num_tokens: int = 0
    max_running_requests: int = 0


@dataclass(frozen=True, slots=True)
class SglangSizes:
    """What the file does not say: the server's --chunked-prefill-size, --page-size and --context-length, and how many
    more tokens a running request is expected to produce."""

    chunk_tokens: int = 8192
    page_tokens: int = 1
    max_model_len: int = 0  # 0: as much as the KV cache holds
    expected_tokens: int = 256


def sizes_of(given: Mapping[str, int]) -> SglangSizes:
    """Sizes by name. Raises ValueError for unknown names and impossible values."""
    known = [field.name for field in fields(SglangSizes)]
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"no size {name!r}; known: {', '.join(known)}")
        if value < (name != "max_model_len"):
            raise ValueError(f"{name} must be at least 1")
    return SglangSizes(**given)


_decoder = msgspec.msgpack.Decoder(Load)


def find_file(is_fresh: Callable[[str], bool], pattern: str) -> str:
    """The one file that SGLang has made; of several the fresh one, since a server leaves its file behind when it ends. Raises
    NoSightError when that names none, or more than one."""
    found = sorted(glob.glob(pattern))
    fresh = found if len(found) == 1 else [path for path in found if is_fresh(path)]
    if len(fresh) != 1:
        of_them = f", {len(fresh)} of them written to by a server" if found else ""
        raise NoSightError("none", f"{len(found)} load snapshots match {pattern}{of_them}: name the engine's own")
    return fresh[0]


def _requests(load: Load) -> tuple[int, int]:
    """(running, waiting), with those that SGLang counts as neither: a prompt between two of its chunks is only among the tokens
    that wait, and what has just got its first token only among those in use."""
    waiting = min(load.num_waiting_reqs, _RESIDENTS_MAX)
    between_chunks = not waiting and load.num_waiting_uncached_tokens > 0
    just_begun = not load.num_running_reqs and load.num_used_tokens > 0 and not between_chunks
    running = min(load.num_running_reqs + just_begun, _RESIDENTS_MAX, load.max_running_requests)
    return running, waiting + between_chunks


def state_of(load: Load, sizes: SglangSizes) -> Snapshot:
    """The engine that such counts describe, in vLLM's order of work: counts do not merit more than the quick kernel.

    Raises ValueError when they are none of an engine's that could work.
    """
    page = sizes.page_tokens
    kv_blocks = load.max_total_num_tokens // page
    max_model_len = min(sizes.max_model_len or kv_blocks * page, kv_blocks * page)
    limits = EngineLimits(
        kv_blocks,
        page,
        load.max_running_requests,
        max(sizes.chunk_tokens, load.max_running_requests),
        max_model_len,
    )
    running, waiting = _requests(load)
    context = max(1, min(load.num_used_tokens // max(1, running), max_model_len - 2))
    prompt = max(1, min(load.num_waiting_uncached_tokens // max(1, waiting), max_model_len - 1))
    more = max(1, min(sizes.expected_tokens, max_model_len - context - 1))
    first = max(1, min(sizes.expected_tokens, max_model_len - prompt))
    used_blocks = running * limits.blocks_for(context)
    return Snapshot(
        load.timestamp,
        limits,
        tuple(Resident(f"running {i}", context, context, 1, 1 + more) for i in range(running)),
        tuple(Resident(f"waiting {i}", prompt, 0, 0, first) for i in range(waiting)),
        max(0, kv_blocks - used_blocks),
    )


class SglangLoadSource:
    """States of one data-parallel rank, in wall-clock time, as SGLang stamps them: `now_s` is wall clock, too. SGLang
    publishes when idle as well, so an old stamp means that it hangs or has ended."""

    def __init__(self, path: str = "", rank: int = 0, sizes: SglangSizes = SglangSizes(), stale_s: float = STALE_S) -> None:
        self._path = path
        self._rank = rank
        self._sizes = sizes
        self._stale_s = stale_s
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._slot = (0, 0)  # where the rank's slot begins, and its size
        self._payload = b""
        self._last: Sighting | None = None
        self._number = 0

    def __repr__(self) -> str:
        return f"<SglangLoadSource {self._path or DEFAULT_PATTERN} rank {self._rank}>"

    def look(self, now_s: float) -> Sighting:
        """The newest state. Raises NoSightError."""
        payload = self._read(self._map or self._open(now_s))
        if payload != self._payload:
            self._last, self._payload = self._sighting(payload), payload
        if self._last is None:
            raise NoSightError("none", "SGLang has published nothing yet")
        age_s = now_s - self._last.snapshot.taken_s
        if age_s > self._stale_s:
            self.close()  # a server that was started anew has another file
            raise NoSightError("stale", f"SGLang has published nothing for {age_s:.1f} s")
        return self._last

    def close(self) -> None:
        """Let go of the file; the next look opens it anew."""
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._payload, self._last = b"", None

    def _is_fresh(self, path: str, now_s: float) -> bool:
        other = SglangLoadSource(path, self._rank, self._sizes, self._stale_s)
        try:
            other.look(now_s)
        except NoSightError:
            return False
        finally:
            other.close()
        return True

    def _open(self, now_s: float) -> mmap.mmap:
        path = self._path or find_file(lambda found: self._is_fresh(found, now_s), DEFAULT_PATTERN)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._map = mapped = mmap.mmap(self._fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            self.close()
            raise NoSightError("none", f"can't open {path}: {error}") from None
        try:
            self._slot = self._find_slot(mapped)
        except NoSightError:
            self.close()
            raise
        return mapped

    def _find_slot(self, mapped: mmap.mmap) -> tuple[int, int]:
        if len(mapped) < _HEAD.size:
            raise NoSightError("none", "the load snapshot is not complete yet")
        magic, version, ranks, size = _HEAD.unpack_from(mapped)
        if magic != MAGIC or version != VERSION:
            raise NoSightError("version", f"the load snapshot is {magic!r} version {version}, known is {VERSION}")
        at = _HEAD.size + self._rank * size
        if self._rank >= ranks or size <= _LENGTH.size or at + size > len(mapped):
            raise NoSightError("version", f"the load snapshot has no slot for rank {self._rank}")
        return at, size

    def _read(self, mapped: mmap.mmap) -> bytes:
        """The slot's payload; the last one while a writer is at work."""
        at, size = self._slot
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._payload
        try:
            length = _LENGTH.unpack_from(mapped, at)[0]
            return mapped[at + _LENGTH.size : at + _LENGTH.size + length] if 0 < length <= size - _LENGTH.size else b""
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _sighting(self, payload: bytes) -> Sighting | None:
        if not payload:
            return None
        try:
            load = _decoder.decode(payload)
            if not load.timestamp:
                return None  # what is written at the start
            snapshot = state_of(load, self._sizes)
        except (msgspec.MsgspecError, ValueError) as error:
            raise NoSightError("torn", f"the load snapshot is malformed: {error}") from None
        self._number += 1
        return Sighting(self._number, "sglang", snapshot, lists_requests=False)
