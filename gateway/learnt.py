"""What the gateway has learnt (lengths, engines' pace, swap times), kept for its next life. Shell.

One file of JSON lines, mode 0600: a head with the format's version, then one record a line, whose keepers say what is in
it and check what comes back (predictor.kept). Records are made on the loop, in slices of a millisecond; a thread writes
them to a new file, which then takes the old one's name. A file of another version, too large or broken is left out with
one line in the log, and so is a record: nothing here stops a start or fails a request. Nothing of prompts or keys is in it.
While another process has the file it is read and not written.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from hashlib import blake2b

import orjson

from gateway.claim import Claim
from gateway.config import Admin
from gateway.endless import endless
from gateway.logs import Logs
from gateway.private_file import check_replaceable, open_private
from predictor.kept import Keeper, Kept, KeptError

VERSION = 1
BYTES_MAX = 64 << 20
EVERY_S = 60.0
SLICE_S, PAUSE_S = 0.001, 0.01
HEAD = orjson.dumps({"leeway": "learnt", "version": VERSION})


def file_of(admin: Admin) -> str:
    """Where it is kept; "" for nowhere."""
    if admin.learnt_file == "off":
        return ""
    return admin.learnt_file or (f"{admin.state_file}.learnt" if admin.state_file else "")


class Learnt:
    """See the module's words. `keep` whoever learns, `load` once, `start`; `close` writes a last time."""

    def __init__(self, path: str, logs: Logs, now: Callable[[], float]) -> None:
        self.every_s = EVERY_S
        self.longest_s = 0.0  # of what the loop was held for at once
        self._path = path
        self._logs = logs
        self._now = now
        self._keepers: dict[str, Keeper] = {}
        self._written = b""  # what the file holds, as a digest
        self._task: asyncio.Task[None] | None = None
        self._write: asyncio.Future[None] | None = None
        self._failed = ""
        self._claim = Claim(path)

    def __repr__(self) -> str:
        return f"<Learnt {self._path or 'nowhere'}>"

    def keep(self, name: str, keeper: Keeper) -> None:
        """What this one learns is kept under that name, which must stay the same from life to life."""
        self._keepers[name] = keeper

    def load(self) -> None:
        """Give back what is kept. Records of keepers that are not here are dropped."""
        if not self._path:
            return
        try:
            lines = _read(self._path)
        except FileNotFoundError:
            return
        except (OSError, KeptError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._logs.event("warning", "learnt file ignored", file=self._path, reason=reason)
            return
        used, problems = 0, []
        for line in lines:
            try:
                used += self._restore(line)
            except KeptError as error:
                problems.append(str(error))
        if problems:
            reason = problems[0]
            self._logs.event("warning", "learnt records left out", records=len(problems), used=used, reason=reason)
        else:
            self._logs.event("info", "learnt records taken over", records=used)

    def _restore(self, line: bytes) -> bool:
        try:
            record = orjson.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, list) or len(record) != 2 or not isinstance(record[0], str):
            raise KeptError("a line is no record")
        keeper = self._keepers.get(record[0])
        if keeper is not None:
            keeper.restore(Kept(record[1]))
        return keeper is not None

    def start(self) -> None:
        """Write from now on, whenever something has changed."""
        if self._path:
            self._claim.ours()
            try:
                os.stat(os.path.dirname(self._path) or ".")
            except OSError as error:  # told now, not when it is to be written first
                self._tell(error.strerror or str(error))
            self._task = asyncio.create_task(endless(self._run, "keeping what was learnt"))

    async def close(self) -> None:
        """Write a last time, and stop."""
        if self._task is None:
            self._claim.release()
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._put(list(self._lines()))
        self._claim.release()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.every_s)
            await self.save()

    async def save(self) -> None:
        """Write what is known now, if it is not what the file holds already."""
        made, began_s = [], self._now()
        for line in self._lines():
            made.append(line)
            held_s = self._now() - began_s
            if held_s >= SLICE_S:
                self.longest_s = max(self.longest_s, held_s)
                await asyncio.sleep(PAUSE_S)
                began_s = self._now()
        await self._put(made)

    def _lines(self) -> Iterator[bytes]:
        for name, keeper in self._keepers.items():
            for state in keeper.states():
                yield orjson.dumps([name, state])

    async def _put(self, lines: list[bytes]) -> None:
        if not self._claim.ours():
            self._tell(f"{self._claim.holder()} uses it; each gateway needs one of its own")
            return
        if self._write is not None:  # one at a time: the later one must see what the earlier one wrote
            await asyncio.wait([self._write])
        self._write = asyncio.ensure_future(asyncio.to_thread(self._replace, lines))
        try:
            await asyncio.shield(self._write)
        except OSError as error:
            self._tell(error.strerror or str(error))
        else:
            self._failed = ""

    def _tell(self, reason: str) -> None:
        """Why it is not written, once."""
        if reason != self._failed:
            self._logs.event("warning", "learnt file not written", file=self._path, reason=reason)
        self._failed = reason

    def _replace(self, lines: list[bytes]) -> None:
        """In a thread. Raises OSError."""
        body = b"\n".join([HEAD, *lines, b""])
        digest = blake2b(body).digest()
        if digest != self._written:
            if len(body) > BYTES_MAX:
                raise OSError("more than may be read back")
            _write(self._path, body)
            self._written = digest


def _read(path: str) -> list[bytes]:
    """The records' lines. Raises OSError, KeptError."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise KeptError("not a file")
    with open(path, "rb") as file:
        body = file.read(BYTES_MAX + 1)
    if len(body) > BYTES_MAX:
        raise KeptError("too large")
    head, *lines = body.split(b"\n")
    try:
        found = Kept(orjson.loads(head))
    except ValueError:
        raise KeptError("not a file of learnt records") from None
    if found.whole("version") != VERSION:
        raise KeptError("of another version")
    if lines[-1:] != [b""]:
        raise KeptError("cut short")
    return lines[:-1]


def _write(path: str, body: bytes) -> None:
    """All of it or nothing, even if the machine stops meanwhile."""
    check_replaceable(path)
    fresh = f"{path}.{os.getpid()}"
    fd = open_private(fresh, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        with open(fd, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(fd)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise
