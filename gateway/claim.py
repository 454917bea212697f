"""The sole use of a file: a lock on PATH.lock beside it, which ends with the process, however that ends. Shell.

During a rolling restart two gateways have one configuration for a while: the new one reads the file, and writes it once the
old one is gone. Where a file system knows no locks, everybody has what he asks for.
"""

import errno
import fcntl
import os

from gateway.private_file import open_private

_TAKEN = (errno.EAGAIN, errno.EACCES)
PID_BYTES = 20


class Claim:
    """See the module's words. An empty path, or what is no file, is nobody's to dispute."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._free = not path or (os.path.lexists(path) and not os.path.isfile(path))
        self._granted = self._free

    def __repr__(self) -> str:
        return f"<Claim {self._path} {'ours' if self._granted else 'not ours'}>"

    def ours(self) -> bool:
        """Whether the file is ours; tried anew while it is not."""
        if not self._granted:
            try:
                if self._fd < 0:
                    self._fd = open_private(f"{self._path}.lock", os.O_RDWR)
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
            except OSError as error:
                if error.errno in _TAKEN and self._fd >= 0:
                    return False
            self._granted = True
        return self._granted

    def holder(self) -> str:
        """Whose it is, in words, while it is not ours."""
        said = os.pread(self._fd, PID_BYTES, 0).strip() if self._fd >= 0 else b""
        return f"process {said.decode()}" if said.isdigit() else "another process"

    def release(self) -> None:
        """Let go."""
        self._granted = self._free
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
