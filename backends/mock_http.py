"""HTTP manners of the simulated engine: errors in vLLM's shape, JSON in and out, the key check.

Handlers raise `ApiError`; one middleware turns it into a body, in Anthropic's shape below /v1/messages.
"""

import json
from collections.abc import Mapping
from hmac import compare_digest

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware


class ApiError(Exception):
    """An answer other than 2xx. `kind` is vLLM's error type, `param` the field to blame."""

    def __init__(
        self, status: int, kind: str, message: str, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self, path: str) -> dict[str, object]:
        """The JSON body of the answer to a request for that path."""
        if path.startswith("/v1/messages"):
            return {"type": "error", "error": {"type": self.kind, "message": self.message}}
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def bad_field(message: str, param: str | None = None) -> ApiError:
    """A body that does not have the right form."""
    return ApiError(400, "Bad Request", message, param)


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A well-formed body that asks for what this engine cannot do."""
    return ApiError(400, "BadRequestError", message, param)


def not_found(message: str, param: str | None = None) -> ApiError:
    """Something that the request names does not exist."""
    return ApiError(404, "NotFoundError", message, param)


def dumps(value: object) -> bytes:
    """JSON bytes; text that UTF-8 cannot carry (echoed lone surrogates) is escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A complete JSON answer."""
    return web.Response(body=dumps(value), status=status, headers=headers, content_type="application/json")


def error_answer(error: ApiError, path: str) -> web.Response:
    """The complete answer for an error."""
    headers = None if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return json_answer(error.body(path), error.status, headers)


async def read_json(request: web.Request) -> Mapping[str, object]:
    """The JSON object in a request's body, whatever content type it claims; ApiError 400 if there is none."""
    data = await request.read()
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            # The standard parser takes what vLLM's takes as well: lone surrogates, huge integers.
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise bad_field(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_field("the body must be a JSON object")
    return value


@web.middleware
async def errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Map errors to bodies, once."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_answer(error, request.path)
    except web.HTTPException as error:
        # Only router and body limit raise these: 404, 405, 413.
        return error_answer(ApiError(error.status, error.reason, error.reason), request.path)


def key_middleware(api_key: str) -> Middleware:
    """Demand `Authorization: Bearer KEY` below /v1, as vLLM does; other routes stay open."""
    expected = api_key.encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        if request.path.startswith("/v1") and not (
            scheme.lower() == "bearer" and compare_digest(key.encode("utf-8", "surrogateescape"), expected)
        ):
            return json_answer({"error": "Unauthorized"}, 401)
        return await handler(request)

    return check
