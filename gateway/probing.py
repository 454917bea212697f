"""Asking the sidecars of several backends at once, under one deadline. Shell, and lean: two asks for each request.

One kept connection to each sidecar (probe_line). What is sent in one turn of the loop goes out in one write; a reservation
or a correction waits a moment for the next ask to travel in, or to go with.
Nothing here raises or waits beyond the deadline: a sidecar that is late has no entry in the result, one that failed has
None, one whose answer says nothing GARBLED, and one that can't be reached is left alone for a moment. Answers must have
a Content-Length (docs/wire.md); what else comes ends the connection.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from backends.reach import addresses_of
from gateway.probe_line import Line, Note
from predictor.snapshot import GARBLED, ProbeReply
from predictor.wire import JobLike, WireError, encode_ask, encode_correction, parse_reply

Replies = Mapping[str, ProbeReply | None]
Done = Callable[[Replies], None]
Read = Callable[[bytes], ProbeReply]

RESERVE_HOLD_S = 0.005


class Round:
    """One request's asks. `replies` is handed over when the last one is in or the deadline is over; while that is taken
    in, the round is at hand, since the request's reservation has the same body."""

    __slots__ = ("_client", "body", "done", "due_s", "job", "missing", "replies")

    def __init__(self, client: "ProbeClient", missing: int, due_s: float, job: JobLike, body: bytes, done: Done) -> None:
        self._client = client
        self.missing = missing
        self.due_s = due_s
        self.job = job
        self.body = body
        self.done: Done | None = done
        self.replies: dict[str, ProbeReply | None] = {}

    def answered(self, name: str, reply: ProbeReply | None) -> None:
        if self.done is None:
            return  # too late
        self.replies[name] = reply
        self.missing -= 1
        if not self.missing:
            self.expire()

    def expire(self) -> None:
        done, self.done = self.done, None
        if done is not None:
            self._client.at_hand = self
            done(self.replies)
            self._client.at_hand = None
            self.body = b""  # the round itself is kept until its deadline


class ProbeClient:
    """All sidecars of a gateway. `deadline_s` counts from the ask; it is a bound on waiting, not on connecting. `allowed`
    is the rule for the addresses of guarded ones."""

    def __init__(
        self,
        deadline_s: float,
        now: Callable[[], float],
        unix_ms: Callable[[], int],
        allowed: Callable[[str], bool] = lambda _: True,
        tls: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> None:
        self.deadline_s = deadline_s
        self.now = now
        self.tls = tls
        self._unix_ms = unix_ms
        self._allowed = allowed
        self.at_hand: Round | None = None
        self.notes_lost = 0  # reservations and corrections that a sidecar could not be told
        self._read: Read = parse_reply
        self._lines: dict[str, Line] = {}
        self._rounds: deque[Round] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Handle | None = None
        self._flush_at: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<ProbeClient {list(self._lines.values())} rounds={len(self._rounds)}>"

    def __contains__(self, name: object) -> bool:
        return name in self._lines

    def added(self, name: str, url: str, token: str = "", *, guarded: bool = True) -> None:
        """A backend has a sidecar at `url`. It is connected to when it is asked first. Said again, it changes nothing;
        another address or token takes the place of the last."""
        line = self._lines.get(name)
        if line is None or line.target != (url, token, guarded):
            from predictor.replies import read_reply  # brings msgspec, which a gateway without sidecars need not hold

            self._read = read_reply
            self.removed(name)
            self._lines[name] = Line(name, url, token, guarded, self)

    def removed(self, name: str) -> None:
        """Forget a backend's sidecar; asks under way have failed."""
        line = self._lines.pop(name, None)
        if line is not None:
            line.close()

    def ask(self, names: Sequence[str], job: JobLike, done: Done, tier: int = 1) -> None:
        """Ask for `job`, whose instants are of the client's clock, everywhere at once; `done` gets the replies, once, possibly
        before this returns."""
        lines = self._lines
        asked = [lines.get(name) for name in names]
        now_s = self.now()
        body = encode_ask(job, self._unix_ms(), now_s, tier)
        one = Round(self, len(asked) + 1, now_s + self.deadline_s, job, body, done)  # one more until all are asked
        for name, line in zip(names, asked, strict=True):
            if line is None:
                one.answered(name, None)
            elif line.ask(one, body, now_s) and self._flushing is None:
                self._flushing = asyncio.get_running_loop().call_soon(self._flush)
        one.missing -= 1
        if not one.missing:
            one.expire()
            return
        self._rounds.append(one)
        if self._timer is None:
            self._arm(one.due_s - now_s)

    async def probe(self, names: Sequence[str], job: JobLike) -> Replies:
        """As `ask`, for who would rather wait."""
        future: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()

        def done(replies: Replies) -> None:
            if not future.done():
                future.set_result(replies)

        self.ask(names, job, done)
        return await future

    def reserve(self, name: str, job: JobLike, tier: int = 1) -> None:
        """Tell a backend's sidecar that `job` is on its way there. Nothing is waited for."""
        line, asked = self._lines.get(name), self.at_hand
        if line is None:
            return
        now_s = self.now()
        known = asked is not None and asked.job is job
        body = asked.body if asked is not None and known else encode_ask(job, self._unix_ms(), now_s, tier)
        self._note(line, Note(body, now_s, True))

    def correct(self, name: str, job: JobLike) -> None:
        """Tell a backend's sidecar that the lengths of `job`, which was reserved there, are known better now."""
        line = self._lines.get(name)
        if line is not None:
            self._note(line, Note(encode_correction(job), self.now(), False))

    def _note(self, line: Line, note: Note) -> None:
        line.note(note)
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(RESERVE_HOLD_S, self._flush_late)

    async def close(self) -> None:
        """Give up everything under way."""
        for handle in (self._timer, self._flushing, self._flush_at):
            if handle is not None:
                handle.cancel()
        self._timer = self._flushing = self._flush_at = None
        connecting = [line.connecting for line in self._lines.values() if line.connecting is not None]
        for name in list(self._lines):
            self.removed(name)
        await asyncio.gather(*connecting, return_exceptions=True)

    def reply(self, body: bytes) -> ProbeReply:
        """What the body of an answer says."""
        try:
            return self._read(body)
        except WireError:
            return GARBLED

    async def addresses(self, host: str, port: int, guarded: bool) -> list[str]:
        """The host's addresses, only allowed ones if it is guarded. Raises OSError, UnicodeError."""
        return await addresses_of(host, port, self._allowed if guarded else None)

    def _flush(self) -> None:
        """The end of a turn in which something was asked."""
        self._flushing = None
        for line in self._lines.values():
            if line.unsent:
                line.flush()

    def _flush_late(self) -> None:
        """For what no ask came by to travel in, or to go with."""
        self._flush_at = None
        now_s = self.now()
        for line in self._lines.values():
            line.tell(now_s)
        if self._flushing is None:
            self._flush()

    def _arm(self, wait_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._on_due)

    def _on_due(self) -> None:
        """The oldest round's deadline: all rounds wait equally long, so the others' come in order."""
        self._timer = None
        now_s, rounds = self.now(), self._rounds
        while rounds and (rounds[0].done is None or rounds[0].due_s <= now_s):
            rounds.popleft().expire()
        if rounds:
            self._arm(rounds[0].due_s - now_s)
