"""/admin/backends: look at, add, change, drain and remove backends. Shell; every change goes through Operations."""

from aiohttp import web

from gateway.admin_http import Handler, Models, answer, drain_query_s, json_body
from gateway.admin_views import backend_list, backend_view
from gateway.operations import Operations
from gateway.operator_errors import OperationError


class BackendRoutes:
    """See the module's words."""

    def __init__(self, operations: Operations, models: Models) -> None:
        self._operations = operations
        self._plane = operations.plane
        self._models = models

    def routes(self) -> list[tuple[str, str, Handler]]:
        """(method, path, handler)."""
        one = "/admin/backends/{name}"
        return [
            ("GET", "/admin/backends", self._list),
            ("POST", "/admin/backends", self._add),
            ("GET", one, self._get),
            ("PUT", one, self._replace),
            ("PATCH", one, self._patch),
            ("DELETE", one, self._remove),
            ("POST", f"{one}/drain", self._drain),
            ("POST", f"{one}/undrain", self._undrain),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        plane = self._plane
        return answer(200, backend_list(list(plane.fleet), self._operations.leaving, plane.now()))

    async def _get(self, request: web.Request) -> web.Response:
        return self._shown(request.match_info["name"])

    async def _add(self, request: web.Request) -> web.Response:
        await self._models.loaded()
        from gateway.admin_schema import new_backend

        spec = new_backend(await json_body(request))
        self._operations.add(spec)
        return self._shown(spec.name, 202, {"Location": f"/admin/backends/{spec.name}"})

    async def _replace(self, request: web.Request) -> web.Response:
        await self._models.loaded()
        from gateway.admin_schema import replaced_backend

        data = await json_body(request)
        name = self._operations.changeable(request.match_info["name"]).name
        self._operations.replace(replaced_backend(name, data))
        return self._shown(name)

    async def _patch(self, request: web.Request) -> web.Response:
        await self._models.loaded()
        from gateway.admin_schema import patched_backend

        data = await json_body(request)
        spec = self._operations.changeable(request.match_info["name"])  # read after the last await: no update is lost
        self._operations.replace(patched_backend(spec, data))
        return self._shown(spec.name)

    async def _remove(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._operations.remove(name, drain_query_s(request, self._plane.timeouts.drain_s))
        return self._shown(name, 202)

    async def _drain(self, request: web.Request) -> web.Response:
        await self._models.loaded()
        from gateway.admin_schema import drain_timeout_s

        timeout_s = drain_timeout_s(await json_body(request, optional=True))
        name = request.match_info["name"]
        self._operations.drain(name, self._plane.timeouts.drain_s if timeout_s is None else timeout_s)
        return self._shown(name, 202)

    async def _undrain(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self._operations.undrain(name)
        return self._shown(name)

    def _shown(self, name: str, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
        replica = self._plane.fleet.get(name)
        if replica is None:
            raise OperationError(404, "no_such_backend", f"No backend is named {name[:64]!r}.")
        return answer(status, backend_view(replica, self._operations.leaving(name), self._plane.now()), headers)
