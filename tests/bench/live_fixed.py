"""A server whose answers are known beforehand: what load generators are checked against.

    python -m tests.bench.live_fixed PORT

Every request gets TOKENS events, the first FIRST_S after its body is there, the others GAP_S apart, counted from the
first one's due time, so that a late timer does not add up. Prints "ready" once it listens.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from tests.bench.process import first_in_line

FIRST_S, GAP_S, TOKENS = 0.1, 0.02, 20
E2E_S = FIRST_S + (TOKENS - 1) * GAP_S
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = (
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",'
    '"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}'
)
USAGE = (
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    f'"usage":{{"prompt_tokens":10,"completion_tokens":{TOKENS},"total_tokens":{TOKENS + 10}}}}}'
)


def framed(*events: str) -> bytes:
    """Events as one HTTP chunk."""
    data = b"".join(b"data: " + event.encode() + b"\n\n" for event in events)
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


TOKEN = framed(CHUNK)
LAST = framed(CHUNK, USAGE, "[DONE]") + b"0\r\n\r\n"


class Fixed(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._read = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if found and len(body) >= content_length(head):
            self._read = b""
            loop = asyncio.get_running_loop()
            self._send(loop.time() + FIRST_S, 0)

    def _send(self, due_s: float, number: int) -> None:
        asyncio.get_running_loop().call_at(due_s, self._token, due_s, number)

    def _token(self, due_s: float, number: int) -> None:
        if self._transport is None:
            return
        if number == TOKENS - 1:
            self._transport.write(LAST)
            return
        self._transport.write(TOKEN if number else HEAD + TOKEN)
        self._send(due_s + GAP_S, number + 1)


def content_length(head: bytes) -> int:
    """The length that a request's head names; 0 if none."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(Fixed, "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await loop.create_future()


if __name__ == "__main__":
    first_in_line()
    uvloop.run(serve(int(sys.argv[1])))
