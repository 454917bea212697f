"""The control plane's HTTP face (temporary minimum; see operations.py)."""

from aiohttp import web

from gateway.config import split_address
from gateway.metrics import exposition
from gateway.operations import Operations


class ControlPlane:
    """The control listener."""

    def __init__(self, operations: Operations, key: str) -> None:
        self._operations = operations
        self._key = key

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        host, port = split_address(self._operations.plane.config.listen.control)
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=exposition(self._operations.plane), content_type="text/plain")

    async def close(self) -> None:
        """Close."""
        await self._runner.cleanup()
