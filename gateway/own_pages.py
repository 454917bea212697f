"""What the gateway answers itself on the data plane: health, the models that it knows, the root. Pure."""

from collections.abc import Mapping

import orjson

from gateway.api import LocalRoute, ModelCard, Refusal, models_body
from gateway.fleet import Fleet

Answered = tuple[int, list[tuple[bytes, bytes]], bytes]
_JSON = [(b"content-type", b"application/json")]


def answer(local: LocalRoute, fleet: Fleet, aliases: Mapping[str, str], draining: bool, mark: bytes) -> Answered:
    """(status, headers, body) of such a route. `aliases` to models' own names; `mark` is this process's (hops)."""
    if local.what == "options":
        return 204, [(b"allow", b"GET, HEAD, POST, DELETE, OPTIONS")], b""
    if local.what == "models":
        return 200, _JSON, models_body(_cards(fleet, aliases))
    if local.what == "model":
        return _model(local.argument, fleet, aliases)
    if local.what == "readyz" and (draining or not any(r.state == "ready" or r.moves for r in fleet)):
        return 503, [*_JSON, (b"retry-after", b"1")], b'{"status":"not ready"}'
    if local.what == "root":
        return 200, _JSON, b'{"service":"leeway","api":"/v1","instance":"%b"}' % mark
    return 200, _JSON, b'{"status":"ok"}'


def request_answer(name: str, record: dict[str, object] | None) -> Answered:
    """Of GET /v1/requests/ID: what is known of a request of that key, under way or finished."""
    if record is None:
        refusal = Refusal(404, "request_not_found", f"No request {name[:100]!r} of this key is known here.")
        return refusal.status, refusal.headers, refusal.body("other")
    return 200, _JSON, orjson.dumps(record)


def resolve(fleet: Fleet, aliases: Mapping[str, str], name: str) -> str | None:
    """A requested name to the name that backends serve; None when nobody does. "" means the only model there is.

    A backend that has not said yet what it serves may serve anything: such a request waits for its word.
    """
    if name and (fleet.routable(name) or fleet.knows(name)):
        return name
    target = aliases.get(name)
    if target is not None and (fleet.knows(target) or fleet.hopeful(target)):
        return target
    if not name:
        known = fleet.models()
        return known[0] if len(known) == 1 else None
    return name if fleet.hopeful(name) else None


def known_models(fleet: Fleet, aliases: Mapping[str, str]) -> tuple[str, ...]:
    """Served models and their aliases."""
    served = fleet.models()
    return tuple(sorted({*served, *(alias for alias, target in aliases.items() if target in served)}))


def _cards(fleet: Fleet, aliases: Mapping[str, str]) -> list[ModelCard]:
    served = fleet.models()
    lengths: dict[str, int] = {}
    for replica in fleet:
        for model in replica.models:
            length = replica.identity.max_model_len
            if length:
                lengths[model] = max(length, lengths.get(model, 0))
    cards = [ModelCard(model, lengths.get(model, 0)) for model in served]
    cards += [ModelCard(a, lengths.get(t, 0), t) for a, t in sorted(aliases.items()) if t in served]
    return cards


def _model(name: str, fleet: Fleet, aliases: Mapping[str, str]) -> Answered:
    for card in _cards(fleet, aliases):
        if card.id == name:
            return 200, _JSON, models_body([card])[len(b'{"object":"list","data":[') : -2]
    known = ", ".join(known_models(fleet, aliases)[:20])
    refusal = Refusal(
        404, "model_not_found", f"The model {name[:200]!r} does not exist here. Known models: {known}.", param="model"
    )
    return 404, refusal.headers, refusal.body("openai")
