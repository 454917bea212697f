"""A raw backend for the wire tests: each test writes, as a small function, what goes out for a request. Shell.

No HTTP library stands behind it: a play writes bytes as they are and can break every rule. A *call* is a request whose
body was read whole; the ledger keeps each one, with its raw head and body and how it ended. GETs that a gateway uses
for probing are answered at once and are no calls, unless `backend.get` takes them over.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal, cast

from tests.faults.backend import reset

LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
FINISH = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
)
End = Literal["open", "finished", "broke", "aborted"]


def chunk(data: bytes) -> bytes:
    """One chunk of the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str) -> bytes:
    """One content event of a chat stream."""
    said = json.dumps(text, ensure_ascii=False).encode()
    return (
        b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
        b'"choices":[{"index":0,"delta":{"content":%b},"finish_reason":null}]}\n\n' % said
    )


class Call:
    """One request as the backend got it, and the means to answer it."""

    def __init__(self, link: "Link", head: bytes, body: bytes) -> None:
        self._link = link
        self.head = head
        self.body = body
        self.end: End = "open"
        self.gone = asyncio.Event()
        self.method, self.target, _ = head.split(b"\r\n", 1)[0].split(b" ", 2)
        lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        self.fields = [(name.lower(), value.strip()) for name, _, value in lines]
        self.headers = dict(self.fields)

    def __repr__(self) -> str:
        return f"<Call {self.method.decode()} {self.target.decode()} {len(self.body)} bytes, {self.end}>"

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def stream(self) -> bool:
        """Whether the client asked for a stream."""
        return b'"stream":true' in self.body or b'"stream": true' in self.body

    @property
    def idle_link(self) -> "Link":
        """The connection itself, for what happens after the answer."""
        return self._link

    def write(self, *pieces: bytes) -> None:
        """Send bytes as they are."""
        self._link.write(b"".join(pieces))

    async def drained(self) -> None:
        """Wait until the peer takes more. Returns at once when it is gone."""
        await self._link.writable.wait()

    def answer(self, body: bytes, status: int = 200, *lines: bytes, kind: bytes = b"application/json") -> None:
        """A whole answer with a length."""
        self.write(head(status, b"content-type: " + kind, b"content-length: %d" % len(body), *lines), body)
        self.finish()

    def error(self, status: int, *lines: bytes) -> None:
        """A whole error answer."""
        self.answer(b'{"error":{"message":"the engine says %d","type":"engine","code":%d}}' % (status, status), status, *lines)

    def start_events(self, *lines: bytes) -> None:
        """The head of a chunked stream."""
        self.write(head(200, b"content-type: text/event-stream", b"transfer-encoding: chunked", *lines))

    def events(self, *events: bytes) -> None:
        """Each event in a chunk of its own."""
        self.write(*map(chunk, events))

    def end_events(self, *events: bytes) -> None:
        """The last events, and the end of the body."""
        self.write(*map(chunk, events), LAST_CHUNK)
        self.finish()

    def finish(self) -> None:
        """The answer is whole: the connection may carry the next request."""
        self.end = "finished"
        self._link.next()

    def close(self) -> None:
        """Close after what is written."""
        self.end = "broke"
        self._link.close()

    def reset(self) -> None:
        """Break the connection with RST."""
        self.end = "broke"
        self._link.reset()


Play = Callable[[Call], Awaitable[None] | None]
REASONS = {200: b"OK", 400: b"Bad Request", 429: b"Too Many Requests", 503: b"Service Unavailable"}


def head(status: int, *lines: bytes) -> bytes:
    """A response head of these header lines."""
    return b"\r\n".join((b"HTTP/1.1 %d %b" % (status, REASONS.get(status, b"Status")), *lines, b"", b""))


ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}'
)
STREAM = (event("hel"), event("lo"), FINISH)


def well(call: Call) -> None:
    """The play of a backend that works."""
    if call.stream:
        call.start_events()
        call.end_events(*STREAM, DONE)
    else:
        call.answer(ANSWER)


class Held:
    """The play of a backend that holds its answers back until `go_on`: behind the head, or where they have `begun` behind a
    first token. `order` is the first character of each prompt, as they came."""

    def __init__(self, *, begun: bool = False) -> None:
        self.go_on = asyncio.Event()
        self.order: list[str] = []
        self._first = (event("begun"),) if begun else ()

    async def __call__(self, call: Call) -> None:
        """Answer one call."""
        self.order.append(call.json["messages"][0]["content"][:1])
        call.start_events()
        call.events(*self._first)
        await self.go_on.wait()
        call.end_events(event("x"), FINISH, DONE)


async def silent(call: Call) -> None:
    """The play of a backend that never answers."""
    await call.gone.wait()


class Link(asyncio.Protocol):
    """One connection: requests are read strictly one after another; what cannot be read is kept as `rubbish`."""

    def __init__(self, backend: "ScriptedBackend") -> None:
        self._backend = backend
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._call: Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=65536)
        self._backend.links.add(self)
        self._backend.connected += 1
        if self._backend.frozen:
            self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._backend.received += data if self._backend.keeps_bytes else b""
        self._wake()
        if self._call is None:
            self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._backend.links.discard(self)
        self.writable.set()
        self._wake()
        if self._call is not None:
            if self._call.end == "open":
                self._call.end = "aborted"
            self._call.gone.set()
        elif self._buffer:
            self._backend.partial += 1

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close in order."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close with RST."""
        reset(self._transport)

    def freeze(self, frozen: bool) -> None:
        """Read nothing any more, as a stopped process; or read on."""
        if self._transport is not None and not self._transport.is_closing():
            if frozen:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def next(self) -> None:
        """The answer is out."""
        if self._call is not None:
            self._call.gone.set()
        self._call = None
        if self._backend.idle_s:
            seeing_s = self._backend.idle_s - self._backend.blind_s
            self._timer = asyncio.get_running_loop().call_later(seeing_s, self._doze)
        if self._buffer:
            self._read()

    def _doze(self) -> None:
        """The idle limit is near: what arrives from here on comes too late, as from a peer some way off."""
        self.freeze(True)
        self._timer = asyncio.get_running_loop().call_later(self._backend.blind_s, self.close)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _read(self) -> None:
        """Take the next request out of the buffer, if it is whole."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or self._transport is None:
            return
        found = bytes(self._buffer[:end])
        at = found.lower().find(b"\r\ncontent-length:")
        length = int(found[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) < end + 4 + length:
            return
        body = bytes(self._buffer[end + 4 : end + 4 + length])
        del self._buffer[: end + 4 + length]
        call = self._call = Call(self, found, body)
        self._backend.take(call)


class ScriptedBackend:
    """One backend on a port of 127.0.0.1. `play` is what it does with a call; `calls` is its ledger.

    It closes connections that idle for `idle_s` (0: never), and no longer sees what arrives in the last `blind_s` of it.
    """

    def __init__(self, name: str, models: tuple[str, ...] = ("m",)) -> None:
        self.name = name
        self.models = models
        self.play: Play = well
        self.get: Play | None = None
        self.idle_s = self.blind_s = 0.0
        self.port = 0
        self.frozen = False
        self.keeps_bytes = False
        self.received = bytearray()
        self.calls: list[Call] = []
        self.links: set[Link] = set()
        self.connected = 0
        self.partial = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrivals = asyncio.Condition()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<ScriptedBackend {self.name} :{self.port} {len(self.calls)} calls>"

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return self._server is not None

    async def start(self) -> None:
        """Listen; on the port it had before, if it had one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Link(self), "127.0.0.1", self.port, backlog=2048)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def kill(self) -> None:
        """Go like a killed process: the port refuses, connections are reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self.links):
            link.reset()

    def freeze(self, frozen: bool = True) -> None:
        """Behave like a stopped process: the kernel accepts, nobody reads. Or go on."""
        self.frozen = frozen
        for link in self.links:
            link.freeze(frozen)

    def take(self, call: Call) -> None:
        """A request was read whole."""
        if call.method == b"GET" and call.target.split(b"?")[0] in (b"/v1/models", b"/health", b"/version", b"/metrics"):
            if self.get is None:
                call.answer(self._utility(call.target))
                if call.headers.get(b"connection") == b"close":
                    call.close()
                return
            play = self.get
        else:
            self.calls.append(call)
            self._run(self._tell())
            play = self.play
        made = play(call)
        if made is not None:
            self._run(made)

    async def called(self, count: int) -> list[Call]:
        """Wait until there were `count` calls in all."""
        async with asyncio.timeout(60), self._arrivals:
            await self._arrivals.wait_for(lambda: len(self.calls) >= count)
        return self.calls

    async def close(self) -> None:
        """Stop, and end what still plays."""
        self.kill()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tell(self) -> None:
        async with self._arrivals:
            self._arrivals.notify_all()

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _utility(self, path: bytes) -> bytes:
        if path != b"/v1/models":
            return b"{}"
        cards = [{"id": model, "object": "model", "owned_by": "scripted"} for model in self.models]
        return json.dumps({"object": "list", "data": cards}).encode()
