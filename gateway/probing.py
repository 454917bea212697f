"""Asking the sidecars of several backends at once, under one deadline. Shell, and lean: two asks for each request.

One kept connection to each sidecar, on which asks follow each other without waiting (HTTP/1.1 pipelining). What is sent
in one turn of the loop goes out in one write; a reservation waits a moment for the next ask to go with.
Nothing here raises or waits beyond the deadline: a sidecar that is late has no entry in the result, one that failed has
None, one whose answer says nothing GARBLED, and one that can't be reached is left alone for a moment. Answers must have
a Content-Length (docs/wire.md); what else comes ends the connection.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from predictor.snapshot import GARBLED, ProbeReply
from predictor.wire import JobLike, WireError, encode_ask, parse_reply

Replies = Mapping[str, ProbeReply | None]
Done = Callable[[Replies], None]
Read = Callable[[bytes], ProbeReply]

HEAD_BYTES_MAX = 8192
BODY_BYTES_MAX = 65536
OUTSTANDING_MAX = 1024
HUNG_S = 2.0
CONNECT_S = 1.0
BACKOFF_S = 0.5
RESERVE_HOLD_S = 0.005


class _Round:
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


class _Line(asyncio.Protocol):
    """The connection to one sidecar. Asks are answered in their order; `None` in their place is a reservation."""

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
        self._asked: deque[tuple[_Round | None, float]] = deque()
        self.unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        self._rest = b""
        self._retry_s = 0.0
        self.closed = False

    def __repr__(self) -> str:
        return f"<_Line {self.name} {'open' if self._transport else 'closed'} asked={len(self._asked)}>"

    def ask(self, asked: _Round, body: bytes, now_s: float) -> bool:
        """Have an ask sent with the next flush; its answer goes to `asked`. False, and it has failed, if that can't be."""
        if not self._ready(now_s):
            asked.answered(self.name, None)
            return False
        self._asked.append((asked, now_s))
        self.unsent.append(b"%b%d\r\n\r\n%b" % (self._predict_head, len(body), body))
        return True

    def reserve(self, body: bytes, now_s: float) -> bool:
        """The same with a reservation, whose answer does not matter."""
        if not self._ready(now_s):
            return False
        self._asked.append((None, now_s))
        self.unsent.append(b"%b%d\r\n\r\n%b" % (self._reserve_head, len(body), body))
        return True

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
        self._break(0.0)

    def _ready(self, now_s: float) -> bool:
        """Whether something may be sent, or will be once connected."""
        asked = self._asked
        if asked and (now_s - asked[0][1] > HUNG_S or len(asked) >= OUTSTANDING_MAX):
            self._break(now_s)
        if self._transport is not None or self.connecting is not None:
            return True
        if self.closed or now_s < self._retry_s:
            return False
        self.connecting = asyncio.create_task(self._connect())
        return True

    async def _connect(self) -> None:
        owner = self._owner
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                address = await owner.resolve(self._host, self._port, self._guarded)
                tls, name = (owner.tls(), self._host) if self._tls else (None, None)
                await loop.create_connection(lambda: self, address, self._port, ssl=tls, server_hostname=name)
        except (OSError, TimeoutError, UnicodeError):
            self.connecting = None
            self._break(owner.now())

    def _break(self, now_s: float) -> None:
        """Give up the connection: all that is under way has failed."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._retry_s = now_s + BACKOFF_S
        self._rest = b""
        self.unsent.clear()
        asked, self._asked = self._asked, deque()
        for one, _ in asked:
            if one is not None:
                one.answered(self.name, None)

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
            fine, length = _read_head(data[at:end])
            if length < 0 or not self._asked:
                self._break(self._owner.now())
                return
            stop = end + 4 + length
            if stop > size:
                break
            asked, _ = self._asked.popleft()
            if asked is not None:
                asked.answered(self.name, self._owner.reply(data[end + 4 : stop]) if fine else None)
                if self._transport is not transport:
                    return  # whoever was told broke this connection off
            at = stop
        self._rest = data[at:] if at < size else b""


@lru_cache(maxsize=256)  # heads repeat: the date changes once a second, the length by a digit or two
def _read_head(head: bytes) -> tuple[bool, int]:
    """Of a response head: whether it is a 200, and its Content-Length; -1 for what is no answer of a sidecar's, or
    leaves the connection unusable."""
    low = head.lower()
    at = low.find(b"\r\ncontent-length:")
    if at < 0 or not low.startswith(b"http/1.1 ") or b"\r\ntransfer-encoding:" in low or b"\r\nconnection: close" in low:
        return False, -1
    end = low.find(b"\r\n", at + 2)
    text = low[at + 17 : end if end > 0 else None].strip()
    length = int(text) if text.isdigit() and len(text) < 8 else -1
    return low[9:12] == b"200", length if length <= BODY_BYTES_MAX else -1


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
        self.at_hand: _Round | None = None
        self._read: Read = parse_reply
        self._lines: dict[str, _Line] = {}
        self._rounds: deque[_Round] = deque()
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
            self._lines[name] = _Line(name, url, token, guarded, self)

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
        one = _Round(self, len(asked) + 1, now_s + self.deadline_s, job, body, done)  # one more until all are asked
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
        if not line.reserve(body, now_s):
            return
        if self._flushing is None and self._flush_at is None:
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

    async def resolve(self, host: str, port: int, guarded: bool) -> str:
        """An address of the host, an allowed one if it is guarded. Raises OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)
        addresses = [str(entry[4][0]) for entry in found if not guarded or self._allowed(str(entry[4][0]))]
        if not addresses:
            raise OSError("the sidecar's address is not allowed")
        return addresses[0]

    def _flush(self) -> None:
        """The end of a turn in which something was asked."""
        self._flushing = None
        for line in self._lines.values():
            if line.unsent:
                line.flush()

    def _flush_late(self) -> None:
        """No ask came by to go with."""
        self._flush_at = None
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
