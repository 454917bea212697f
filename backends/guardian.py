"""Runs one program and sees to it that nothing of it is left: the script between us and an engine's process. Shell.

Started by backends.child as `python -I -S guardian.py PARENT COMMAND...`, it needs nothing of this package. Linux tells it
when the parent is gone, however that ended, and adopts to it whatever the program's processes leave behind. SIGTERM goes on
to the program's process group; SIGQUIT kills all at once; an orphan's program has ORPHAN_S to end by itself. When the
program has ended, the rest is killed and reaped, and its exit code is ours (128 + signal, as shells tell it).
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

ORPHAN_S = 10.0
_PDEATHSIG, _SUBREAPER = 1, 36  # of prctl
_HEARD = {signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD, signal.SIGALRM}


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def _become(command: list[str], guardian: int) -> NoReturn:
    """In the forked process: the program, killed should the guardian be."""
    os.setpgid(0, 0)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guardian:
        os._exit(128 + signal.SIGKILL)  # it went before we could ask to go with it
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(command[0], command)  # noqa: S606 (a shell is what must not be there)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
        os._exit(127)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _end_the_rest(group: int) -> None:
    """Kill and reap until no descendant is left, also those that went into sessions of their own."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    _signal_group(group, signal.SIGKILL)
    while children.exists():
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)  # not yet reaped, so the number is nobody else's
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _ended(program: int) -> int | None:
    """Reap who has ended; the program's exit code if it was among them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == 0:
            return None
        if pid == program:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main() -> int:
    """Until the program has ended; its exit code."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    _prctl(_PDEATHSIG, signal.SIGTERM)
    _prctl(_SUBREAPER, 1)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM  # it went before we could ask to be told
    guardian, program = os.getpid(), os.fork()
    if program == 0:
        _become(command, guardian)
    with suppress(OSError):  # it has done so itself, and runs already
        os.setpgid(program, program)  # else a signal heard before would go to nobody
    while True:
        heard = signal.sigwait(_HEARD)
        code = _ended(program)
        if code is not None:
            _end_the_rest(program)
            return code
        if heard in {signal.SIGTERM, signal.SIGINT}:
            _signal_group(program, signal.SIGTERM)
            if os.getppid() != parent:
                signal.setitimer(signal.ITIMER_REAL, ORPHAN_S)
        elif heard in {signal.SIGQUIT, signal.SIGALRM}:
            _signal_group(program, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
