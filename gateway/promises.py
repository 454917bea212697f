"""From what a request says to what it is promised, what it may wait for, and what goes on to its engine with it.

Between slo, travel and the exchange: pure but for the plane that it asks for classes, time and the replica's engine.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway import refusals
from gateway.accounts import Account
from gateway.api import Refusal
from gateway.relay.splice import BodyFields, Piece
from gateway.replica import Replica
from gateway.signals import queue_limit_s
from gateway.slo import NEVER, Asked, SloError
from gateway.travel import Luggage, members, numbered, packed, queue_number, recallable, session

if TYPE_CHECKING:
    from gateway.auth import Client
    from gateway.placement import Placement
    from gateway.server import DataPlane
    from gateway.slo import ClassBook

UNPROVEN_S = 60.0  # what was learnt of an engine that has answered nobody for so long may be of another time


def enter(client: "Client | None", account: Account, now_s: float) -> bool:
    """Count the request on its key: True. Raises Refusal (429) when that has all that it may have."""
    assert client is not None
    if not client.enter():
        raise refusals.concurrency_limit()
    if client.rates is not None and (over := client.rates.admit(account.counted_tokens, now_s)) is not None:
        client.in_flight -= 1
        raise refusals.rate_limit(*over)
    return True


def due_s(account: Account, values: dict[bytes, bytes], timeout_s: float) -> float:
    """Until when the request may wait: the line's limit, its own, and its promise where that is strict."""
    return strict_due_s(account, account.accepted_s + queue_limit_s(values, timeout_s))


def strict_due_s(account: Account, limit_s: float) -> float:
    """That instant, or the end of a strict promise's budget if it comes first."""
    promise = account.promise
    return min(limit_s, account.deadline_s) if promise is not None and promise.strict else limit_s


def waited_too_long(account: Account, placement: "Placement | None", wait_s: float, now_s: float) -> Refusal:
    """The answer to one whose wait is over."""
    if placement is not None and placement.admit_now:
        return refusals.would_wait(wait_s)
    promise = account.promise
    if promise is not None and promise.strict and now_s >= account.deadline_s:
        return refusals.out_of_budget(wait_s)
    return refusals.queue_timeout(wait_s)


def in_vain(account: Account, replica: Replica, estimate_s: float) -> bool:
    """Whether a strict request that was sent there just now cannot be in time, as far as is known. A pace that was learnt long
    ago refuses all but one: an engine that is asked by nobody is never found to be faster again."""
    promise = account.promise
    if promise is None or not promise.strict or not account.dispatched_s + estimate_s > account.deadline_s:
        return False
    mirror, unheard_s = replica.mirror, account.dispatched_s - replica.answered_s
    if mirror is None or replica.in_flight > 1 or unheard_s < UNPROVEN_S:
        return True
    return account.dispatched_s + estimate_s / max(1.0, mirror.pace) > account.deadline_s


def refused(error: SloError) -> Refusal:
    """A header that cannot be meant."""
    return Refusal(400, "invalid_slo", str(error), param=error.header)


def promise(book: "ClassBook", client: "Client | None", said: Asked | None, account: Account, fields: BodyFields) -> None:
    """Set what the account is promised. Raises Refusal (400)."""
    assert client is not None
    if fields.agent_deadline_s < NEVER:
        said = said or Asked()
        if not said.targets:
            said = replace(said, e2e_s=fields.agent_deadline_s)
    try:
        made = book.promise(
            said, client.spec.class_name, account.model, account.route, priority=fields.priority, stream=fields.stream
        )
    except SloError as error:
        raise refused(error) from None
    if said is not None and not account.owner:
        account.tenant = said.tenant
    if made is not None and made.timed:
        account.promise = made
        account.deadline_s = account.arrived_s + min(made.ttft_s, made.e2e_s)


def outgoing(
    plane: "DataPlane",
    account: Account,
    replica: Replica,
    fields: BodyFields,
    pieces: tuple[Piece, ...],
    now_s: float,
    unix_ms: int,
) -> tuple[bytes, tuple[Piece, ...]]:
    """(header lines to add, the body to send) for this engine."""
    identity, scheduling, slo, lines = replica.identity, replica.scheduling, plane.config.slo, b""
    engine, has = identity.engine, fields.engine_members
    added = session(identity.body_session and bool(replica.spec.kv_events), account.route, has, account.request_id)
    if recallable(identity.recall, account.route, fields.n, has):
        account.engine_id = account.engine_id or plane.ids.new()
        added = {**added, identity.recall: account.engine_id}
    if account.promise is not None or scheduling:
        if slo.client_priority != "respect" or fields.priority is None:
            number = queue_number(slo, engine, scheduling, luggage(account, replica, now_s, unix_ms))
            lines, ordered, replaced = numbered(engine, account.route, number, fields.priority is not None)
            added, has = added | ordered, has | replaced
        if account.route in ("chat", "completions", "messages"):
            added |= members(slo, engine, scheduling, luggage(account, replica, now_s, unix_ms))
    has_body = any(pieces)  # a stored response is asked for without one
    return lines, packed(pieces, added, has) if added and has_body else pieces


def luggage(account: Account, replica: Replica, now_s: float, unix_ms: int) -> Luggage:
    """What is known of the request as it goes."""
    rate = replica.spec.restore_tokens_per_s
    prompt_tokens = account.asked_tokens
    return Luggage(
        arrival_unix_ms=unix_ms - int((now_s - account.arrived_s) * 1e3),
        now_unix_ms=unix_ms,
        promise=account.promise,
        left_s=account.deadline_s - now_s,
        tier=account.tier,
        service_s=max(0.0, account.work_s),
        out_tokens=account.expected_tokens,
        restore_s=max(0, prompt_tokens - account.hit_tokens) / rate if rate > 0 else 0.0,
    )
