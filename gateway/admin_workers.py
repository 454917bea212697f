"""/workers and its older aliases: the shapes that tools made for other routers send. Shell; the same Operations.

A worker is a backend; its id is the backend's name, and its URL, percent-encoded, works in its place.
"""

from aiohttp import web

from gateway.admin_http import Handler, Models, answer, drain_query_s, json_body
from gateway.admin_views import WorkerAccepted, WorkerUrls, worker_list, worker_view
from gateway.operations import Operations
from gateway.operator_errors import OperationError
from gateway.replica import Replica


class WorkerRoutes:
    """See the module's words."""

    def __init__(self, operations: Operations, models: Models) -> None:
        self._operations = operations
        self._plane = operations.plane
        self._models = models

    def routes(self) -> list[tuple[str, str, Handler]]:
        """(method, path, handler)."""
        return [
            ("GET", "/workers", self._list),
            ("POST", "/workers", self._add),
            ("GET", "/workers/{id}", self._get),
            ("DELETE", "/workers/{id}", self._remove),
            ("POST", "/add_worker", self._add_by_url),
            ("POST", "/remove_worker", self._remove_by_url),
            ("GET", "/list_workers", self._urls),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        return answer(200, worker_list(list(self._plane.fleet), self._plane.now()))

    async def _urls(self, request: web.Request) -> web.Response:
        return answer(200, WorkerUrls(tuple(replica.spec.url for replica in self._plane.fleet)))

    async def _get(self, request: web.Request) -> web.Response:
        return answer(200, worker_view(self._find(request.match_info["id"]), self._plane.now()))

    async def _add(self, request: web.Request) -> web.Response:
        return await self._added(await json_body(request))

    async def _add_by_url(self, request: web.Request) -> web.Response:
        return await self._added({"url": _url(request)})

    async def _added(self, data: object) -> web.Response:
        await self._models.loaded()
        from gateway.admin_schema import new_worker

        spec = new_worker(data)
        if any(replica.spec.url == spec.url for replica in self._plane.fleet):
            raise OperationError(409, "worker_exists", "There is a worker with this URL.", "url")
        self._operations.add(spec)
        return _accepted(spec.name, spec.url)

    async def _remove(self, request: web.Request) -> web.Response:
        return self._removed(request, request.match_info["id"])

    async def _remove_by_url(self, request: web.Request) -> web.Response:
        return self._removed(request, _url(request))

    def _removed(self, request: web.Request, worker: str) -> web.Response:
        replica = self._find(worker)
        self._operations.remove(replica.name, drain_query_s(request, self._plane.timeouts.drain_s))
        return _accepted(replica.name, replica.spec.url)

    def _find(self, worker: str) -> Replica:
        """By id, else by URL."""
        found = self._plane.fleet.get(worker)
        if found is None:
            url = worker.rstrip("/")
            found = next((replica for replica in self._plane.fleet if replica.spec.url == url), None)
        if found is None:
            raise OperationError(404, "no_such_worker", "There is no such worker.")
        return found


def _url(request: web.Request) -> str:
    url = request.query.get("url", "")
    if not url:
        raise OperationError(422, "invalid_value", "url: the query parameter is missing.", "url")
    return url


def _accepted(name: str, url: str) -> web.Response:
    location = f"/workers/{name}"
    return answer(202, WorkerAccepted("accepted", name, url, location), {"Location": location})
