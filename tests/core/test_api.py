"""Routes by method and raw path, and refusals in the shape that each SDK raises from."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import LOCAL, ROUTES, LocalRoute, ModelCard, Refusal, Route, models_body, route, unknown_model
from gateway.relay.requests import RequestHead

GENERATE = (b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages", b"/v1/messages/count_tokens")
POOLING = (b"/v1/embeddings", b"/v1/rerank", b"/v2/rerank", b"/rerank", b"/v1/score", b"/score", b"/v1/classify", b"/pooling")


def routed(method: bytes, path: bytes) -> Route | LocalRoute:
    return route(RequestHead(method, path, [], "1.1", keep_alive=True))


def refused(method: bytes, path: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        routed(method, path)
    return caught.value


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        (b"POST", b"/v1/chat/completions", Route("openai", "chat", True, kind="generate")),
        (b"POST", b"/v1/chat/completions?a=b", Route("openai", "chat", True, kind="generate")),
        (b"POST", b"/v1/completions", Route("openai", "completions", True, kind="generate")),
        (b"POST", b"/v1/responses", Route("responses", "responses", kind="generate")),
        (b"POST", b"/v1/messages", Route("anthropic", "messages", kind="generate")),
        (b"POST", b"/v1/embeddings", Route("other", "embeddings", kind="pooling")),
        (b"POST", b"/v1/audio/transcriptions", Route("other", "audio")),
        (b"POST", b"/tokenize", Route("other", "tokenize")),
        (b"POST", b"/v1/new/thing", Route()),
        (b"GET", b"/v1/responses/resp_1", Route("responses", "responses", response_id="resp_1", kind="generate")),
        (b"DELETE", b"/v1/responses/resp_1", Route("responses", "responses", response_id="resp_1", kind="generate")),
        (b"POST", b"/v1/responses/resp_1/cancel", Route("responses", "responses", response_id="resp_1", kind="generate")),
        (b"GET", b"/v1/responses/resp_1/input_items", Route("responses", "responses", response_id="resp_1", kind="generate")),
        (b"GET", b"/", LocalRoute("root")),
        (b"HEAD", b"/health", LocalRoute("health")),
        (b"GET", b"/healthz", LocalRoute("health")),
        (b"GET", b"/livez", LocalRoute("livez")),
        (b"GET", b"/readyz", LocalRoute("readyz")),
        (b"GET", b"/ping", LocalRoute("health")),
        (b"POST", b"/ping", LocalRoute("health")),
        (b"GET", b"/v1/models", LocalRoute("models")),
        (b"GET", b"/v1/models/gpt", LocalRoute("model", "gpt")),
        (b"GET", b"/v1/models/org/name:tag", LocalRoute("model", "org/name:tag")),
        (b"GET", b"/v1/models/org%2Fname%3Atag", LocalRoute("model", "org/name:tag")),
        (b"GET", b"/v1/models/%ff", LocalRoute("model", "\ufffd")),
        (b"OPTIONS", b"/v1/chat/completions", LocalRoute("options")),
        (b"OPTIONS", b"*", LocalRoute("options")),
        (b"OPTIONS", b"/anything", LocalRoute("options")),
    ],
)
def test_routes(method: bytes, path: bytes, found: Route | LocalRoute) -> None:
    assert routed(method, path) == found


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_every_proxied_route_is_for_post_only_and_knows_its_kind(path: bytes) -> None:
    found = routed(b"POST", path)
    assert isinstance(found, Route)
    assert found.kind == ("generate" if path in GENERATE else "pooling" if path in POOLING else found.kind)
    assert found.asks_usage == (path in {b"/v1/chat/completions", b"/v1/completions"})
    for method in (b"GET", b"HEAD", b"PUT", b"DELETE", b"PATCH"):
        refusal = refused(method, path)
        assert (refusal.status, refusal.message) == (405, f"Use POST for {path.decode()}.")


@pytest.mark.parametrize("path", sorted(LOCAL))
def test_every_local_route_is_for_get(path: bytes) -> None:
    for method in (b"PUT", b"DELETE", *((b"POST",) if path != b"/ping" else ())):
        assert (refused(method, path).status, routed(b"HEAD", path)) == (405, LOCAL[path])


@pytest.mark.parametrize(
    ("method", "path", "hint"),
    [
        (b"POST", b"/chat/completions", "Did you mean /v1/chat/completions? A client's base URL ends in /v1."),
        (b"GET", b"/models", "Did you mean /v1/models? A client's base URL ends in /v1."),
        (b"POST", b"/embeddings", "Did you mean /v1/embeddings?"),
        (b"GET", b"/v1/v1/models", "Did you mean /v1/models? The client adds /v1 itself."),
        (b"GET", b"/v1/chat/completion", "Did you mean /v1/chat/completions?"),
        (b"GET", b"/health/", "Did you mean /health?"),
        (b"POST", b"/api/generate", "The API is under /v1, for example POST /v1/chat/completions."),
        (b"GET", b"/favicon.ico", "The API is under /v1"),
        (b"GET", b"/" + b"a" * 8000, "The API is under /v1"),
        (b"POST", b"//v1/chat/completions", "Did you mean /v1/chat/completions?"),
        (b"POST", b"/v1/chat/completions/", "Did you mean /v1/chat/completions?"),
        (b"POST", b"/v1/load_lora_adapter", ""),
        (b"POST", b"/v1/unload_lora_adapter", ""),
        (b"POST", b"/v1//chat/completions", "Did you mean /v1/chat/completions?"),
        (b"POST", b"/v1/../admin", "The API is under /v1"),
        (b"POST", b"/v1/./chat/completions", ""),
        (b"POST", b"/v1/%2e%2e/admin", ""),
        (b"POST", b"/v1/chat%2fcompletions", ""),
        (b"POST", b"/v1/chat/completions%00", ""),
        (b"POST", b"/V1/chat/completions", ""),
        (b"POST", b"/admin/backends", ""),
        (b"GET", b"/metrics", ""),
        (b"GET", b"*", ""),
        (b"GET", b"/v1/unknown", ""),
        (b"GET", b"/v1/models/", ""),
        (b"GET", b"/v1/responses/", ""),
        (b"POST", b"/v1/responses/resp_1", ""),
        (b"PUT", b"/v1/responses/resp_1", ""),
        (b"GET", b"/v1/responses/resp_1/cancel", ""),
        (b"POST", b"/v1/responses/resp_1/input_items", ""),
        (b"GET", b"/v1/responses/resp_1/other", ""),
        (b"GET", b"/v1/responses//cancel", ""),
    ],
)
def test_no_route_with_a_hint(method: bytes, path: bytes, hint: str) -> None:
    refusal = refused(method, path)
    assert (refusal.status, refusal.code) == (404, "unknown_route")
    assert refusal.message.startswith(f"No route {method.decode()} {path.decode()}.")
    assert hint in refusal.message


path_text = st.text([chr(c) for c in range(0x21, 0x7F) if chr(c) not in "#?"], max_size=30)


@given(
    st.sampled_from((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS")),
    path_text,
    st.sampled_from(("", "v1/", "v1/responses/")),
)
def test_any_path_is_routed_or_refused(method: bytes, tail: str, start: str) -> None:
    path = f"/{start}{tail}".encode()
    found: Route | LocalRoute | Refusal
    try:
        found = routed(method, path)
    except Refusal as refusal:
        found = refusal
    if isinstance(found, Refusal):
        assert found.status in {404, 405}
        assert json.loads(found.body("openai"))
    else:
        assert isinstance(found, LocalRoute) or path in ROUTES or path.startswith(b"/v1/")


# -- refusals


@pytest.mark.parametrize(
    ("status", "openai", "anthropic"),
    [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "authentication_error", "authentication_error"),
        (403, "invalid_request_error", "permission_error"),
        (404, "not_found_error", "not_found_error"),
        (405, "invalid_request_error", "api_error"),
        (408, "invalid_request_error", "api_error"),
        (413, "invalid_request_error", "request_too_large"),
        (429, "rate_limit_error", "rate_limit_error"),
        (502, "server_error", "api_error"),
        (503, "server_error", "overloaded_error"),
        (504, "server_error", "api_error"),
    ],
)
def test_each_status_has_the_shape_of_its_face(status: int, openai: str, anthropic: str) -> None:
    refusal = Refusal(status, "some_code", 'a "message"', param="model")
    said = {"error": {"message": 'a "message"', "type": openai, "param": "model", "code": "some_code"}}
    for face in ("openai", "responses", "other"):
        assert json.loads(refusal.body(face)) == said
    assert json.loads(refusal.body("anthropic")) == {"type": "error", "error": {"type": anthropic, "message": 'a "message"'}}


@pytest.mark.parametrize(
    ("refusal", "headers"),
    [
        (Refusal(400, "c", "m"), []),
        (Refusal(429, "c", "m", retry_after_s=7), [(b"retry-after", b"7")]),
        (Refusal(502, "c", "m", may_have_run=True), [(b"x-should-retry", b"false")]),
        (Refusal(503, "c", "m", retry_after_s=1, may_have_run=True), [(b"retry-after", b"1"), (b"x-should-retry", b"false")]),
        (Refusal(401, "c", "m"), [(b"www-authenticate", b"Bearer")]),
    ],
)
def test_headers_say_when_and_whether_to_come_back(refusal: Refusal, headers: list[tuple[bytes, bytes]]) -> None:
    assert refusal.headers == [(b"content-type", b"application/json"), *headers]


def test_an_unknown_model_is_told_what_there_is() -> None:
    refusal = unknown_model("gpt-9", ("a", "b"))
    assert (refusal.status, refusal.code, refusal.param) == (404, "model_not_found", "model")
    assert refusal.message == "The model 'gpt-9' does not exist here. Known models: a, b."
    assert unknown_model("x", ()).message.endswith("Known models: none yet.")
    missing = unknown_model("", ("a",))
    assert (missing.status, missing.code) == (400, "model_missing")
    assert missing.message == "The request names no model. Known models: a."


def test_an_unknown_model_s_message_is_bounded() -> None:
    refusal = unknown_model("x" * 5000, tuple(f"m{number}" for number in range(50)))
    assert refusal.message.endswith("m19 and 30 more.")
    assert len(refusal.message) < 500


def test_model_cards() -> None:
    body = json.loads(models_body([ModelCard("org/name:tag"), ModelCard("alias", 4096, "real")]))
    plain = {"id": "org/name:tag", "object": "model", "created": 0, "owned_by": "leeway"}
    assert body == {"object": "list", "data": [plain, {**plain, "id": "alias", "root": "real", "max_model_len": 4096}]}
    assert json.loads(models_body([])) == {"object": "list", "data": []}
