"""What movers that speak to a server have in common: a request that must succeed, a state that must come. Shell.

Every failure becomes MoveError with the server's own words, cut short; the caller's time limit is `asyncio.timeout`'s.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from backends.base import ControlHttp, ProbeFailedError, Reply
from backends.moves import MoveError

POLL_S = 0.1
WORDS_BYTES = 300


@asynccontextmanager
async def within(limit_s: float, what: str) -> AsyncIterator[None]:
    """A move may take so long. Raises MoveError, for a server that does not answer as well."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise MoveError(f"{what}: not done within {limit_s:g} s") from None
    except ProbeFailedError as error:
        raise MoveError(f"{what}: {error}") from None


async def tell(http: ControlHttp, path: str, body: dict[str, object] | None = None) -> Reply:
    """POST; the answer, a 2xx. Raises MoveError, ProbeFailedError."""
    reply = await http.post(path, body or {})
    if not 200 <= reply.status < 300:
        raise MoveError(f"{path.partition('?')[0]} answered {reply.status}{words(reply)}")
    return reply


def words(reply: Reply) -> str:
    """What an answer says, for the end of a message."""
    text = reply.body[:WORDS_BYTES].decode(errors="replace").strip()
    return f": {text}" if text else ""


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Ask again every POLL_S until it is so; for use `within` a limit."""
    while not await reached():  # noqa: ASYNC110 (a server tells nobody)
        await asyncio.sleep(POLL_S)
