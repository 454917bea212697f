"""Engines that order their queues, as the gateway's own picture has them: by the promises of those that it sent there. Pure.

Which prompt is computed before which (`rank`, the smaller first): with our scheduler (`leeway`, in its default order) by
deadline, behind them the late ones and those without a promise by what is left of them, begun or not; elsewhere (`priority`)
those that are begun first, then by the number that was sent. Of those who run at our scheduler it tells whose prompts are
begun, and whose budget leaves most beyond its own redo, as the engine would say it in its record (backends.queue_record);
who gave way before is known to the engine alone. Instants are of the gateway's clock.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from predictor.budget import GAMMA_UNKNOWN, SloTarget, decode_budget_s
from predictor.places import Bid, Queueing, latest_start_ms
from predictor.seats import Seat
from predictor.snapshot import Snapshot

SPARE_MOST_S = 3600.0
BY_ARRIVAL = ("", "fcfs")
Rank = tuple[int, float]
Work = Callable[[int, int], float]  # seconds of a prompt alone, so much of it cached


def rank(scheduling: str, tier: int, arrival_s: float, deadline_s: float, left: int, alone_s: float, now_s: float) -> Rank:
    """The place of a prompt that is not begun, with so many tokens left, `alone_s` seconds of work."""
    if scheduling != "leeway":
        return 1, float(latest_start_ms(arrival_s, deadline_s, alone_s, tier))
    if tier == 1 and now_s < deadline_s < math.inf:
        return 1, deadline_s
    return 2, float(left)


def seat_rank(scheduling: str, seat: Seat, work_s: Work, now_s: float) -> Rank:
    """The place of one that was sent there."""
    if scheduling != "leeway" and seat.starts_s <= now_s:
        return 0, 0.0
    left, alone_s = seat.prompt_tokens - seat.computed, work_s(seat.prompt_tokens, seat.hit_tokens)
    return rank(scheduling, seat.tier, seat.arrival_s, seat.deadline_s, left, alone_s, now_s)


def joins(filling: list[Seat], seat: Seat, scheduling: str, work_s: Work, now_s: float) -> tuple[int, float]:
    """Put one that is sent where its prompt will be computed among those without a first token. Gives the prompt tokens, and
    the pairs of them, that stand behind it; their first tokens are due so much later."""
    at, tokens, pairs = len(filling), 0, 0.0
    if at and scheduling not in BY_ARRIVAL:
        mine, own_s = seat_rank(scheduling, seat, work_s, now_s), work_s(seat.prompt_tokens, seat.computed)
        while at and seat_rank(scheduling, filling[at - 1], work_s, now_s) > mine:
            at -= 1
            other = filling[at]
            other.due_s += own_s
            left = other.prompt_tokens - other.computed
            tokens += left
            pairs += left * (other.computed + 0.5 * left)
    filling.insert(at, seat)
    return tokens, pairs


def standing(filling: Sequence[Seat], scheduling: str, work_s: Work, now_s: float) -> list[tuple[Rank, int, float]]:
    """(place, tokens left, pairs of them) of prompts that are not computed yet; nobody where arrivals count."""
    if scheduling in BY_ARRIVAL:
        return []
    found = []
    for seat in filling:
        left = seat.prompt_tokens - seat.computed
        if left > 0:
            found.append((seat_rank(scheduling, seat, work_s, now_s), left, left * (seat.computed + 0.5 * left)))
    return found


def before(queue: Sequence[tuple[Rank, int, float]], mine: Rank, pending_tokens: int) -> tuple[int, float]:
    """Prompt tokens, and pairs of them, that are computed before one of that place. `pending_tokens` are all those of the
    queue beyond the step in progress."""
    tokens = total = 0
    pairs = 0.0
    for theirs, left, part in queue:
        total += left
        if theirs <= mine:
            tokens += left
            pairs += part
    if not tokens:
        return max(0, pending_tokens - total), 0.0
    left = max(0, tokens - max(0, total - pending_tokens))
    return left + max(0, pending_tokens - total), pairs * left / tokens


def queueing(seats: Mapping[str, Seat], snapshot: Snapshot, step_s: float, token_s: float, now_s: float) -> Queueing:
    """How its queue is ordered. `step_s` is a step that only decodes, `token_s` a prompt token's time."""
    running = [seats[who.id] for who in snapshot.running]
    begun = []
    for at, seat in enumerate(running):
        left = seat.prompt_tokens - seat.computed
        if seat.first_s < 0 < left:
            begun.append((at, Bid(seat.arrival_s, seat.deadline_s, GAMMA_UNKNOWN * (step_s + left * token_s))))
    gives, spare_s = "", 0.0
    if len(running) >= snapshot.limits.max_num_seqs:
        gives, spare_s = giver(running, step_s, token_s, now_s)
    return Queueing("leeway", step_s=step_s, token_s=token_s, gives=gives, spare_s=spare_s, begun=tuple(begun))


def giver(running: Iterable[Seat], step_s: float, token_s: float, now_s: float) -> tuple[str, float]:
    """Whose budget leaves most beyond its own redo, and how much; of equals who has computed least. "": nobody's."""
    best, most = "", (0.0, 0)
    for seat in running:
        computed = seat.computed + seat.generated()
        spare_s = _budget_s(seat, step_s, token_s, now_s) - (step_s + computed * token_s)
        if (spare_s, -computed) > most:
            best, most = seat.id, (spare_s, -computed)
    return best, min(most[0], SPARE_MOST_S)


def _budget_s(seat: Seat, step_s: float, token_s: float, now_s: float) -> float:
    """By how long it may be held up."""
    if seat.first_s >= 0:
        target = SloTarget(tpot_s=seat.tpot_s)
        return decode_budget_s(target, seat.arrival_s, seat.first_s, now_s, seat.generated(), seat.rest.median, step_s)
    left = max(0, seat.prompt_tokens - seat.computed)
    return seat.deadline_s - now_s - GAMMA_UNKNOWN * (step_s + left * token_s)
