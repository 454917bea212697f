"""Files closed to others, since they hold secrets: regular files of mode 0600 and nothing else. A device or a pipe that is
named instead keeps its mode and its place. Shell."""

import errno
import os
import stat

MODE = 0o600


def open_private(path: str, flags: int) -> int:
    """A descriptor of the file, which is made if it is not there and closed to others if it was open to them. Raises
    OSError, also for what is no regular file."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, MODE)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _irregular(path)
        os.fchmod(fd, MODE)
    except OSError:
        os.close(fd)
        raise
    return fd


def check_replaceable(path: str) -> None:
    """Raises OSError if something else than a file lies there, which a new file would take the place of."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise _irregular(path)


def _irregular(path: str) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", path)
