"""The gateway's HTTP faces: which route is which, what its errors look like, and what it answers itself. Pure.

Routes are matched exactly on the parsed path. Errors have OpenAI's shape, Anthropic's on /v1/messages, and never name
an internal address. A refusal that may be tried again says when (`Retry-After`); one whose work may have run, or that would
come again, says `x-should-retry: false`, which the SDKs obey.
"""

import difflib
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

import orjson

from backends.base import Kind
from gateway.relay.requests import RequestHead
from gateway.relay.sse import Face

Local = Literal["livez", "readyz", "health", "models", "model", "root", "options", "request"]


@dataclass(frozen=True, slots=True)
class Route:
    """A proxied route. `asks_usage`: on streams the engine is asked for usage."""

    face: Face = "other"
    label: str = "other"
    asks_usage: bool = False
    response_id: str = ""
    kind: Kind = "unknown"


@dataclass(frozen=True, slots=True)
class LocalRoute:
    """A route that the gateway answers itself."""

    what: Local
    argument: str = ""


_CHAT = Route("openai", "chat", True, kind="generate")
ROUTES: dict[bytes, Route] = {
    b"/v1/chat/completions": _CHAT,
    b"/v1/completions": Route("openai", "completions", True, kind="generate"),
    b"/v1/responses": Route("responses", "responses", kind="generate"),
    b"/v1/messages": Route("anthropic", "messages", kind="generate"),
    b"/v1/messages/count_tokens": Route("anthropic", "count_tokens", kind="generate"),
    b"/v1/embeddings": Route("other", "embeddings", kind="pooling"),
    b"/v2/embed": Route("other", "embeddings", kind="pooling"),
    b"/v1/rerank": Route("other", "rerank", kind="pooling"),
    b"/v2/rerank": Route("other", "rerank", kind="pooling"),
    b"/rerank": Route("other", "rerank", kind="pooling"),
    b"/v1/score": Route("other", "score", kind="pooling"),
    b"/score": Route("other", "score", kind="pooling"),
    b"/v1/classify": Route("other", "classify", kind="pooling"),
    b"/classify": Route("other", "classify", kind="pooling"),
    b"/v1/pooling": Route("other", "pooling", kind="pooling"),
    b"/pooling": Route("other", "pooling", kind="pooling"),
    b"/v1/moderations": Route("other", "moderations"),
    b"/tokenize": Route("other", "tokenize"),
    b"/v1/tokenize": Route("other", "tokenize"),
    b"/detokenize": Route("other", "detokenize"),
    b"/v1/detokenize": Route("other", "detokenize"),
    b"/v1/audio/transcriptions": Route("other", "audio"),
    b"/v1/audio/translations": Route("other", "audio"),
    b"/v1/audio/speech": Route("other", "audio"),
    b"/v1/images/generations": Route("other", "images"),
    b"/v1/images/edits": Route("other", "images"),
    b"/v1/images/variations": Route("other", "images"),
}
LOCAL: dict[bytes, LocalRoute] = {
    b"/": LocalRoute("root"),
    b"/livez": LocalRoute("livez"),
    b"/readyz": LocalRoute("readyz"),
    b"/health": LocalRoute("health"),
    b"/healthz": LocalRoute("health"),
    b"/ping": LocalRoute("health"),
    b"/v1/models": LocalRoute("models"),
}
_OTHER_V1 = Route()
_ENGINE_OPERATIONS = frozenset((b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter"))  # its operator's, never a client's
_NO_PATH_OF_OURS = (b"//", b"/.", b"%")
_RESPONSES = b"/v1/responses/"
_MODELS = b"/v1/models/"
_REQUESTS = b"/v1/requests/"
GATEWAY_ONLY = ("/v1/models", "/health", "/livez", "/readyz")


class Refusal(Exception):
    """An error answer of ours, before a backend's first byte. `kind` is OpenAI's error type, `code` the machine word."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_s: int = 0,
        may_have_run: bool = False,
        param: str | None = None,
        allow: bytes = b"",
        wait_s: float = -1.0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s
        self.may_have_run = may_have_run
        self.param = param
        self.allow = allow
        self.wait_s = wait_s  # how long it would have had to wait, where that is known

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """What goes out beside the body."""
        out = [(b"content-type", b"application/json")]
        if self.retry_after_s:
            out.append((b"retry-after", b"%d" % self.retry_after_s))
        if self.wait_s >= 0:
            out.append((b"x-leeway-expected-wait-ms", b"%d" % int(self.wait_s * 1e3)))
        if self.may_have_run or self.status == 508:
            out.append((b"x-should-retry", b"false"))
        if self.status == 405 and self.allow:
            out.append((b"allow", self.allow))
        if self.status == 401:
            out.append((b"www-authenticate", b"Bearer"))
        return out

    def body(self, face: Face) -> bytes:
        """The JSON that the client's SDK expects."""
        if face == "anthropic":
            error = {"type": _ANTHROPIC_TYPES.get(self.status, "api_error"), "message": self.message}
            return orjson.dumps({"type": "error", "error": error})
        said = {"message": self.message, "type": _openai_type(self.status), "param": self.param, "code": self.code}
        return orjson.dumps({"error": said})


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def _openai_type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 404:
        return "not_found_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def route(head: RequestHead) -> Route | LocalRoute:
    """What this request asks for. Raises Refusal (404 with a hint, 405)."""
    method, path = head.method, head.path
    found = ROUTES.get(path)
    if found is not None:
        if method == b"POST":
            return found
        if method != b"OPTIONS":
            raise Refusal(405, "method_not_allowed", f"Use POST for {path.decode()}.", allow=b"POST, OPTIONS")
    if method == b"OPTIONS":
        return LocalRoute("options")
    local = LOCAL.get(path)
    if local is None and path.startswith(_MODELS) and len(path) > len(_MODELS):
        local = LocalRoute("model", unquote(path[len(_MODELS) :].decode()))
    if local is None and path.startswith(_REQUESTS) and len(path) > len(_REQUESTS):
        local = LocalRoute("request", unquote(path[len(_REQUESTS) :].decode()))
    if local is not None:
        if method in (b"GET", b"HEAD") or (path == b"/ping" and method == b"POST"):
            return local
        raise Refusal(405, "method_not_allowed", f"Use GET for {path.decode()}.", allow=b"GET, HEAD, OPTIONS")
    if path.startswith(_RESPONSES):
        return _stored_response(method, path)
    if method == b"POST" and _may_pass(path):
        return _OTHER_V1
    raise Refusal(404, "unknown_route", f"No route {method.decode()} {path.decode()}.{_hint(path)}")


def _may_pass(path: bytes) -> bool:
    """Whether a route that is not known here may be one of the engine's: plainly written, and for clients."""
    plain = path.startswith(b"/v1/") and not path.endswith(b"/") and not any(odd in path for odd in _NO_PATH_OF_OURS)
    return plain and path not in _ENGINE_OPERATIONS


def _stored_response(method: bytes, path: bytes) -> Route:
    name, slash, action = path[len(_RESPONSES) :].decode().partition("/")
    known = (not slash and method in (b"GET", b"DELETE")) or (action == "cancel" and method == b"POST")
    known = known or (action == "input_items" and method == b"GET")
    if not name or not known:
        raise Refusal(404, "unknown_route", f"No route {method.decode()} {path.decode()}.")
    return Route("responses", "responses", response_id=name, kind="generate")


def _hint(path: bytes) -> str:
    text = path.decode()
    known = [p.decode() for p in ROUTES] + list(GATEWAY_ONLY)
    if "/v1" + text in known:
        return f" Did you mean /v1{text}? A client's base URL ends in /v1."
    if text.startswith("/v1/v1/"):
        return f" Did you mean {text[3:]}? The client adds /v1 itself."
    close = difflib.get_close_matches(text, known, n=1, cutoff=0.75)
    return f" Did you mean {close[0]}?" if close else " The API is under /v1, for example POST /v1/chat/completions."


def unknown_model(name: str, known: tuple[str, ...]) -> Refusal:
    """404 that names what can be had instead."""
    shown = ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    said = f"The model {name[:200]!r} does not exist here." if name else "The request names no model."
    status = 404 if name else 400
    return Refusal(
        status, "model_not_found" if name else "model_missing", f"{said} Known models: {shown or 'none yet'}.", param="model"
    )


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of /v1/models."""

    id: str
    max_model_len: int = 0
    root: str = ""

    def json(self) -> dict[str, object]:
        """OpenAI's model object, with the fields that vLLM's users know."""
        card: dict[str, object] = {"id": self.id, "object": "model", "created": 0, "owned_by": "leeway"}
        if self.root:
            card["root"] = self.root
        if self.max_model_len:
            card["max_model_len"] = self.max_model_len
        return card


def models_body(cards: list[ModelCard]) -> bytes:
    """The list that /v1/models answers."""
    return orjson.dumps({"object": "list", "data": [card.json() for card in cards]})
