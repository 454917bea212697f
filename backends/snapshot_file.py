"""The shared-memory file of a snapshot record: who writes it, who reads it, and whether the writer is still there. Shell.

The writer holds an open-file lock on the file for its life. The kernel lets go of it when the process ends, however
that ends, so that a reader tells a dead engine from an idle one without asking the engine and without process numbers.
"""

import fcntl
import mmap
import os
import struct

from backends.snapshot_record import HEAD_BYTES, RecordError, RecordReader, RecordWriter, buffer_bytes

DEFAULT_PATH = "/dev/shm/leeway-vllm"  # noqa: S108 - meant for others to find; opened without following links
# struct flock of Linux: type, whence, start, length, pid (0 for locks that belong to an open file)
_FLOCK = struct.Struct("hhqqi")


def _lock(fd: int, command: int, kind: int) -> int:
    """Set or test the lock on the whole file; the kind of lock in the way (F_UNLCK: none). Raises OSError."""
    answer = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
    found: int = _FLOCK.unpack(answer)[0]
    return found


class SnapshotFileError(Exception):
    """The file can't be used; the text says why and what to do."""


def _claim(path: str) -> int:
    """Open and lock the file. Raises SnapshotFileError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise SnapshotFileError(f"can't open the snapshot file {path}: {error.strerror}") from None
    try:
        _lock(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
    except OSError:
        os.close(fd)
        raise SnapshotFileError(f"{path} is written by another engine: give each one a path of its own") from None
    return fd


class SnapshotFile:
    """The writer's end: makes the file if need be (mode 0644, as readers may be other users), and owns it until `close`.

    `write` publishes a payload. Raises SnapshotFileError when another process writes it or the path can't be used.
    """

    def __init__(self, path: str, payload_max: int) -> None:
        self.path = path
        size = buffer_bytes(payload_max)
        self._fd = _claim(path)
        if os.fstat(self._fd).st_size not in (0, size):
            os.unlink(path)  # never cut shorter: readers may have it mapped
            os.close(self._fd)
            self._fd = _claim(path)
        try:
            os.ftruncate(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
        except OSError as error:
            os.close(self._fd)
            raise SnapshotFileError(f"can't map the snapshot file {path}: {error.strerror}") from None
        self._writer = RecordWriter(memoryview(self._map), payload_max)
        self.write = self._writer.write

    def __repr__(self) -> str:
        return f"<SnapshotFile {self.path} number {self._writer.sequence}>"

    def close(self) -> None:
        """Let go of the file; readers see that nobody writes it any more. It stays, for the next writer."""
        self._writer.close()
        self._map.close()
        os.close(self._fd)


class SnapshotFileReader:
    """A reader's end. Opens the file when it is there, and again when it was replaced; keeps nothing locked."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None
        self._reader: RecordReader | None = None

    def __repr__(self) -> str:
        return f"<SnapshotFileReader {self.path}{'' if self._reader is None else f' number {self._reader.sequence}'}>"

    def sequence(self) -> int:
        """The newest record's number, without reading it. Raises RecordError when there is no file of ours."""
        return (self._reader or self._open()).sequence

    def read(self) -> tuple[int, bytes]:
        """(number, payload) of the newest record. Raises RecordError."""
        return (self._reader or self._open()).read()

    def check_writer(self) -> None:
        """Raise RecordError unless a writer holds the file; then the file is opened anew at the next read."""
        if self._reader is None:
            self._open()
        if _lock(self._fd, fcntl.F_OFD_GETLK, fcntl.F_RDLCK) == fcntl.F_UNLCK:
            self.close()
            raise RecordError(f"nobody writes {self.path}: the engine has ended", "gone")

    def close(self) -> None:
        """Unmap and close."""
        self._reader = None
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> RecordReader:
        self.close()
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(self._fd).st_size
            if size < HEAD_BYTES:
                raise RecordError(f"{self.path} holds no record yet")
            self._map = mmap.mmap(self._fd, size, prot=mmap.PROT_READ)
        except OSError as error:
            self.close()
            raise RecordError(f"can't open {self.path}: {error.strerror}") from None
        except RecordError:
            self.close()
            raise
        self._view = memoryview(self._map)
        try:
            self._reader = RecordReader(self._view)
        except RecordError:
            self.close()
            raise
        return self._reader
