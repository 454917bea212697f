"""Log lines as JSON on standard output: rendered by structlog, written by a thread from a bounded queue. Shell.

A reader of our output that stalls must never stall the gateway: when the queue is full, lines are dropped and counted.
Access lines are rendered without structlog's chain (access_line.py).
"""

import os
import threading
import time
from typing import Any

import orjson
import structlog

from gateway.access_line import Stamp, access_line
from gateway.accounts import Account
from gateway.config import Log

FLUSH_S = 0.1
BUSY_FLUSH_S = 0.0125  # after a flush of more than one write: what waits stays small
WRITE_BYTES = 65_536
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class LineWriter:
    """The bounded queue and its writer thread. Satisfies what structlog wants of a logger.

    Lines wait in one buffer: thousands of line objects alive at once would leave holes all over the heap, megabytes of
    them after a burst. The loop only appends and the thread only takes from the front, each in one step under the GIL.
    """

    def __init__(self, fd: int, queue_lines: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._size = queue_lines
        self._queued = 0
        self._taken = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._overfull = 0
        self._unwritten = 0
        self._torn = False
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines lost to a full queue or a reader that is gone."""
        return self._overfull + self._unwritten

    def msg(self, line: bytes) -> None:
        """Queue one line, with its end."""
        if self._queued - self._taken >= self._size:
            self._overfull += 1
        else:
            self._queued += 1
            self._buffer += line

    debug = info = warning = error = msg

    def _run(self) -> None:
        wait_s = FLUSH_S
        while not self._stop.wait(wait_s):
            wait_s = BUSY_FLUSH_S if self._flush() > WRITE_BYTES else FLUSH_S
        self._flush()

    def _flush(self) -> int:
        """Write what is there now; how many bytes that was."""
        waiting = flushed = len(self._buffer)
        while waiting > 0:
            size = waiting if waiting <= WRITE_BYTES else self._buffer.rfind(b"\n", 0, WRITE_BYTES) + 1 or waiting
            piece = self._buffer[:size]
            waiting -= size
            self._put(piece)
            del self._buffer[:size]
            self._taken += piece.count(b"\n")
        return flushed

    def _put(self, lines: bytearray) -> None:
        """Write whole lines. One that a full disk took a part of is closed off later, or the next would be unreadable, too."""
        rest = memoryview(lines)
        try:
            if self._torn:
                os.write(self._fd, b"\n")
                self._torn = False
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            written = len(lines) - len(rest)
            self._torn = self._torn or (written > 0 and lines[written - 1 : written] != b"\n")
            self._unwritten += bytes(rest).count(b"\n")

    def close(self, wait_s: float = 1.0) -> None:
        """Write what is queued and end; a stalled reader is not waited for longer than `wait_s`."""
        self._stop.set()
        self._thread.join(wait_s)


class Logs:
    """Event log lines by level, and one access line per request."""

    def __init__(self, settings: Log, writer: LineWriter) -> None:
        self._writer = writer
        self._access_on = settings.access
        self._stamp = Stamp()
        processors: list[Any] = [self._stamped, structlog.processors.JSONRenderer(serializer=_line)]
        self._level = _LEVELS[settings.level]
        self._logger = structlog.wrap_logger(writer, processors=processors, wrapper_class=structlog.BoundLogger).bind()

    @property
    def dropped(self) -> int:
        """Lines lost to a full queue."""
        return self._writer.dropped

    def event(self, level: str, event: str, **fields: object) -> None:
        """One line about the gateway itself."""
        if _LEVELS[level] >= self._level:
            getattr(self._logger, level)(event, **fields)

    def access(self, account: Account) -> None:
        """One line about one request."""
        if not self._access_on:
            return
        self._writer.msg(access_line(account, self._stamp.of(time.time())))

    def _stamped(self, _: object, method: str, event: dict[str, object]) -> dict[str, object]:
        return {"time": self._stamp.of(time.time()), "level": method, **event}


def _line(event: object, **_: object) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
