"""Where a request's time went, whether its promise was kept, and what is told of it. Pure.

The stages add up to the request's whole time. What lies between sending and the first byte is the engine's: computing
the prompt takes what was predicted for it, the rest of that time it waited there.
"""

from collections.abc import Iterator
from typing import NamedTuple

from gateway.accounts import Account
from gateway.slo import NEVER, Promise

STAGES = ("read", "tag", "swap", "queue_1", "queue_2", "probe", "retry", "connect", "engine_queue", "prefill", "decode")


class SoFar(NamedTuple):
    """What the account of a request under way does not say yet: the instant, how many stand before it in the line (below
    0: nobody knows), its tier, and of its wait so far the seconds in tier 2, for a length, and for a model."""

    now_s: float
    ahead: int = -1
    tier: int = 1
    second_s: float = 0.0
    tag_s: float = 0.0
    swap_s: float = 0.0


def stages(account: Account, so_far: SoFar | None = None) -> Iterator[tuple[str, float]]:
    """(stage, seconds) of each that the request came to, in order. `retry` is what attempts before the last one took."""
    end_s = account.finished_s if so_far is None else so_far.now_s
    read_s = account.accepted_s if account.accepted_s >= 0 else end_s
    yield "read", read_s - account.arrived_s
    if account.accepted_s < 0:
        return
    first_s = account.first_dispatched_s if account.first_dispatched_s >= 0 else account.dispatched_s
    waited_s = (first_s if first_s >= 0 else end_s) - account.accepted_s
    tag_s, second_s, probe_s, swap_s = account.tag_s, account.second_s, account.probe_s, account.swap_s
    if so_far is not None:
        tag_s, second_s, swap_s = max(tag_s, so_far.tag_s), max(second_s, so_far.second_s), max(swap_s, so_far.swap_s)
        probe_s += end_s if probe_s < 0 else 0.0  # they are being asked
    tag_s = min(tag_s, waited_s)
    second_s = min(second_s, waited_s - tag_s)
    probe_s = min(max(0.0, probe_s), waited_s - tag_s - second_s)
    swap_s = min(swap_s, waited_s - tag_s - second_s - probe_s)
    yield "tag", tag_s
    yield "swap", swap_s
    yield "queue_1", waited_s - tag_s - second_s - probe_s - swap_s
    yield "queue_2", second_s
    yield "probe", probe_s
    if first_s < 0:
        return
    yield "retry", account.dispatched_s - first_s
    sent_s = account.sent_s if account.sent_s >= account.dispatched_s else end_s
    yield "connect", sent_s - account.dispatched_s
    if account.sent_s < account.dispatched_s:
        return
    first_byte_s = account.first_byte_s if account.first_byte_s >= 0 else end_s
    engine_s = first_byte_s - sent_s
    prefill_s = min(engine_s, account.work_s) if account.work_s >= 0 else engine_s
    yield "engine_queue", engine_s - prefill_s
    yield "prefill", prefill_s
    yield "decode", end_s - first_byte_s


class Kept(NamedTuple):
    """Which targets were kept; one that was not promised, or that nobody can judge, counts as kept. `judged`: the answer
    was complete, or failed for reasons other than the client's."""

    ttft: bool
    tpot: bool
    e2e: bool
    judged: bool

    @property
    def good(self) -> bool:
        """Whether all of the promise was kept."""
        return self.ttft and self.tpot and self.e2e


def kept(account: Account) -> Kept:
    """The promise beside what happened. TTFT and TPOT are seen on streams only: a plain answer comes in one piece."""
    promise = account.promise
    if promise is None:
        return Kept(True, True, True, False)
    if account.end == "client_gone":
        late = account.finished_s - account.arrived_s > min(promise.e2e_s, promise.ttft_s if account.ttft_s < 0 else NEVER)
        return Kept(not late, True, True, late)  # who left in time was failed by nobody
    if account.end != "complete" or not 200 <= account.status < 300:
        failed = account.status >= 500 or account.status == 429 or account.end != "refused"
        return Kept(not failed, not failed, not failed, failed)
    ttft = not account.stream or account.ttft_s <= promise.ttft_s
    tokens = account.output_tokens if account.output_tokens >= 0 else account.events
    decode_s = account.finished_s - account.first_byte_s
    tpot = not account.stream or tokens < 2 or decode_s <= promise.tpot_s * (tokens - 1)
    return Kept(ttft, tpot, account.finished_s - account.arrived_s <= promise.e2e_s, True)


def budget_left_s(account: Account, now_s: float) -> float:
    """Until the instant by which the first token was promised; negative when that has passed, infinite without one."""
    return account.deadline_s - now_s


def told(account: Account) -> dict[str, object]:
    """What GET /v1/requests/ID answers of a finished request. Milliseconds; null where there is nothing to tell."""
    record = _record(account, "finished", None)
    record["status"], record["end"], record["reason"] = account.status, account.end, account.reason or None
    promise = account.promise
    if promise is not None:
        judged = kept(account)
        first_s = account.first_byte_s if account.first_byte_s >= 0 else account.finished_s
        record["slo"] = _promised(account, promise, first_s, account.tier, judged.good if judged.judged else None)
    return record


def told_so_far(account: Account, state: str, so_far: SoFar, start_s: float | None) -> dict[str, object]:
    """The same of one under way, with how many stand before it and in how long it is expected to start (None: nobody knows)."""
    record = _record(account, state, so_far)
    record["ahead"] = so_far.ahead if so_far.ahead >= 0 else None
    record["expected_start_ms"] = _ms(start_s) if start_s is not None else None
    promise = account.promise
    if promise is not None:
        tier = account.tier if account.dispatched_s >= 0 else so_far.tier
        first_s = account.first_byte_s if account.first_byte_s >= 0 else so_far.now_s
        record["slo"] = _promised(account, promise, first_s, tier, None)
    return record


def _record(account: Account, state: str, so_far: SoFar | None) -> dict[str, object]:
    end_s = account.finished_s if so_far is None else so_far.now_s
    return {
        "id": account.request_id,
        "object": "leeway.request",
        "state": state,
        "route": account.route,
        "model": account.model,
        "backend": account.backend or None,
        "status": None,
        "end": None,
        "reason": None,
        "attempts": account.attempts,
        "prompt_tokens": account.prompt_tokens if account.prompt_tokens >= 0 else None,
        "output_tokens": account.output_tokens if account.output_tokens >= 0 else None,
        "ttft_ms": _ms(account.ttft_s) if account.ttft_s >= 0 else None,
        "predicted_ttft_ms": _ms(predicted_ttft_s(account)) if account.predicted_s >= 0 else None,
        "duration_ms": _ms(end_s - account.arrived_s),
        "spent_ms": {name: _ms(value_s) for name, value_s in stages(account, so_far)},
        "slo": None,
    }


def _promised(account: Account, promise: Promise, first_s: float, tier: int, good: bool | None) -> dict[str, object]:
    """`first_s`: when the first token came, or now."""
    return {
        "class": promise.class_name,
        "ttft_ms": _ms(promise.ttft_s),
        "tpot_ms": _ms(promise.tpot_s),
        "e2e_ms": _ms(promise.e2e_s),
        "deadline_ms": _ms(account.deadline_s - account.arrived_s),
        "budget_left_ms": _ms(budget_left_s(account, first_s)),
        "tier": tier,
        "kept": good,
    }


def predicted_ttft_s(account: Account) -> float:
    """From arrival to the first token, as it was predicted when the request was sent."""
    return account.dispatched_s - account.arrived_s + account.predicted_s


def _ms(value_s: float) -> float | None:
    return None if abs(value_s) == NEVER else round(value_s * 1e3, 2)
