"""/admin/models and /admin/plan: who lies on which device, what it costs to change that, why it will be, what if. Shell.

What is asked for goes through the swapper, as the planner's own steps do; `dry_run` and POST /admin/plan move nothing.
"""

import asyncio
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from gateway.admin_http import Handler, Models, answer, json_body
from gateway.operations import Operations
from gateway.operator_errors import OperationError
from gateway.residency import Step, SwapPlan
from gateway.swap_answers import answer_of
from gateway.swap_views import StepTaken, model_list, model_view, plan_view, situation, step_view

if TYPE_CHECKING:
    from gateway.swapper import Swapper

PROMPT_TOKENS_MAX = 1e8


class ModelRoutes:
    """See the module's words. Names of models may hold slashes and colons: `{model}` is all up to the verb."""

    def __init__(self, operations: Operations, models: Models) -> None:
        self._operations = operations
        self._plane = operations.plane
        self._models = models
        self._planning = asyncio.Lock()  # one what-if at a time: each keeps a core busy

    def routes(self) -> list[tuple[str, str, Handler]]:
        """(method, path, handler)."""
        one = "/admin/models/{model}"
        return [
            ("GET", "/admin/models", self._list),
            ("GET", one, self._get),
            ("POST", f"{one}/load", self._load),
            ("POST", f"{one}/unload", self._unload),
            ("POST", f"{one}/pin", self._pin),
            ("GET", "/admin/plan", self._plan),
            ("POST", "/admin/plan", self._what_if),
            ("GET", "/admin/plan/{model}", self._answer),
        ]

    def _swapper(self) -> "Swapper":
        """Raises OperationError where nothing shares a device."""
        swapper = self._operations.swapper
        if swapper is None or not self._plane.lodging.on:
            raise OperationError(404, "no_devices", "No devices are configured that models share ([[devices]]).")
        swapper.see()
        return swapper

    async def _list(self, request: web.Request) -> web.Response:
        swapper, plane = self._swapper(), self._plane
        return answer(200, model_list(plane.lodging, swapper.waiters(), plane.now()))

    async def _get(self, request: web.Request) -> web.Response:
        return self._shown(self._swapper(), request.match_info["model"])

    async def _answer(self, request: web.Request) -> web.Response:
        fraction = _number(request, "fraction", 1.0, 1.0)
        prompt_tokens = round(_number(request, "prompt_tokens", 0.0, PROMPT_TOKENS_MAX))
        swapper, lodging, model = self._swapper(), self._plane.lodging, request.match_info["model"]
        self._lodges(model)
        return answer(200, answer_of(lodging, swapper.waiters(), model, fraction, prompt_tokens, self._plane.now()))

    def _lodges(self, model: str) -> None:
        if not self._plane.lodging.lodges(model):
            raise OperationError(404, "no_such_model", f"No model {model[:200]!r} shares a device.")

    def _shown(self, swapper: "Swapper", model: str) -> web.Response:
        plane = self._plane
        self._lodges(model)
        return answer(200, model_view(plane.lodging, model, swapper.waiters(), plane.now()))

    async def _load(self, request: web.Request) -> web.Response:
        device, dry_run = await self._asked(request)
        return _taken(self._swapper().load(request.match_info["model"], device, dry_run), dry_run)

    async def _unload(self, request: web.Request) -> web.Response:
        device, dry_run = await self._asked(request)
        return _taken(self._swapper().unload(request.match_info["model"], device, dry_run), dry_run)

    async def _asked(self, request: web.Request) -> tuple[str, bool]:
        """Which device, and whether it is only a question. Raises OperationError (422 for an unknown device), Refusal."""
        await self._models.loaded()
        from gateway.admin_schema import move_request

        asked = move_request(await json_body(request, optional=True))
        self._swapper()
        if asked.device and self._plane.lodging.device(asked.device) is None:
            raise OperationError(422, "invalid_value", "device: no device has this name.", "device")
        return asked.device, asked.dry_run

    async def _pin(self, request: web.Request) -> web.Response:
        await self._models.loaded()
        from gateway.admin_schema import pin_request

        pinned = pin_request(await json_body(request))
        swapper, model = self._swapper(), request.match_info["model"]
        swapper.pin(model, pinned)
        return self._shown(swapper, model)

    async def _plan(self, request: web.Request) -> web.Response:
        swapper, plane = self._swapper(), self._plane
        return answer(200, situation(plane.lodging, swapper.history, swapper.moving, plane.now()))

    async def _what_if(self, request: web.Request) -> web.Response:
        await self._models.loaded()
        from gateway.admin_schema import supposed_demand
        from gateway.what_if import what_if

        supposed, pinned = supposed_demand(await json_body(request, optional=True))
        async with self._planning:
            swapper, lodging = self._swapper(), self._plane.lodging
            for name in (*supposed, *(pinned or ())):
                if not lodging.lodges(name):
                    raise OperationError(422, "invalid_value", f"No model {name[:200]!r} shares a device.", "models")
            view = lodging.view(swapper.waiters(), self._plane.now())
            if pinned is not None:
                pinned |= {one.model for one in lodging.lodgers.values() if not one.moves}
            costs, settings = deepcopy(lodging.costs), lodging.settings(wide=True)  # they learn on while a thread plans
            found = await to_its_end(partial(what_if, view, supposed, pinned, costs, settings))
        return answer(200, plan_view(found))


async def to_its_end(work: Callable[[], SwapPlan]) -> SwapPlan:
    """What a thread finds; a cancel waits for it, since the thread ends no sooner and keeps its core busy."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


def _number(request: web.Request, name: str, default: float, most: float) -> float:
    """A query parameter from 0 to `most`. Raises OperationError (422)."""
    text = request.query.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise OperationError(422, "invalid_value", f"{name}: must be a number from 0 to {most:g}.", name)
    return value


def _taken(step: Step, dry_run: bool) -> web.Response:
    return answer(200 if dry_run else 202, StepTaken(dry_run, step_view(step)))
