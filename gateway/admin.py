"""The control plane's HTTP face: its own listener, its own credential. Shell; aiohttp.

Everything needs the admin key but health and the API's description, and, on a loopback listener, the metrics. Changes
go through Operations; this module and its siblings only translate. The settings library is not loaded at start.
"""

from collections.abc import Iterable

from aiohttp import web
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.admin_backends import BackendRoutes
from gateway.admin_http import (
    BODY_BYTES,
    Gate,
    Handler,
    Models,
    answer,
    errors,
    guard,
    is_loopback,
    plain_headers,
    quiet_logger,
)
from gateway.admin_models import ModelRoutes
from gateway.admin_views import Reloaded
from gateway.admin_workers import WorkerRoutes
from gateway.api import LocalRoute
from gateway.config import split_address
from gateway.length_views import length_list
from gateway.metrics import exposition
from gateway.operations import Operations
from gateway.swap_metrics import swap_families

CLOSE_S = 1.0


class ControlPlane:
    """The control listener. `port` is known once started."""

    def __init__(self, operations: Operations, key: str) -> None:
        self._operations = operations
        self._plane = operations.plane
        self._gate = Gate(key)
        self._models = Models()
        self._document = b""
        self._host, self._wanted_port = split_address(self._plane.config.listen.control)
        self.port = 0

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        logs = self._plane.logs
        app = web.Application(middlewares=[errors(logs), guard(self._gate, self._is_free)], client_max_size=BODY_BYTES)
        for method, path, handler in self.routes():
            # names of models hold slashes
            app.router.add_route(method, path.replace("{model}", "{model:.+}"), handler)
        app.on_response_prepare.append(plain_headers)
        self._runner = web.AppRunner(app, access_log=None, logger=quiet_logger(logs), shutdown_timeout=CLOSE_S)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._wanted_port).start()
        self.port = int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Close."""
        await self._runner.cleanup()

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Every route as (method, path, handler)."""
        return [
            *BackendRoutes(self._operations, self._models).routes(),
            *WorkerRoutes(self._operations, self._models).routes(),
            *ModelRoutes(self._operations, self._models).routes(),
            ("GET", "/admin/lengths", self._lengths),
            ("GET", "/admin/config", self._config),
            ("POST", "/admin/reload", self._reload),
            ("GET", "/metrics", self._metrics),
            ("GET", "/health", self._health),
            ("GET", "/livez", self._livez),
            ("GET", "/readyz", self._readyz),
            ("GET", "/openapi.json", self._openapi),
        ]

    def _is_free(self, handler: object) -> bool:
        """Whether a route needs no key."""
        if handler == self._metrics:
            return is_loopback(self._host)
        return handler in (self._health, self._livez, self._readyz, self._openapi)

    async def _config(self, request: web.Request) -> web.Response:
        await self._models.loaded()
        from gateway.config import masked

        return answer(200, masked(self._plane.config))

    async def _lengths(self, request: web.Request) -> web.Response:
        desks = self._plane.desks
        tagger, models = desks.tagging.tagger, sorted({model for model, _ in desks})
        return answer(200, length_list(map(tagger.report, models), dict(tagger.rejected)))

    async def _reload(self, request: web.Request) -> web.Response:
        waiting = await self._operations.reload()
        return answer(200, Reloaded(self._plane.generation, waiting))

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=exposition(self._plane, self._swaps()), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    def _swaps(self) -> Iterable[Metric]:
        """Of models that share devices, where there are any."""
        swapper, plane = self._operations.swapper, self._plane
        if swapper is None or not plane.lodging.on:
            return ()
        return swap_families(plane.lodging, swapper.counts, swapper.moved_s, swapper.history, plane.now())

    async def _health(self, request: web.Request) -> web.Response:
        return self._local(LocalRoute("health"))

    async def _livez(self, request: web.Request) -> web.Response:
        return self._local(LocalRoute("livez"))

    async def _readyz(self, request: web.Request) -> web.Response:
        return self._local(LocalRoute("readyz"))

    def _local(self, route: LocalRoute) -> web.Response:
        """As the data listener answers it."""
        status, headers, body = self._plane.local_answer(route, "")
        return web.Response(status=status, body=body, headers=[(n.decode(), v.decode()) for n, v in headers])

    async def _openapi(self, request: web.Request) -> web.Response:
        if not self._document:
            self._document = await self._models.document()
        return web.Response(body=self._document, content_type="application/json")
