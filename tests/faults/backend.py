"""The fault backend: a raw asyncio HTTP/1.1 server that can break every rule, and the ledger of what it ran. Shell.

No HTTP library: it writes the pieces of a script (script.py) as they are. The wish in the body (member `x_fault`)
chooses the answer; `mode` overrides it for all requests. A run is a body read whole, whatever happened after.
"""

import asyncio
import socket
import struct
import zlib
from typing import cast

import orjson

from tests.faults.ledger import Ledgers, RunRecord
from tests.faults.script import Script, Wish, script

RESET = struct.pack("ii", 1, 0)


def reset(transport: asyncio.BaseTransport | None) -> None:
    """End a connection with RST, at once."""
    if transport is None:
        return
    if not transport.is_closing():
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    cast("asyncio.Transport", transport).abort()


class FaultBackend:
    """One backend on a port of 127.0.0.1. `models` is what it lists."""

    def __init__(self, name: str, models: tuple[str, ...], ledgers: Ledgers) -> None:
        self.name = name
        self.models = models
        self.ledgers = ledgers
        self.mode: Wish | None = None
        self.port = 0
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<FaultBackend {self.name} :{self.port} {len(self.connections)} connections>"

    async def start(self) -> None:
        """Listen on a free port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()

    def utility(self, path: bytes) -> bytes:
        """What GET routes answer."""
        if path == b"/v1/models":
            cards = [{"id": model, "object": "model", "owned_by": "faults"} for model in self.models]
            return orjson.dumps({"object": "list", "data": cards})
        if path == b"/metrics":
            return b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        return b"{}"


class _Connection(asyncio.Protocol):
    """One connection: reads a request, plays its script, reads the next."""

    def __init__(self, backend: FaultBackend) -> None:
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._script: Script | None = None
        self._run: RunRecord | None = None
        self._pace_s = 0.0
        self._at = 0
        self._paused = False
        self._idle_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=65536)
        self._backend.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._script is None:
            self._read()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._backend.connections.discard(self)
        self._cancel_timer()
        run = self._run
        if run is not None and run.end == "open":
            self._end(run, "aborted")
        elif self._buffer and run is None:
            self._note_partial()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._script is not None:
            self._step()

    def close(self) -> None:
        """Close after what is written."""
        if self._transport is not None:
            self._transport.close()

    # -- reading

    def _read(self) -> None:
        """Start on the next request, if it is here whole."""
        buffer = self._buffer
        end = buffer.find(b"\r\n\r\n")
        if end < 0 or self._transport is None:
            return
        head = bytes(buffer[:end])
        at = head.lower().find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(buffer) < end + 4 + length:
            return
        body = bytes(buffer[end + 4 : end + 4 + length])
        del buffer[: end + 4 + length]
        self._cancel_timer()
        if head.startswith(b"GET "):
            self._play(Script((_utility(self._backend.utility(head.split(b" ", 2)[1])),), "keep", b"", 200, 0), 0.0)
            return
        self._ran(head, body)

    def _ran(self, head: bytes, body: bytes) -> None:
        """A body was read whole: one run."""
        parsed = orjson.loads(body)
        said = parsed.get("x_fault")
        wish = self._backend.mode or (Wish(**said) if said else Wish())
        prompt = parsed["messages"][0]["content"]
        request_id = prompt[3 : prompt.index(";")] if prompt.startswith("id=") else ""
        stream = parsed.get("stream") is True
        usage = (parsed.get("stream_options") or {}).get("include_usage") is True
        ledgers = self._backend.ledgers
        number = len(ledgers.runs.get(request_id, ())) + 1
        made = script(wish, request_id.encode(), stream, usage, b"%b-%d" % (self._backend.name.encode(), number))
        if request_id:
            self._run = RunRecord(
                id=request_id,
                backend=self._backend.name,
                number=number,
                head=head,
                body_crc=zlib.crc32(body),
                body_bytes=len(body),
                wish=wish,
                status=made.status,
                usage=usage,
                started_s=self._loop.time(),
                pieces=len(made.pieces),
            )
            ledgers.run(self._run)
        self._play(made, wish.pace_ms / 1000)

    # -- writing

    def _play(self, made: Script, pace_s: float) -> None:
        self._script, self._at, self._pace_s = made, 0, pace_s
        self._step()

    def _step(self) -> None:
        """Write the next piece, or end."""
        made, transport = self._script, self._transport
        if made is None or transport is None or self._paused or transport.is_closing():
            return
        if self._at < len(made.pieces):
            transport.write(made.pieces[self._at])
            self._at += 1
            if self._run is not None:
                self._run.written = self._at
        if self._at < len(made.pieces):
            if self._pace_s:
                self._loop.call_later(self._pace_s, self._step)
            else:
                self._loop.call_soon(self._step)
            return
        self._finish(made, transport)

    def _finish(self, made: Script, transport: asyncio.Transport) -> None:
        if made.ending == "hang":
            return  # the run stays open until the peer goes
        run, self._run, self._script = self._run, None, None
        if run is not None:
            self._end(run, "broke" if made.ending == "rst" else "finished")
        if made.ending == "rst":
            reset(transport)
        elif made.ending == "fin":
            transport.close()
        else:
            if made.ending == "idle_close":
                self._timer = self._loop.call_later(self._pace_s or 0.15, self.close)
            if self._buffer:
                self._read()

    def _end(self, run: RunRecord, how: str) -> None:
        run.end = how  # type: ignore[assignment]
        run.ended_s = self._loop.time()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _note_partial(self) -> None:
        """A body that was not read whole: remembered, for it must not count as a run."""
        at = self._buffer.find(b"x-request-id: ")
        request_id = bytes(self._buffer[at + 14 :].split(b"\r\n", 1)[0]).decode() if at >= 0 else ""
        partial = self._backend.ledgers.partial
        partial[request_id] = partial.get(request_id, 0) + 1


def _utility(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
