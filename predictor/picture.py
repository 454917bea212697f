"""A mirror's picture of an engine: as a snapshot that a what-if can start from, or only its counts. Pure.

Of an answer under way it expects the median on condition that it got so far (rest), not the paper's ten tokens more.
"""

from collections.abc import Iterable

from predictor.profile import EngineLimits
from predictor.request import Estimate
from predictor.seats import Seat
from predictor.snapshot import ProbeReply, Resident, Snapshot


def picture(seats: Iterable[Seat], limits: EngineLimits, now_s: float, lag_s: float) -> Snapshot:
    """Running in the order of dispatch, up to the engine's limit of sequences, the rest waiting; the step in progress
    ends in `lag_s`."""
    running: list[Resident] = []
    waiting: list[Resident] = []
    held = 0
    for seat in seats:
        resident = _resident(seat)
        begun = seat.first_s >= 0 or seat.starts_s <= now_s
        if begun and not waiting and len(running) < limits.max_num_seqs:
            running.append(resident)
            held += limits.blocks_for(resident.prompt_tokens + resident.generated_tokens)
        else:
            waiting.append(resident)
    free = max(0, limits.kv_blocks - held)
    return Snapshot(now_s, limits, tuple(running), tuple(waiting), free, 0, lag_s)


def counted(seats: Iterable[Seat], limits: EngineLimits, now_s: float) -> ProbeReply:
    """What a reply made from `picture` says beside its estimate, without the records in between."""
    running = waiting = held = waiting_blocks = queued = 0
    for seat in seats:
        decodes = seat.first_s >= 0
        generated = max(1, seat.generated()) if decodes else 0
        blocks = limits.blocks_for(seat.prompt_tokens + generated)
        if (decodes or seat.starts_s <= now_s) and not waiting and running < limits.max_num_seqs:
            running += 1
            held += blocks
        else:
            waiting += 1
            waiting_blocks += blocks
        computed = seat.prompt_tokens + generated - 1 if decodes else min(seat.computed, seat.prompt_tokens - 1)
        queued += max(0, seat.prompt_tokens + generated - computed) + seat.rest.tokens(generated)
    return ProbeReply(Estimate.unknown, running, waiting, max(0, limits.kv_blocks - held), waiting_blocks, queued, 0.0)


def _resident(seat: Seat) -> Resident:
    if seat.first_s < 0:
        return Resident(seat.id, seat.prompt_tokens, min(seat.computed, seat.prompt_tokens - 1), 0, seat.rest.median)
    generated = max(1, seat.generated())
    total = generated + seat.rest.tokens(generated)
    return Resident(seat.id, seat.prompt_tokens, seat.prompt_tokens + generated - 1, generated, total)
