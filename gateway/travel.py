"""What of a request's budget goes on to its engine: a number for its queue, facts for our scheduler, a veto on slow KV. Pure.

Each goes only where it is understood, or where the configuration insists. `vllm_xargs` are put into the body by splicing;
a client's own are merged with. A request without a promise gets, at an engine that orders by priority, the latest start
of one with UNPROMISED_S of leeway: with none it would run before all others. `kv_load_tiers` empty forbids loading KV
from tiers below the host's memory; that is said when the load would take longer than what is left, or than computing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from backends.priorities import ORDERED, priority_line, priority_members, priority_number
from gateway.config import Slo, Travels
from gateway.relay.splice import BodyError, Edit, Piece, edited, member_edit, scan
from gateway.slo import NEVER, Promise
from predictor.places import UNPROMISED_S

BODY_ROUTES = frozenset(("chat", "completions", "responses"))  # whose bodies have SGLang's own members
RECALLED_ROUTES = frozenset(("chat", "completions"))
_NONE: frozenset[str] = frozenset()
SESSION_MEMBERS = frozenset(("session_id", "session_params"))
MERGED_BYTES_MAX = 262_144  # a body whose own vllm_xargs have to be found is scanned at once: only up to this


@dataclass(frozen=True, slots=True)
class Luggage:
    """What is known of a request when it goes. Instants in unix milliseconds; `service_s` is the guarded time to its
    first token alone, `left_s` what is left of its budget, `restore_s` how long a load of its KV from a deep tier takes
    (0: not known)."""

    arrival_unix_ms: int
    now_unix_ms: int
    promise: Promise | None
    left_s: float
    tier: int
    service_s: float
    out_tokens: int
    restore_s: float = 0.0


def wanted(rule: Travels, scheduling: str, understood: tuple[str, ...]) -> bool:
    """Whether an engine that orders its queue so is to be told."""
    return rule == "always" or (rule == "auto" and scheduling in understood)


def queue_number(slo: Slo, engine: str, scheduling: str, luggage: Luggage) -> int | None:
    """The request's number in the engine's queue; None where that has no use for one."""
    if not wanted(slo.engine_priority, scheduling, ORDERED):
        return None
    left_s = luggage.left_s
    if left_s == NEVER:
        left_s = UNPROMISED_S - (luggage.now_unix_ms - luggage.arrival_unix_ms) / 1e3
    start_unix_ms = luggage.now_unix_ms + int((left_s - luggage.service_s) * 1e3)
    return priority_number(engine, scheduling, start_unix_ms, luggage.tier)


def numbered(
    engine: str, route: str, number: int | None, client_has_one: bool
) -> tuple[bytes, dict[str, object], frozenset[str]]:
    """How that is said: (header lines, members of the body, which of these replace the client's own)."""
    if number is None:
        return b"", {}, _NONE
    members = priority_members(engine, number) if route in BODY_ROUTES else {}
    return priority_line(engine, number), members, frozenset(members) if client_has_one else _NONE


def members(slo: Slo, engine: str, scheduling: str, luggage: Luggage) -> dict[str, dict[str, object]]:
    """Members of the body for the engine; empty where it has no use for them."""
    found: dict[str, dict[str, object]] = {}
    if engine != "vllm":
        return found
    if wanted(slo.engine_budget, scheduling, ("leeway",)):
        found["vllm_xargs"] = xargs(luggage)
    if luggage.promise is not None and luggage.restore_s > min(luggage.left_s, luggage.service_s) > -NEVER:
        found["kv_transfer_params"] = {"kv_load_tiers": []}
    return found


def xargs(luggage: Luggage) -> dict[str, object]:
    """Facts for our scheduler class; the budget is derived there, not sent."""
    promise = luggage.promise
    facts: dict[str, object] = {
        "leeway_v": 1,
        "leeway_class": promise.class_name if promise is not None else "default",
        "leeway_arrival_unix_ms": luggage.arrival_unix_ms,
        "leeway_estimate_ms": round(luggage.service_s * 1e3, 1),
        "leeway_out_tokens": luggage.out_tokens,
    }
    if promise is not None:
        if promise.ttft_s < NEVER:
            facts["leeway_ttft_ms"] = round(promise.ttft_s * 1e3, 1)
        if promise.tpot_s < NEVER:
            facts["leeway_tpot_ms"] = round(promise.tpot_s * 1e3, 1)
        if luggage.left_s < NEVER:
            facts["leeway_deadline_unix_ms"] = luggage.now_unix_ms + int(luggage.left_s * 1e3)
    return facts


def session(engine_names: bool, route: str, client_has: frozenset[str], request_id: str) -> dict[str, object]:
    """The member by which an engine that names sessions of bodies with its KV events tells this request's: its id, where the
    client has no session of its own."""
    if not engine_names or route not in BODY_ROUTES or not client_has.isdisjoint(SESSION_MEMBERS):
        return {}
    return {"session_id": request_id}


def recallable(member: str, route: str, answers: int, client_has: frozenset[str]) -> bool:
    """Whether an engine that reads a request's id in that member of its body (Identity.recall) is to be given one: of several
    answers it makes ids of its own, and a client's own id stays."""
    return member != "" and route in RECALLED_ROUTES and answers == 1 and member not in client_has


def packed(pieces: tuple[Piece, ...], added: Mapping[str, object], client_has: frozenset[str]) -> tuple[Piece, ...]:
    """The body with these members. One that the client has as well is merged if it has entries (its own win), else replaced, if
    the body is not too large to look for it; else it goes without ours."""
    clashing = {name: value for name, value in added.items() if name in client_has}
    new = {name: value for name, value in added.items() if name not in client_has}
    if clashing and sum(len(piece) for piece in pieces) <= MERGED_BYTES_MAX:
        pieces = (_merged(b"".join(pieces), clashing),)
    if new:
        first = bytes(pieces[0])
        text = orjson.dumps(new)[1:-1]
        pieces = (*edited(first, [member_edit(first, text)]), *pieces[1:])
    return pieces


def _merged(body: bytes, added: dict[str, object]) -> bytes:
    try:
        spans = scan(body, 1024).spans
    except BodyError:
        return body
    edits: list[Edit] = []
    for name, value in added.items():
        span = spans.get(name)
        if span is None:
            continue
        if isinstance(value, dict):
            own = orjson.loads(body[span[0] : span[1]])
            if own is not None and not isinstance(own, dict):
                continue
            value = {**value, **(own or {})}
        edits.append((*span, orjson.dumps(value)))
    return b"".join(edited(body, edits)) if edits else body
