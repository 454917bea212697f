"""The connection to one sidecar: asks and notes follow each other on it without waiting (HTTP/1.1 pipelining). Shell.

A note is a reservation or a correction, whose answer says nothing new. It waits for the next question to this sidecar and
travels in that, where the sidecar takes notes so (each of its answers says how many it took); else it is a message of its
own. What was not taken goes again by itself, and what a broken connection may have lost goes over the next one; a note that
could not be told for NOTE_S is given up and counted, never dropped in silence.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from backends.reach import first_of
from predictor.wire import with_notes

if TYPE_CHECKING:
    from gateway.probing import ProbeClient, Round

HEAD_BYTES_MAX = 8192
BODY_BYTES_MAX = 65536
OUTSTANDING_MAX = 1024
HUNG_S = 2.0
CONNECT_S = 1.0
BACKOFF_S = 0.5
NOTE_S = 1.0
NOTES_MAX = 16  # in one question, ...
NOTE_BYTES_MAX = 8192  # ... each of so many bytes: a body may have 256 KiB
NOTES_HELD_MAX = 256
NOBODY = -1


class Note:
    """`body` is what /reserve or /correct gets; `reserves` says which."""

    __slots__ = ("body", "made_s", "reserves")

    def __init__(self, body: bytes, made_s: float, reserves: bool) -> None:
        self.body = body
        self.made_s = made_s
        self.reserves = reserves


class Asked:
    """What was sent and is not answered yet: a question's `round`, or none for a note of its own."""

    __slots__ = ("at_s", "notes", "round")

    def __init__(self, round_: "Round | None", at_s: float, notes: Sequence[Note]) -> None:
        self.round = round_
        self.at_s = at_s
        self.notes = notes


class Line(asyncio.Protocol):
    """See the module's words. Answers come in the order of asks."""

    def __init__(self, name: str, url: str, token: str, guarded: bool, owner: "ProbeClient") -> None:
        parts = urlsplit(url)
        self.name = name
        self.target = (url, token, guarded)
        self._guarded = guarded
        self._owner = owner
        self._host = parts.hostname or ""
        self._tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        prefix = parts.path.rstrip("/")
        key = f"authorization: Bearer {token}\r\n" if token else ""
        rest = f" HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n{key}content-length: "
        self._predict_head = f"POST {prefix}/predict{rest}".encode()
        self._reserve_head = f"POST {prefix}/reserve{rest}".encode()
        self._correct_head = f"POST {prefix}/correct{rest}".encode()
        self._asked: deque[Asked] = deque()
        self._notes: deque[Note] = deque()
        self._takes = False  # notes in questions, as far as this connection's answers tell
        self.unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._rest = b""
        self._retry_s = 0.0
        self.closed = False

    def __repr__(self) -> str:
        return f"<Line {self.name} {'open' if self._transport else 'closed'} asked={len(self._asked)}>"

    def ask(self, asked: "Round", body: bytes, now_s: float) -> bool:
        """Have an ask sent with the next flush; its answer goes to `asked`. False, and it has failed, if that can't be."""
        if not self._ready(now_s):
            asked.answered(self.name, None)
            return False
        notes: Sequence[Note] = ()
        if self._notes:
            if self._takes:
                notes = [self._notes.popleft() for _ in range(min(NOTES_MAX, len(self._notes)))]
                reserved = [note.body for note in notes if note.reserves]
                body = with_notes(body, reserved, [note.body for note in notes if not note.reserves])
            else:
                self.tell(now_s)
        self._asked.append(Asked(asked, now_s, notes))
        self.unsent.append(b"%b%d\r\n\r\n%b" % (self._predict_head, len(body), body))
        return True

    def note(self, note: Note) -> None:
        """Have a note told, by the next question or by `tell`."""
        self._notes.append(note)
        self._bound()
        now_s = note.made_s
        if not self._ready(now_s):
            self._revive()
        elif not self._takes or len(note.body) > NOTE_BYTES_MAX:
            self.tell(now_s)

    def tell(self, now_s: float) -> None:
        """What waits for a question goes by itself, with the next flush."""
        notes = self._notes
        if not notes or not self._ready(now_s):
            return
        while notes:
            note = notes.popleft()
            if now_s - note.made_s > NOTE_S:
                self._owner.notes_lost += 1
                continue
            self._asked.append(Asked(None, now_s, (note,)))
            head = self._reserve_head if note.reserves else self._correct_head
            self.unsent.append(b"%b%d\r\n\r\n%b" % (head, len(note.body), note.body))

    def flush(self) -> None:
        """Send what waits; while connecting it waits on."""
        transport, unsent = self._transport, self.unsent
        if transport is not None and unsent:
            transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
            unsent.clear()

    def close(self) -> None:
        """For good."""
        self.closed = True
        if self.connecting is not None:
            self.connecting.cancel()
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._break(0.0)
        self._notes.clear()

    def _ready(self, now_s: float) -> bool:
        """Whether something may be sent, or will be once connected."""
        asked = self._asked
        if asked and (now_s - asked[0].at_s > HUNG_S or len(asked) >= OUTSTANDING_MAX):
            self._break(now_s)
        if self._transport is not None or self.connecting is not None:
            return True
        if self.closed or now_s < self._retry_s:
            return False
        self.connecting = asyncio.create_task(self._connect())
        return True

    async def _connect(self) -> None:
        owner = self._owner
        try:
            async with asyncio.timeout(CONNECT_S):
                addresses = await owner.addresses(self._host, self._port, self._guarded)
                await first_of(addresses, CONNECT_S, self._connect_to)
        except (OSError, TimeoutError, UnicodeError):
            self.connecting = None
            self._break(owner.now())

    async def _connect_to(self, address: str) -> None:
        tls, name = (self._owner.tls(), self._host) if self._tls else (None, None)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, address, self._port, ssl=tls, server_hostname=name)

    def _break(self, now_s: float) -> None:
        """Give up the connection: all asks under way have failed, notes go over the next one."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._retry_s = now_s + BACKOFF_S
        self._rest = b""
        self._takes = False
        self.unsent.clear()
        asked, self._asked = self._asked, deque()
        untold = [note for one in asked for note in one.notes]
        self._notes.extendleft(reversed(untold))
        self._bound()
        if self._notes:
            self._revive()
        for one in asked:
            if one.round is not None:
                one.round.answered(self.name, None)

    def _bound(self) -> None:
        while len(self._notes) > NOTES_HELD_MAX:
            self._notes.popleft()
            self._owner.notes_lost += 1

    def _revive(self) -> None:
        """Notes wait, and nobody may ask here for long: connect when that is due."""
        if self._again is None and not self.closed:
            wait_s = max(0.0, self._retry_s - self._owner.now())
            self._again = asyncio.get_running_loop().call_later(wait_s, self._tell_again)

    def _tell_again(self) -> None:
        self._again = None
        now_s = self._owner.now()
        while self._notes and now_s - self._notes[0].made_s > NOTE_S:
            self._notes.popleft()
            self._owner.notes_lost += 1
        if self._notes and self._ready(now_s):
            self.tell(now_s)
            self.flush()
        elif self._notes:
            self._revive()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connecting = None
        if self.closed:
            transport.abort()  # type: ignore[attr-defined]
            return
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are no subclasses of asyncio's
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._transport = None
            # A server that closes an idle connection in order may be asked again at once.
            self._break(self._owner.now() - (0.0 if self._asked else BACKOFF_S))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, size, transport = 0, len(data), self._transport
        while at < size:
            end = data.find(b"\r\n\r\n", at, at + HEAD_BYTES_MAX)
            if end < 0:
                if size - at > HEAD_BYTES_MAX:
                    self._break(self._owner.now())
                    return
                break
            fine, length, took = read_head(data[at:end])
            if length < 0 or not self._asked:
                self._break(self._owner.now())
                return
            stop = end + 4 + length
            if stop > size:
                break
            asked = self._asked.popleft()
            if asked.round is not None:
                self._takes = took != NOBODY
                if asked.notes and len(asked.notes) > took:
                    self._repeat(asked.notes)
                asked.round.answered(self.name, self._owner.reply(data[end + 4 : stop]) if fine else None)
                if self._transport is not transport:
                    return  # whoever was told broke this connection off
            elif not fine and asked.notes[0].reserves:
                self._owner.notes_lost += 1
            at = stop
        self._rest = data[at:] if at < size else b""

    def _repeat(self, notes: Sequence[Note]) -> None:
        """A question was not taken with what it brought: that goes by itself, where each note is judged alone."""
        self._notes.extendleft(reversed(notes))
        self.tell(self._owner.now())
        self.flush()


@lru_cache(maxsize=256)  # heads repeat: the date changes once a second, the length by a digit or two
def read_head(head: bytes) -> tuple[bool, int, int]:
    """Of a response head: whether it is a 200, its Content-Length, and how many notes were taken (NOBODY: it does not say).
    Length -1 for what is no answer of a sidecar's, or leaves the connection unusable."""
    low = head.lower()
    length = _number(low, b"\r\ncontent-length:")
    if length < 0 or not low.startswith(b"http/1.1 ") or b"\r\ntransfer-encoding:" in low or b"\r\nconnection: close" in low:
        return False, -1, NOBODY
    return low[9:12] == b"200", length if length <= BODY_BYTES_MAX else -1, _number(low, b"\r\nx-leeway-took:")


def _number(head: bytes, name: bytes) -> int:
    """The whole number of that header line; -1 for none."""
    at = head.find(name)
    if at < 0:
        return -1
    end = head.find(b"\r\n", at + 2)
    text = head[at + len(name) : end if end > 0 else None].strip()
    return int(text) if text.isdigit() and len(text) < 8 else -1
