"""A program of ours in processes of its own: started, ended, never left behind. Shell.

A guardian process stands between (backends.guardian): it leads a session, hears signals for all, and outlives nothing.
Nothing here knows what the program is or when it is ready.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LOG_BYTES = 16 * 1024 * 1024  # a log file that is longer when the program is started becomes NAME.1
TAIL_BYTES = 4096
_KILL_S = 10.0  # in which processes go that were killed, unless a driver holds them
_GUARDIAN = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py")))


class Child:
    """One program, which may be started again after it has ended. Its output goes to the end of the log file, if any."""

    def __init__(self, log: Path | None) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
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
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(*_GUARDIAN, str(os.getpid()), *command),
                env=environment,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
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
        """SIGKILL to all its processes at once. Whether they are gone."""
        if not self.running:
            return True
        self._signal(signal.SIGQUIT)
        if await self.ends_within(_KILL_S):
            return True
        self._signal(signal.SIGKILL)  # the guardian itself; what it waits for hangs in a driver
        return False

    def tail(self) -> str:
        """The end of what it has written since it was started, at most TAIL_BYTES."""
        if self._log is None or not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            log.seek(max(self._log_begin, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _open_log(self) -> int:
        assert self._log is not None
        if self._log.exists() and self._log.stat().st_size > LOG_BYTES:
            self._log.replace(self._log.with_name(self._log.name + ".1"))
        output = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self._log_begin = os.fstat(output).st_size
        return output

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        try:
            self._process.send_signal(number)
        except ProcessLookupError:
            return
