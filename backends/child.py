"""A program of ours in processes of its own: started, ended, never left behind. Shell.

A guardian process stands between (backends.guardian): it leads a session, hears signals for all, and outlives nothing.
Nothing here knows what the program is or when it is ready.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

LOG_BYTES = 16 * 1024 * 1024  # a log file that is longer when the program is started becomes NAME.1
TAIL_BYTES = 4096
_KILL_S = 10.0  # in which processes go that were killed, unless a driver holds them
_AGAIN_S = 0.1  # then said again: one that comes before the guardian listens is lost where we were started with it ignored
_GUARDIAN = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py")))


class Child:
    """One program, which may be started again after it has ended. Its output goes to the end of the log file, if any."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._tail: BinaryIO | None = None  # the log that it writes to, whatever becomes of its name
        self._log_begin = 0

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
        output = self._open_log() if self._log is not None else asyncio.subprocess.DEVNULL
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
            if output >= 0:
                os.close(output)

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
            return os.pread(self._tail.fileno(), TAIL_BYTES, max(begin, end - TAIL_BYTES)).decode(errors="replace")
        except OSError:
            return ""

    def forget(self) -> None:
        """Its last words are not asked for any more."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _open_log(self) -> int:
        assert self._log is not None
        if self._log.exists() and self._log.stat().st_size > LOG_BYTES:
            self._log.replace(self._log.with_name(self._log.name + ".1"))
        self.forget()
        output = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._log_begin = os.fstat(output).st_size
        with suppress(OSError):  # written and not read: it has no last words
            self._tail = self._log.open("rb", buffering=0)
        return output

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            return
