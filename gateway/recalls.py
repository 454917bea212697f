"""Tells engines of requests whose answers nobody wants any more, where a closed connection does not tell them at once. Shell.

One message at a time for each engine, however many clients leave together; what is too many, or cannot be told, the engine
finds out in its own time. One that was sent only just now may not be known there yet, so it is told once more.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from backends.base import ProbeFailedError
from gateway.accounts import Account

if TYPE_CHECKING:
    from gateway.server import DataPlane

HELD_MAX = 1024
KNOWN_S = 0.5  # after so long an engine has read a request
AGAIN_S = 0.5


class Recalls:
    """`tell(backend, engine id)` may raise ProbeFailedError."""

    def __init__(self, plane: "DataPlane", tell: Callable[[str, str], Awaitable[None]]) -> None:
        self._plane = plane
        self._tell = tell
        self._unwanted: dict[str, deque[str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def unwanted(self, account: Account) -> None:
        """A request with an `engine_id` is over before its answer is."""
        self._add(account.backend, account.engine_id)
        if account.finished_s - account.sent_s < KNOWN_S:
            self._plane.loop.call_later(AGAIN_S, self._add, account.backend, account.engine_id)

    def _add(self, backend: str, engine_id: str) -> None:
        if self._closed:
            return
        waiting = self._unwanted.get(backend)
        if waiting is None:
            waiting = self._unwanted[backend] = deque(maxlen=HELD_MAX)
            task = self._plane.loop.create_task(self._tell_all(backend, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append(engine_id)

    async def _tell_all(self, backend: str, waiting: deque[str]) -> None:
        try:
            while waiting:
                await self._tell(backend, waiting.popleft())
        except ProbeFailedError:
            pass  # it cannot be told: its own look for clients that left is what remains
        finally:
            del self._unwanted[backend]

    async def close(self) -> None:
        """Tell nobody any more."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
