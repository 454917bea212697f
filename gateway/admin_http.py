"""What all routes of the control listener share: credentials, bodies in, answers out, and one shape of error. Shell.

Every answer that is not a route's own, 404, 405, 413 and a fault of ours included, has the JSON error shape of the data
plane. No answer and no log line ever holds a stack trace, a key or a request's content.
"""

import asyncio
import hashlib
import hmac
import importlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.api import Refusal
from gateway.logs import Logs
from gateway.operator_errors import OperationError

BODY_BYTES = 1 << 20
BODY_S = 10.0
DRAIN_S_MAX = 86400.0
JSON_TYPES = ("application/json", "application/merge-patch+json")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(status: int, body: object, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer; records are written as objects."""
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json", headers=headers)


def refuse(refusal: Refusal) -> web.Response:
    """A refusal in OpenAI's error shape."""
    headers = [(name.decode(), value.decode()) for name, value in refusal.headers]
    return web.Response(status=refusal.status, body=refusal.body("openai"), headers=headers)


async def json_body(request: web.Request, optional: bool = False) -> object:
    """The request's body as parsed JSON; {} for none where it is optional. Raises Refusal (400, 408, 413, 415)."""
    try:
        async with asyncio.timeout(BODY_S):
            body = await request.read()
    except TimeoutError:
        raise Refusal(408, "body_timeout", "The body did not arrive in time.") from None
    except web.RequestPayloadError:
        raise Refusal(400, "bad_body", "The body could not be read.") from None
    if not body and optional:
        return {}
    if request.content_type not in JSON_TYPES and "Content-Type" in request.headers:
        raise Refusal(415, "unsupported_media_type", "The body must be JSON: send Content-Type: application/json.")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, "invalid_json", f"The body is not JSON: {error.msg} (line {error.lineno}).") from None


def drain_query_s(request: web.Request, default_s: float) -> float:
    """`?timeout_s=` of a request. Raises Refusal (422)."""
    text = request.query.get("timeout_s")
    if text is None:
        return default_s
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = -1.0
    if not 0.0 <= timeout_s <= DRAIN_S_MAX:
        raise Refusal(422, "invalid_value", f"timeout_s: must be from 0 to {DRAIN_S_MAX:g}.", param="timeout_s")
    return timeout_s


class Models:
    """The models of what comes in. Loading them takes a while, so it is done once, when needed, beside the loop."""

    def __init__(self) -> None:
        self._ready = False

    async def loaded(self) -> None:
        """Afterwards, importing gateway.admin_schema costs nothing."""
        if not self._ready:
            await asyncio.to_thread(importlib.import_module, "gateway.admin_schema")
            self._ready = True

    @staticmethod
    async def document() -> bytes:
        """The API's description as JSON."""
        return await asyncio.to_thread(_document)


def _document() -> bytes:
    from gateway.admin_openapi import document

    return orjson.dumps(document())


class Gate:
    """The admin credential: `Authorization: Bearer` or `x-api-key`, compared by hash in constant time."""

    def __init__(self, key: str) -> None:
        assert key, "an empty key would let everybody in"
        self._digest = hashlib.sha256(key.encode()).digest()

    def opens(self, request: web.Request) -> bool:
        """Whether the request carries the key. A missing and a wrong one cost the same."""
        sent = request.headers.get("x-api-key", "")
        authorization = request.headers.get("Authorization", "")
        if authorization[:7].lower() == "bearer ":
            sent = authorization[7:]
        digest = hashlib.sha256(sent.strip().encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)


def guard(gate: Gate, free: Callable[[object], bool]) -> Middleware:
    """A middleware that lets a request without the key through only to handlers that are `free`.

    What the router found decides, not the text of the path: an unknown route is closed too.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if free(request.match_info.handler) or gate.opens(request):
            return await handler(request)
        raise Refusal(401, "unauthorized", "A valid admin key is needed.")

    return middleware


def errors(logs: Logs) -> Middleware:
    """The outermost middleware: whatever is raised becomes one JSON error."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refusal as refusal:
            return refuse(refusal)
        except OperationError as error:
            return refuse(Refusal(error.status, error.code, error.message, param=error.param))
        except web.HTTPException as error:
            return _shaped(request, error)
        except Exception as error:
            logs.event("error", "control plane fault", route=_route(request), error=type(error).__name__)
            body = Refusal(500, "internal_error", "The gateway made a mistake; its log says where.").body("openai")
            raise web.HTTPInternalServerError(text=body.decode(), content_type="application/json") from error

    return middleware


def _shaped(request: web.Request, error: web.HTTPException) -> web.Response:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        response = refuse(Refusal(405, "method_not_allowed", f"Use {allowed} here."))
        response.headers["Allow"] = allowed
        return response
    if error.status == 404:
        return refuse(Refusal(404, "unknown_route", "No such route; GET /openapi.json lists them."))
    if error.status == 413:
        return refuse(Refusal(413, "body_too_large", f"The body may have at most {BODY_BYTES} bytes."))
    return refuse(Refusal(error.status, "bad_request", f"{error.reason}."))


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return f"{request.method} {resource.canonical if resource is not None else '?'}"


async def plain_headers(request: web.Request, response: web.StreamResponse) -> None:
    """No banner, no caching, no guessing of types (a hook for `on_response_prepare`)."""
    response.headers.pop("Server", None)
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener there."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return False


def quiet_logger(logs: Logs) -> logging.Logger:
    """What the HTTP library logs through: a short line of our own instead of its traceback."""
    logger = logging.Logger("leeway.control")
    logger.addHandler(_Lines(logs))
    return logger


class _Lines(logging.Handler):
    def __init__(self, logs: Logs) -> None:
        super().__init__(logging.WARNING)
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[0] if record.exc_info else None
        self._logs.event("warning", "control listener", error=cause.__name__ if cause else record.getMessage())
