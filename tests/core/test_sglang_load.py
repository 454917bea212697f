"""SGLang's load snapshot, in a file laid out as the wheel lays it out; tests/engine holds it against the wheel's own code."""

import fcntl
import struct
from pathlib import Path

import msgspec
import pytest

from backends.registry import snapshot_source
from backends.sglang_load import Load as Read
from backends.sglang_load import SglangLoadSource, SglangSizes, find_file, state_of
from predictor.sighting import NoSightError
from predictor.snapshot import settle

SLOT = 16 * 1024
BUSY = {
    "timestamp": 1000.0,
    "num_running_reqs": 3,
    "num_waiting_reqs": 2,
    "num_waiting_uncached_tokens": 900,
    "num_used_tokens": 3000,
    "num_total_tokens": 3900,
    "max_total_num_tokens": 40_000,
    "max_running_requests": 64,
    "gen_throughput": 512.5,
    "queues": [2, 0, 0, 0, 0],
}


class File:
    """A load snapshot of two ranks."""

    def __init__(self, path: Path, version: int = 2, magic: bytes = b"SLNS") -> None:
        self.path = path
        path.write_bytes(struct.pack("<4sHHI", magic, version, 2, SLOT) + bytes(2 * SLOT))

    def write(self, rank: int, fields: dict[str, object]) -> None:
        payload = msgspec.msgpack.encode(fields)
        with self.path.open("r+b") as file:
            file.seek(12 + rank * SLOT)
            file.write(struct.pack("<I", len(payload)) + payload)

    def raw(self, rank: int, slot: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(12 + rank * SLOT)
            file.write(slot)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "sglang_loads_x.shm")


def source(file: File, rank: int = 0, **sizes: int) -> SglangLoadSource:
    return SglangLoadSource(str(file.path), rank, SglangSizes(**sizes))


def cause(source: SglangLoadSource, now_s: float = 1000.0) -> str:
    with pytest.raises(NoSightError) as caught:
        source.look(now_s)
    return caught.value.cause


def test_counts_become_requests_that_are_all_alike(file: File) -> None:
    file.write(1, BUSY)
    found = source(file, 1, page_tokens=16, chunk_tokens=2048, expected_tokens=100, max_model_len=8192).look(1000.5)
    state = found.snapshot
    assert (found.engine, found.lists_requests, state.taken_s) == ("sglang", False, 1000.0)
    assert [one.computed_tokens for one in state.running] == [1000] * 3
    assert [one.output_tokens - one.generated_tokens for one in state.running] == [100] * 3
    assert [one.prompt_tokens for one in state.waiting] == [450] * 2
    assert state.limits.kv_blocks == 2500
    assert (state.limits.max_num_seqs, state.limits.max_num_batched_tokens, state.limits.max_model_len) == (64, 2048, 8192)
    assert state.free_blocks == 2500 - 3 * 63
    assert settle(state) == state


@pytest.mark.parametrize(
    ("running", "waiting", "uncached", "used", "seen"),
    [
        (0, 0, 0, 0, (0, 0)),
        (0, 0, 1189, 1024, (0, 1)),  # as a running one said it: a prompt of 1700 tokens after two chunks of 512
        (0, 0, 0, 32, (1, 0)),  # as a running one said it: a prompt of 30 tokens with its first token
        (2, 0, 700, 3000, (2, 1)),
        (0, 1, 700, 32, (1, 1)),
        (2, 1, 700, 3000, (2, 1)),
    ],
)
def test_requests_that_are_counted_nowhere_are_seen(
    file: File, running: int, waiting: int, uncached: int, used: int, seen: tuple[int, int]
) -> None:
    counts = {"num_running_reqs": running, "num_waiting_reqs": waiting, "num_used_tokens": used}
    file.write(0, {**BUSY, **counts, "num_waiting_uncached_tokens": uncached})
    state = source(file).look(1000.0).snapshot
    assert (len(state.running), len(state.waiting)) == seen
    assert sum(one.prompt_tokens for one in state.waiting) in (uncached, 0)


def test_new_state_has_a_new_number_and_an_old_one_is_the_same_object(file: File) -> None:
    file.write(0, BUSY)
    reader = source(file)
    first = reader.look(1000.0)
    assert reader.look(1000.1) is first
    file.write(0, {**BUSY, "timestamp": 1001.0, "num_running_reqs": 4})
    second = reader.look(1001.0)
    assert second.number > first.number
    assert len(second.snapshot.running) == 4


def test_silence_is_stale_even_when_idle_and_a_new_file_is_found(file: File) -> None:
    file.write(0, {**BUSY, "num_running_reqs": 0, "num_waiting_reqs": 0})
    reader = source(file)
    reader.look(1009.0)
    assert cause(reader, 1011.0) == "stale"
    file.path.unlink()
    assert cause(reader, 1012.0) == "none"
    File(file.path).write(0, {**BUSY, "timestamp": 1013.0})
    reader.look(1013.0)


def test_writer_at_work_leaves_the_last_state(file: File) -> None:
    file.write(0, BUSY)
    reader = source(file)
    first = reader.look(1000.0)
    with file.path.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        file.raw(0, bytes(4))
        assert reader.look(1000.1) is first
    file.write(0, {**BUSY, "timestamp": 1000.2})
    assert reader.look(1000.2).number == first.number + 1


@pytest.mark.parametrize(
    ("version", "magic", "rank", "said"),
    [(3, b"SLNS", 0, "version"), (2, b"XXXX", 0, "version"), (2, b"SLNS", 2, "version"), (2, b"SLNS", 1, "none")],
)
def test_foreign_and_empty_files(tmp_path: Path, version: int, magic: bytes, rank: int, said: str) -> None:
    assert cause(source(File(tmp_path / "x", version, magic), rank)) == said


@pytest.mark.parametrize(
    "slot",
    [struct.pack("<I", 2**31), struct.pack("<I", 3) + b"\xc1\xc1\xc1", struct.pack("<I", 0)],
    ids=["length over the slot", "no msgpack", "empty"],
)
def test_torn_slots_are_told(file: File, slot: bytes) -> None:
    file.raw(0, slot)
    assert cause(source(file)) in ("none", "torn")


@pytest.mark.parametrize(
    "fields", [{}, {"max_running_requests": 0}, {"max_total_num_tokens": 0}, {"timestamp": "late"}], ids=str
)
def test_counts_of_no_engine_are_told(file: File, fields: dict[str, object]) -> None:
    file.write(0, {**BUSY, **fields} if fields else {"dp_rank": 0})
    assert cause(source(file)) in ("none", "torn")


def test_missing_and_short_files_are_told(tmp_path: Path) -> None:
    assert cause(SglangLoadSource(str(tmp_path / "none"))) == "none"
    (tmp_path / "short").write_bytes(b"SL")
    assert cause(SglangLoadSource(str(tmp_path / "short"))) == "none"
    (tmp_path / "empty").touch()
    assert cause(SglangLoadSource(str(tmp_path / "empty"))) == "none"


@pytest.mark.parametrize("running", [0, 1, 64, 10**6])
@pytest.mark.parametrize("used", [0, 1, 40_000, 10**9])
@pytest.mark.parametrize("waiting", [0, 1, 10**6])
def test_whatever_the_counts_the_state_is_an_engines(running: int, used: int, waiting: int) -> None:
    load = Read(1.0, running, waiting, used, used, 40_000, 64)
    state = state_of(load, SglangSizes(page_tokens=16))
    uncounted = not running and bool(waiting) and bool(used)
    assert len(settle(state).running) == min(running + uncounted, 64)


def test_of_several_files_the_one_that_is_written_to_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that were ended leave theirs behind."""
    monkeypatch.setattr("backends.sglang_load.DEFAULT_PATTERN", str(tmp_path / "sglang_loads_*.shm"))
    reader = SglangLoadSource()
    assert cause(reader) == "none"
    old, new, unwritten = (File(tmp_path / f"sglang_loads_{name}.shm") for name in ("b", "a", "c"))
    assert cause(reader) == "none"
    old.write(0, BUSY)
    assert len(reader.look(1001.0).snapshot.running) == 3
    new.write(0, {**BUSY, "timestamp": 1100.0, "num_running_reqs": 1})
    assert cause(reader, 1100.5) == "stale"
    assert len(reader.look(1100.5).snapshot.running) == 1
    unwritten.write(0, {**BUSY, "timestamp": 1100.0})
    assert cause(SglangLoadSource(), 1100.5) == "none"


def test_the_only_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sglang_loads_a.shm"
    path.touch()
    assert find_file(lambda _: False, str(tmp_path / "*.shm")) == str(path)


@pytest.mark.parametrize(
    ("engine", "sizes", "said"),
    [
        ("sglang", {"page": 16}, "known: chunk_tokens, page_tokens"),
        ("sglang", {"page_tokens": 0}, "at least 1"),
        ("vllm", {"page_tokens": 16}, "itself"),
        ("openai", {}, "known: vllm, sglang"),
    ],
)
def test_wrong_sizes_and_engines_are_told(engine: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        snapshot_source(engine, "", sizes)


def test_sizes_reach_the_source(file: File) -> None:
    file.write(0, BUSY)
    source, clock = snapshot_source("sglang", str(file.path), {"page_tokens": 16, "chunk_tokens": 2048, "max_model_len": 0})
    limits = source.look(1000.0).snapshot.limits
    assert (clock, limits.block_size, limits.max_num_batched_tokens, limits.max_model_len) == ("wall", 16, 2048, 40_000)
