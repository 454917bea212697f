"""What the tests of movers share: control requests that are remembered, and servers that answer as a script says."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from backends.base import Reply
from backends.control_http import BackendControl, ControlSession
from backends.moves import Mover, MoverSpec, SwapSpec, Way

Script = Callable[[str, str, dict[str, object]], tuple[int, object]]


class Recorded:
    """Control requests to one server; `posts` are those that changed something, in order."""

    def __init__(self, control: BackendControl) -> None:
        self._control = control
        self.posts: list[str] = []

    async def get(self, path: str) -> Reply:
        """GET."""
        return await self._control.get(path)

    async def post(self, path: str, body: dict[str, object]) -> Reply:
        """POST, remembered."""
        self.posts.append(f"{path} {json.dumps(body)}" if body else path)
        return await self._control.post(path, body)


@asynccontextmanager
async def control_of(url: str, timeout_s: float = 60.0) -> AsyncIterator[Recorded]:
    """Control requests to the server at that URL."""
    session = ControlSession(lambda address: True)
    try:
        yield Recorded(BackendControl(session, url, "", timeout_s))
    finally:
        await session.close()


@asynccontextmanager
async def stub(script: Script) -> AsyncIterator[str]:
    """The URL of a server that answers (status, JSON) by method, path and body with query; status 0: no answer."""

    async def answer(http: web.Request) -> web.Response:
        body = await http.json() if http.can_read_body else {}
        status, content = script(http.method, http.path, {**body, **http.query})
        if status == 0:
            await asyncio.Event().wait()
        return web.json_response(content, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def spec(way: Way, url: str, model: str = "m", layers: int = 1, **fields: object) -> MoverSpec:
    """A spec with limits that tests can wait for."""
    limits = {"start_s": 60.0, "stop_s": 10.0}
    return MoverSpec(SwapSpec(way=way, **{**limits, **fields}), url, model, layers)  # type: ignore[arg-type]


async def there_and_back(mover: Mover) -> None:
    """Out and in, twice each: the second does nothing."""
    for _ in range(2):
        await mover.out(keep=False)
        assert await mover.where() == mover.home
    for _ in range(2):
        await mover.into(1.0)
        assert await mover.where() == "gpu"
