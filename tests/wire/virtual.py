"""A simulated engine and its client on one virtual clock."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import looptime

from backends.mock import MockConfig, MockEngine

TICK_S = 2e-6  # the virtual clock counts whole microseconds

Use = Callable[[aiohttp.ClientSession, MockEngine], Awaitable[None]]


def in_virtual_time(use: Use, config: MockConfig) -> None:
    """Run a test body with a client and a fresh engine."""

    async def run() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with MockEngine(config) as engine, aiohttp.ClientSession(engine.url, timeout=timeout) as client:
            await use(client, engine)

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(run())
