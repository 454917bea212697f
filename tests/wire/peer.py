"""A raw HTTP/1.1 client for the wire tests: it sends bytes as they are and shows what came back, byte for byte. Shell.

It has no time limits of its own: the case around it has one.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from tests.faults.backend import reset
from tests.faults.response import ResponseParser


@dataclass(frozen=True, slots=True)
class Answer:
    """One response. `whole`: its framing said so; `reset`: the connection ended by RST."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    whole: bool
    raw: bytes
    reset: bool = False

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of an answer in OpenAI's form, checked to be one."""
        assert self.headers[b"content-type"] == b"application/json", self
        error = self.json["error"]
        assert {"message", "type", "code"} <= error.keys(), error
        assert isinstance(error["message"], str), error
        return dict(error)

    @property
    def events(self) -> list[bytes]:
        """The events of a stream, each with its blank line; joined they are the body."""
        parts = self.body.split(b"\n\n")
        return [part + b"\n\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


@dataclass(slots=True)
class Sent:
    """Request ids whose head went out whole: each must have exactly one line in the access log."""

    ids: list[str] = field(default_factory=list)
    _count: int = 0

    def new(self) -> str:
        """A fresh id."""
        self._count += 1
        self.ids.append(f"t-{self._count}")
        return self.ids[-1]


class Peer:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: Sent, key: str = "") -> None:
        self._reader = reader
        self._writer = writer
        self._sent = sent
        self._key = key
        self._parser = ResponseParser()
        self._raw = bytearray()
        self._reset = False
        self._eof = False

    def send(self, *pieces: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(b"".join(pieces))

    async def drained(self) -> None:
        """Wait until the kernel has taken what was sent."""
        await self._writer.drain()

    def ask(
        self,
        body: object = None,
        path: str = "/v1/chat/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
    ) -> str:
        """Send one well-formed request; its id."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head, request_id = self.head(path, method, {"content-length": str(len(data)), **(headers or {})})
        self.send(head, data)
        return request_id

    def head(self, path: str, method: str, headers: dict[str, str]) -> tuple[bytes, str]:
        """A request head with an id (which counts as sent) and the key, unless `headers` say otherwise."""
        names = {name.lower() for name in headers}
        lines = [f"{method} {path} HTTP/1.1"]
        if "host" not in names:
            lines.append("host: gateway")
        if "content-type" not in names and method == "POST":
            lines.append("content-type: application/json")
        if self._key and not names & {"authorization", "x-api-key"}:
            lines.append(f"authorization: Bearer {self._key}")
        request_id = headers.get("x-request-id", "")
        if "x-request-id" not in names:
            request_id = self._sent.new()
            lines.append(f"x-request-id: {request_id}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join((*lines, "", "")).encode(), request_id

    async def answer(self) -> Answer:
        """Read on to the end of the present response, or of the connection."""
        while not self._parser.done and await self._more():
            pass
        parser, self._parser = self._parser, ResponseParser()
        raw = bytes(self._raw)
        self._raw.clear()
        answer = Answer(parser.status, parser.headers, bytes(parser.body), parser.done, raw, self._reset)
        if parser.rest:
            self._take(parser.rest)
        return answer

    async def seen(self, mark: bytes) -> bytes:
        """Read on until `mark` is in the present response's body (or its raw bytes); what there is of the body."""
        while mark not in self._parser.body and mark not in self._raw:
            assert await self._more(), f"{mark!r} never came; {bytes(self._raw)[-300:]!r}"
        return bytes(self._parser.body)

    async def ended(self) -> bytes:
        """Read on to the end of the connection; what came on the way."""
        while await self._more():
            pass
        return bytes(self._raw)

    async def _more(self) -> bool:
        if self._eof:
            return False
        try:
            data = await self._reader.read(262_144)
        except ConnectionError:
            self._reset, data = True, b""
        if not data:
            self._eof = True
            self._parser.eof()
            return False
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        self._raw += data
        self._parser.feed(data)

    def half_close(self) -> None:
        """Say that nothing more will be sent."""
        self._writer.write_eof()

    def close(self) -> None:
        """Close in order."""
        self._writer.close()

    def leave(self) -> None:
        """Go with a reset."""
        reset(self._writer.transport)


async def connect(port: int, sent: Sent, key: str = "") -> Peer:
    """A fresh connection to 127.0.0.1:port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return Peer(reader, writer, sent, key)
