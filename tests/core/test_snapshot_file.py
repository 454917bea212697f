"""The shared-memory file between two processes: no torn record, a dead writer noticed, a replaced file found again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backends.snapshot_file import SnapshotFile, SnapshotFileError, SnapshotFileReader
from backends.snapshot_record import RecordError

ROOT = Path(__file__).parents[2]
# Publishes payloads of one repeated byte and of changing lengths, as fast as it can, until standard input closes.
WRITER = """
import select, sys
from backends.snapshot_file import SnapshotFile
file = SnapshotFile(sys.argv[1], 60000)
payloads = [bytes([i]) * (1 + 199 * i) for i in range(256)]
file.write(payloads[0])
print("writing", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for payload in payloads:
        file.write(payload)
"""


def writing(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def test_no_record_is_ever_torn(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    with writing(path) as process:
        reader, numbers, given_up = SnapshotFileReader(str(path)), set(), 0
        for _ in range(30_000):
            try:
                number, payload = reader.read()
            except RecordError:  # overtaken sixteen times in a row: allowed, but not to be the rule
                given_up += 1
                continue
            numbers.add(number)
            assert len(payload) == 1 + 199 * payload[0]
            assert payload.count(payload[0]) == len(payload)
        process.communicate()
    assert len(numbers) > 100
    assert given_up < 3000


def test_dead_writer_is_noticed_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    reader = SnapshotFileReader(str(path))
    with pytest.raises(RecordError, match="can't open"):
        reader.check_writer()
    with writing(path) as process:
        reader.read()
        reader.check_writer()
        process.send_signal(signal.SIGKILL)
        process.wait()
    with pytest.raises(RecordError, match="the engine has ended"):
        reader.check_writer()
    second = SnapshotFile(str(path), 60_000)
    second.write(b"second")
    assert reader.read()[1] == b"second"
    reader.check_writer()
    second.close()


def test_replaced_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    first = SnapshotFile(str(path), 100)
    first.write(b"first")
    reader = SnapshotFileReader(str(path))
    assert reader.read() == (1, b"first")
    path.unlink()
    first.close()
    second = SnapshotFile(str(path), 5000)
    second.write(b"second")
    with pytest.raises(RecordError):
        reader.check_writer()
    assert reader.read() == (1, b"second")
    second.close()


def test_file_is_never_cut_under_a_reader(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot")
    large = SnapshotFile(path, 1_000_000)
    large.write(bytes(999_999))
    reader = SnapshotFileReader(path)
    assert reader.sequence() == 1
    large.close()
    small = SnapshotFile(path, 100)
    small.write(b"small")
    assert reader.read() == (1, bytes(999_999))  # with the file cut shorter, this read would end the process
    with pytest.raises(RecordError):
        reader.check_writer()
    assert reader.read() == (1, b"small")
    small.close()


def test_two_writers_do_not_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "snapshot")
    first = SnapshotFile(path, 100)
    with pytest.raises(SnapshotFileError, match="written by another engine"):
        SnapshotFile(path, 100)
    first.close()
    SnapshotFile(path, 100).close()


def test_unusable_path_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotFileError, match="can't open"):
        SnapshotFile(str(tmp_path / "none" / "snapshot"), 100)
    link = tmp_path / "link"
    os.symlink(tmp_path / "target", link)
    with pytest.raises(SnapshotFileError, match="can't open"):
        SnapshotFile(str(link), 100)


@pytest.mark.parametrize("content", [b"", b"short", bytes(5000)])
def test_file_that_is_no_record_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(content)
    with pytest.raises(RecordError):
        SnapshotFileReader(str(path)).read()
