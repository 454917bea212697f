"""Server-sent events for a running generation, whatever the face's shapes are.

Like vLLM, the status line leaves at once and nothing else before the first token, except what a face insists on
(`opening`). Each token is one event; events that are due together share a write. A client that reads slowly holds up
only its own handler: what it has not taken is counted, not stored.
"""

from typing import Protocol

from aiohttp import web

from backends.mock_http import ApiError, dumps
from backends.mock_serving import Generation

DONE = b"data: [DONE]\n\n"


class Shape(Protocol):
    """The events of one face for one generation, as bytes."""

    def opening(self) -> bytes:
        """Before anything is known."""

    def first(self) -> bytes:
        """Just before the first token."""

    def token(self, choice: int, position: int) -> bytes:
        """One token."""

    def end(self, choice: int) -> bytes:
        """After a choice's last token."""

    def closing(self) -> bytes:
        """After all choices have ended."""

    def failure(self, error: ApiError) -> bytes:
        """In place of the rest, if the engine stops."""


def event(value: object, name: str | None = None) -> bytes:
    """One server-sent event with a JSON body."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + dumps(value) + b"\n\n"


async def send_stream(http: web.Request, generation: Generation, shape: Shape) -> web.StreamResponse:
    """Stream a generation to its end. Leaves it running when cancelled: the caller's `with` aborts it."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    opening = shape.opening()
    if opening:
        await response.write(opening)
    started = False
    while generation.running:
        try:
            progress = await generation.advance()
        except ApiError as error:
            await response.write(shape.failure(error))
            break
        parts = []
        if not started:
            started = True
            parts.append(shape.first())
        for news in progress:
            parts += [shape.token(news.choice, position) for position in range(news.start, news.stop)]
            if news.ended is not None:
                parts.append(shape.end(news.choice))
        if not generation.running:
            parts.append(shape.closing())
        await response.write(b"".join(parts))
    await response.write_eof()
    return response
