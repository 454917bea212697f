"""The control plane's description: an OpenAPI 3.1 document made from the models that parse and the records that answer.

Pure, and loaded only when asked for. OPERATIONS is the one list of what exists; a test holds it against the routes.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from gateway import __version__, admin_schema, admin_views, length_views, swap_answers, swap_views
from gateway.admin_http import DRAIN_S_MAX

NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
REASONS = {
    400: "The body is not JSON, or the URL or its address is not allowed.",
    401: "The admin key is missing or wrong.",
    404: "There is no such backend or model, or no devices are configured.",
    408: "The body did not arrive in time.",
    409: "The state of things forbids it: the name is in use, the backend is declared, being removed or not draining, "
    "the device is busy or has no room, or the model lies nowhere.",
    413: "The body is larger than 1 MiB.",
    415: "The body is of another type than JSON.",
    422: "A value is missing or out of range; `param` names the first field at fault.",
    503: "The state file could not be written; nothing was changed.",
}
SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}]
BODY = (400, 408, 413, 415, 422)
Query = tuple[tuple[str, bool, dict[str, object], str], ...]


@dataclass(frozen=True, slots=True)
class Described:
    """One operation. `query`: parameters as (name, required, schema, text)."""

    method: str
    path: str
    summary: str
    status: int
    answer: type | str
    says: str
    errors: tuple[int, ...] = ()
    body: type | None = None
    body_optional: bool = False
    query: Query = ()
    location: bool = False
    free: bool = False
    also: tuple[tuple[int, type, str], ...] = ()


V, S, W, L = admin_views, admin_schema, swap_views, length_views
_URL: Query = (("url", True, {"type": "string", "format": "uri"}, "The backend's base URL."),)
_TIMEOUT: Query = (
    (
        "timeout_s",
        False,
        {"type": "number", "minimum": 0, "maximum": DRAIN_S_MAX},
        "How long requests in flight may take; without it, [timeouts] drain_s.",
    ),
)
_PART: Query = (
    ("fraction", False, {"type": "number", "minimum": 0, "maximum": 1}, "The part of its layers on the device; without it, 1."),
    ("prompt_tokens", False, {"type": "number", "minimum": 0, "maximum": 100_000_000}, "Of a request; without it, 0."),
)
_ADDED = "Accepted: it is probed now and gets requests once it answers."
_GOES = "Accepted: it gets no more requests and is gone once none is in flight or the time is over; a GET then gives 404."
_NOT_READY = (503, V.Status, "No backend is ready, or the gateway is shutting down.")

_DRY = (200, W.StepTaken, "The step that would be taken (`dry_run`).")

OPERATIONS = (
    Described("get", "/admin/backends", "All backends.", 200, V.BackendList, "All backends, by name.", (401,)),
    Described(
        "post",
        "/admin/backends",
        "Add a backend.",
        202,
        V.BackendView,
        _ADDED,
        (*BODY, 401, 409, 503),
        body=S.NewBackend,
        location=True,
    ),
    Described(
        "get",
        "/admin/backends/{name}",
        "One backend, and whether and why it gets requests.",
        200,
        V.BackendView,
        "It.",
        (401, 404),
    ),
    Described(
        "put",
        "/admin/backends/{name}",
        "Replace a backend's settings, its key included; another address starts it over.",
        200,
        V.BackendView,
        "As it is now.",
        (*BODY, 401, 404, 409, 503),
        body=S.BackendSettings,
    ),
    Described(
        "patch",
        "/admin/backends/{name}",
        "Change some of a backend's settings.",
        200,
        V.BackendView,
        "As it is now.",
        (*BODY, 401, 404, 409, 503),
        body=S.BackendPatch,
    ),
    Described(
        "delete",
        "/admin/backends/{name}",
        "Drain a backend, then remove it.",
        202,
        V.BackendView,
        _GOES,
        (401, 404, 409, 422, 503),
        query=_TIMEOUT,
    ),
    Described(
        "post",
        "/admin/backends/{name}/drain",
        "Send a backend no more requests.",
        202,
        V.BackendView,
        "Accepted: those in flight go on.",
        (*BODY, 401, 404),
        body=S.DrainRequest,
        body_optional=True,
    ),
    Described(
        "post", "/admin/backends/{name}/undrain", "Call a drain off.", 200, V.BackendView, "As it is now.", (401, 404, 409)
    ),
    Described("get", "/admin/models", "Models that share devices.", 200, W.ModelList, "All of them, by name.", (401, 404)),
    Described(
        "get",
        "/admin/models/{model}",
        "One model: who has it where, who waits for it, what moving it costs.",
        200,
        W.ModelView,
        "It.",
        (401, 404),
    ),
    Described(
        "post",
        "/admin/models/{model}/load",
        "Bring a model onto a device, whoever must leave for it.",
        202,
        W.StepTaken,
        "Accepted: who must leave ends its requests first; GET /admin/plan tells how it went.",
        (*BODY, 401, 404, 409),
        body=S.MoveRequest,
        body_optional=True,
        also=(_DRY,),
    ),
    Described(
        "post",
        "/admin/models/{model}/unload",
        "Take a model off a device once its requests are over.",
        202,
        W.StepTaken,
        "Accepted: it gets no more requests there; GET /admin/plan tells how it went.",
        (*BODY, 401, 404, 409),
        body=S.MoveRequest,
        body_optional=True,
        also=(_DRY,),
    ),
    Described(
        "post",
        "/admin/models/{model}/pin",
        "Say whether a model may leave its device, until the gateway ends.",
        200,
        W.ModelView,
        "As it is now.",
        (*BODY, 401, 404),
        body=S.PinRequest,
    ),
    Described(
        "get",
        "/admin/plan",
        "Devices, the swap plan with its reasons, and the last swaps.",
        200,
        W.Situation,
        "As it is now.",
        (401, 404),
    ),
    Described(
        "post",
        "/admin/plan",
        "What the planner would do if other things were asked for. Nothing moves.",
        200,
        W.PlanView,
        "The plan.",
        (*BODY, 401, 404),
        body=S.WhatIf,
        body_optional=True,
    ),
    Described(
        "get",
        "/admin/plan/{model}",
        "How fast a model is with a part of its layers, whether that fits, what taking it off now costs.",
        200,
        swap_answers.ModelAnswer,
        "As believed now.",
        (401, 404, 422),
        query=_PART,
    ),
    Described(
        "get", "/admin/lengths", "Layers that foretell lengths, which are on and why.", 200, L.LengthList, "By model.", (401,)
    ),
    Described(
        "get", "/admin/config", "The effective configuration, secrets masked.", 200, "config", "As gateway.toml.", (401,)
    ),
    Described(
        "post",
        "/admin/reload",
        "Read the configuration file again; applied as a whole or not at all.",
        200,
        V.Reloaded,
        "Applied.",
        (401, 409, 422),
    ),
    Described("get", "/workers", "All backends, in smg's shape.", 200, V.WorkerList, "All workers, by id.", (401,)),
    Described(
        "post",
        "/workers",
        "Add a backend by its URL; its name is made from that.",
        202,
        V.WorkerAccepted,
        _ADDED,
        (*BODY, 401, 409, 503),
        body=S.NewWorker,
        location=True,
    ),
    Described("get", "/workers/{id}", "One worker, by id or percent-encoded URL.", 200, V.WorkerView, "It.", (401, 404)),
    Described(
        "delete",
        "/workers/{id}",
        "Drain a worker, then remove it; by id or percent-encoded URL.",
        202,
        V.WorkerAccepted,
        _GOES,
        (401, 404, 409, 422, 503),
        query=_TIMEOUT,
    ),
    Described(
        "post",
        "/add_worker",
        "As POST /workers.",
        202,
        V.WorkerAccepted,
        _ADDED,
        (400, 401, 409, 422, 503),
        query=_URL,
        location=True,
    ),
    Described(
        "post",
        "/remove_worker",
        "As DELETE /workers/{id}.",
        202,
        V.WorkerAccepted,
        _GOES,
        (401, 404, 409, 422, 503),
        query=_URL,
    ),
    Described("get", "/list_workers", "The workers' URLs.", 200, V.WorkerUrls, "Their URLs.", (401,)),
    Described(
        "get",
        "/metrics",
        "Prometheus metrics. On a loopback listener without a key, else with it.",
        200,
        "text",
        "Text exposition format.",
        (401,),
        free=True,
    ),
    Described("get", "/health", "Whether the process answers.", 200, V.Status, "It does.", free=True),
    Described("get", "/livez", "Whether the process answers.", 200, V.Status, "It does.", free=True),
    Described("get", "/readyz", "Whether requests can be served.", 200, V.Status, "They can.", free=True, also=(_NOT_READY,)),
    Described("get", "/openapi.json", "This document.", 200, "document", "An OpenAPI 3.1 document.", free=True),
)
_BARE: dict[str, tuple[str, dict[str, object]]] = {
    "text": ("text/plain", {"type": "string"}),
    "config": ("application/json", {"type": "object", "description": "The sections of gateway.toml with their values."}),
    "document": ("application/json", {"type": "object"}),
}


def document() -> dict[str, Any]:
    """The whole description."""
    schemas, refs = _schemas()
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, refs)
    for path, item in paths.items():
        if "{" in path:
            item["parameters"] = [_path_parameter(path)]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Leeway control plane",
            "version": __version__,
            "description": "Backends, configuration and health of one gateway. Errors have OpenAI's shape.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": SECURITY,
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "The admin key."},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The admin key."},
            },
        },
    }


def _schemas() -> tuple[dict[str, Any], dict[type, dict[str, Any]]]:
    """(components, the reference of each model and record)."""
    bodies = {op.body for op in OPERATIONS if op.body is not None}
    answers = {op.answer for op in OPERATIONS if not isinstance(op.answer, str)} | {V.ErrorBody}
    answers |= {answer for op in OPERATIONS for _, answer, _ in op.also}
    kinds = sorted(bodies | answers, key=lambda kind: kind.__name__)
    inputs: list[tuple[type, JsonSchemaMode, TypeAdapter[Any]]] = [
        (kind, "validation" if kind in bodies else "serialization", TypeAdapter(kind)) for kind in kinds
    ]
    refs, definitions = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")
    return definitions["$defs"], {kind: ref for (kind, _), ref in refs.items()}


def _operation(op: Described, refs: dict[type, dict[str, Any]]) -> dict[str, Any]:
    if isinstance(op.answer, str):
        content_type, schema = _BARE[op.answer]
        responses = {str(op.status): _response(op.says, schema, content_type)}
    else:
        responses = {str(op.status): _response(op.says, refs[op.answer])}
    if op.location:
        responses[str(op.status)]["headers"] = {"Location": {"description": "Where it is.", "schema": {"type": "string"}}}
    for status in sorted(op.errors):
        responses[str(status)] = _response(REASONS[status], refs[V.ErrorBody])
    for status, answer, says in op.also:
        responses[str(status)] = _response(says, refs[answer])
    words = [op.method, *(word.strip("{}").replace(".", "_") for word in op.path.split("/") if word)]
    described: dict[str, Any] = {"summary": op.summary, "operationId": "_".join(words), "responses": responses}
    if op.free:  # what may need the key, depending on the listener, says so by its 401
        described["security"] = [{}, *SECURITY] if 401 in op.errors else [{}]
    if op.body is not None:
        described["requestBody"] = {
            "required": not op.body_optional,
            "content": {"application/json": {"schema": refs[op.body]}},
        }
    if op.query:
        described["parameters"] = [
            {"name": name, "in": "query", "required": required, "schema": schema, "description": says}
            for name, required, schema, says in op.query
        ]
    return described


def _response(says: str, schema: dict[str, Any], content_type: str = "application/json") -> dict[str, Any]:
    return {"description": says, "content": {content_type: {"schema": schema}}}


def _path_parameter(path: str) -> dict[str, Any]:
    name = path.partition("{")[2].partition("}")[0]
    schema: dict[str, Any] = {"type": "string"}
    if name == "name":
        schema["pattern"] = NAME_PATTERN
    return {"name": name, "in": "path", "required": True, "schema": schema}
