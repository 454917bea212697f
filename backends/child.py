"""A program of ours in processes of its own: started, ended, never left behind. Shell.

A guardian process stands between (backends.guardian): it leads a session, hears signals for all, and outlives nothing.
Its output is a file that is kept short while it runs, too. Nothing here knows what the program is or when it is ready.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

LOG_BYTES = 16 * 1024 * 1024  # a log file that is longer becomes NAME.1: at a start renamed, while it is written to copied
LOOK_S = 1.0  # so often it is looked at meanwhile
TAIL_BYTES = 4096
_KILL_S = 10.0  # in which processes go that were killed, unless a driver holds them
_AGAIN_S = 0.1  # then said again: one that comes before the guardian listens is lost where we were started with it ignored
_GUARDIAN = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py")))


class Child:
    """One program, which may be started again after it has ended. Its output goes to the end of the log file, without one to a
    file that has no name."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._tail: BinaryIO | None = None  # the log that it writes to, whatever becomes of its name
        self._log_begin = 0
        self._cutting = False
        self._cut = b""  # the end of what was cut off the log meanwhile
        self._watch: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        if self._process is None:
            return "<Child not started>"
        return f"<Child pid {self.pid}, {'running' if self.running else f'ended with {self.code}'}>"

    @property
    def running(self) -> bool:
        """Whether any process of it is there."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The guardian's, alive as long as the program. It must have been started."""
        assert self._process is not None, "start() first"
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, 128 + number for a signal; None while it runs and before it was started."""
        code = None if self._process is None else self._process.returncode
        return code if code is None or code >= 0 else 128 - code

    async def start(self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None) -> None:
        """Start it. Raises OSError when folder or log file cannot be used; a program that is not there ends with 127."""
        assert not self.running, f"{self!r} is already running"
        output = self._open_log(self._log) if self._log is not None else self._open_nameless()
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *(*_GUARDIAN, str(os.getpid()), *command),
                env=dict(environment),
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        )
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._process = await starting  # else it would be there, and nobody's
            raise
        finally:
            os.close(output)
        self._watch = asyncio.get_running_loop().call_later(LOOK_S, self._keep_short)

    async def ends_within(self, seconds: float) -> bool:
        """Wait so long for its end; whether it came."""
        if self._process is None:
            return True
        try:
            await asyncio.wait_for(self._process.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def stop(self, grace_s: float) -> bool:
        """SIGTERM to all its processes, after `grace_s` SIGKILL. Whether they are gone."""
        if self.running:
            self._signal(signal.SIGTERM)
            await self.ends_within(grace_s)
        return await self.kill()

    async def kill(self) -> bool:
        """SIGKILL to all its processes at once. Whether they are gone: what hangs in a driver counts as running, and the
        guardian stays with it, until the driver lets go."""
        wait_s, left_s = _AGAIN_S, _KILL_S
        while self.running and left_s > 0:
            self._signal(signal.SIGQUIT)
            await self.ends_within(wait_s)
            wait_s, left_s = 2 * wait_s, left_s - wait_s
        return not self.running

    def tail(self) -> str:
        """The end of what it has written since it was started, at most TAIL_BYTES; "" where that can't be read."""
        if self._tail is None:
            return ""
        try:
            end = os.fstat(self._tail.fileno()).st_size
            begin = self._log_begin if self._log_begin <= end else 0  # else somebody has cut the file
            last = os.pread(self._tail.fileno(), TAIL_BYTES, max(begin, end - TAIL_BYTES))
            return (self._cut + last)[-TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""

    def forget(self) -> None:
        """Its last words are not asked for any more."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _keep_short(self) -> None:
        if not self.running or self._tail is None:
            return
        loop, log = asyncio.get_running_loop(), self._tail.fileno()
        if os.fstat(log).st_size > LOG_BYTES and not self._cutting:
            self._cutting = True
            loop.run_in_executor(None, self._shorten, os.dup(log))
        self._watch = loop.call_later(LOOK_S, self._keep_short)

    def _shorten(self, log: int) -> None:
        """A thread's work, with a descriptor of its own: the end goes to NAME.1, and the file, to which the program goes on
        appending, is cut; what it writes between is lost. A file that somebody has renamed is theirs to cut."""
        try:
            with suppress(OSError):
                self._cut_short(log)
        finally:
            os.close(log)
            self._cutting = False

    def _cut_short(self, log: int) -> None:
        with os.fdopen(log, "r+b", buffering=0, closefd=False) as file:
            now = os.fstat(log)
            if now.st_nlink:
                if self._log is None or not self._log.exists() or not os.path.samestat(now, self._log.stat()):
                    return
                older = self._log.with_name(self._log.name + ".1")
                try:
                    with older.open("wb") as copy:
                        file.seek(max(now.st_size - LOG_BYTES, 0))
                        shutil.copyfileobj(file, copy)
                except OSError:  # a full disk, say: cut it all the more
                    older.unlink(missing_ok=True)
            end = os.fstat(log).st_size
            last = os.pread(log, TAIL_BYTES, max(end - TAIL_BYTES, self._log_begin))
            file.truncate(0)
            self._cut, self._log_begin = last, 0

    def _open_log(self, path: Path) -> int:
        if path.exists() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(path.name + ".1"))
        self.forget()
        output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._log_begin, self._cut = os.fstat(output).st_size, b""
        with suppress(OSError):  # written and not read: it has no last words
            self._tail = path.open("r+b", buffering=0)
        return output

    def _open_nameless(self) -> int:
        self.forget()
        number, path = tempfile.mkstemp()
        Path(path).unlink()
        self._tail = os.fdopen(number, "r+b", buffering=0)
        self._log_begin, self._cut = 0, b""
        return os.open(f"/proc/self/fd/{self._tail.fileno()}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            return
