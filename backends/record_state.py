"""From a published record to the predictor's Snapshot: the state at the end of the step in progress. Pure.

A record is written when a step has been composed, so the tokens that the step will produce are counted here. Engines
take KV blocks chunk by chunk; the predictor's books give a prompt all its blocks when it is admitted. What remains of
a difference between blocks held and blocks free is sharing of prefixes, which predictor.snapshot.settle attributes.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from backends.snapshot_record import Columns, Record, Work
from predictor.places import Bid, Queueing
from predictor.profile import EngineLimits
from predictor.queues import ORDERS
from predictor.sighting import Sighting, StepWork
from predictor.snapshot import Resident, Snapshot

# A request that passed its expected length goes on for so many tokens more: the repair of Astrolabe's predictor.
OVERDUE_TOKENS = 10
UNLISTED_MAX = 4096
# vLLM makes cmpl-ID-CHOICE-RANDOM and chatcmpl-ID-RANDOM of the X-Request-Id that the gateway sends.
_INNER_ID = re.compile(r"(?:chatcmpl-(.+)|cmpl-(.+)-\d+)-[0-9a-f]{8}")


@lru_cache(maxsize=8192)
def outer_id(request_id: str) -> str:
    """The id under which a gateway knows the engine's request."""
    found = _INNER_ID.fullmatch(request_id)
    return (found[1] or found[2]) if found else request_id


def sighting(number: int, record: Record) -> Sighting:
    """What a record shows. Raises ValueError when its limits are none of an engine's that could work."""
    limits = record.limits
    sizes = (limits.kv_blocks, limits.block_size, limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len)
    engine_limits = EngineLimits(*sizes, watermark_blocks=limits.watermark_blocks)
    running, places, free_blocks = _running(record, engine_limits)
    waiting = _waiting(record)
    began = len(waiting)
    while free_blocks < 0 and running and not running[-1].decoding:
        # Prompts begun that will not all fit: the newest can't be held to have its blocks, so it waits, as it will.
        free_blocks += engine_limits.blocks_for(running[-1].prompt_tokens + running[-1].generated_tokens)
        waiting = (replace(running[-1], computed_tokens=0), *waiting)
        running = running[:-1]
    snapshot = Snapshot(
        taken_s=record.taken_s,
        limits=engine_limits,
        running=running,
        waiting=waiting,
        free_blocks=min(max(0, free_blocks), engine_limits.kv_blocks),
        preemptions=record.preemptions,
    )
    return Sighting(
        number,
        record.engine,
        snapshot,
        _work(record.step),
        _work(record.past),
        record.past_s,
        caches_prefixes=limits.prefix_caching,
        queueing=_queueing(record, len(waiting) - began, dict(zip(places, running, strict=False))),
    )


def _queueing(record: Record, shifted: int, running: Mapping[int, Resident]) -> Queueing | None:
    """How the queue is ordered, when so many stand before those that the record lists; `running` by their places in the
    record. None: by arrival."""
    rule, bids, now = record.rule, record.bids, record.figures
    first = bids.first + shifted
    if rule.kind == "priority":
        return Queueing("priority", tuple([Bid(number=number) for number in bids.number]), first)
    if rule.kind != "leeway" or rule.order not in ORDERS or not (rule.age_s > 0 <= rule.alpha and 0 <= rule.rho <= 1):
        return None
    rows = zip(bids.arrival_ms, bids.deadline_ms, bids.cost_us, strict=True)
    return Queueing(
        "leeway",
        tuple(
            [
                Bid(arrival / 1e3, deadline / 1e3 if deadline else math.inf, max(0, cost) / 1e6)
                for arrival, deadline, cost in rows
            ]
        ),
        first,
        rule.order,
        rule.rho,
        rule.alpha,
        rule.age_s,
        max(0.0, now.step_s),
        max(0.0, now.token_s),
        max(0.0, now.reference_s),
        now.stretch if now.stretch > 0 else 1.0,
        now.debt,
        rule.makes_way,
        record.gammas,
        outer_id(now.gives),
        now.spare_s,
        tuple(_begun(record, running)),
    )


def _begun(record: Record, running: Mapping[int, Resident]) -> Iterator[tuple[int, Bid]]:
    """Prompts that are begun, with their place in the snapshot."""
    begun, now = record.begun, record.figures
    index = {place: at for at, place in enumerate(running)}
    for place, arrival, deadline, guard in zip(begun.at, begun.arrival_ms, begun.deadline_ms, begun.guard, strict=True):
        resident = running.get(place)
        if resident is not None and not resident.generated_tokens and guard > 0:
            mean_s = max(0.0, now.step_s) + (resident.prompt_tokens - resident.computed_tokens) * max(0.0, now.reference_s)
            yield index[place], Bid(arrival / 1e3, deadline / 1e3 if deadline else math.inf, guard * mean_s)


def _work(work: Work) -> StepWork:
    return StepWork(work.prefill_tokens, work.decode_seqs, work.kv_tokens, work.prefill_pairs)


def _ahead(expected: int, most: int, generated: int) -> int:
    """The total to expect of a request that has generated so much and goes on."""
    return expected if expected > generated else min(most, generated + OVERDUE_TOKENS)


def _running(record: Record, limits: EngineLimits) -> tuple[tuple[Resident, ...], list[int], int]:
    """Who still runs after the step, their places in the record, and the blocks that are free then: below 0 when prompts
    begun need more."""
    residents: list[Resident] = []
    places: list[int] = []
    free_blocks = record.free_blocks
    columns = record.running
    rows = zip(columns.ids, columns.prompt, columns.expected, columns.most, record.computed, columns.generated, strict=True)
    for place, (name, prompt, expected, most, computed, known) in enumerate(rows):
        whole = computed >= prompt + known
        # what a step computes beyond the known tokens are outputs on their way; the last of them yields one more
        generated = max(known, computed - prompt + 1) if whole else known
        if generated >= most:
            free_blocks += limits.blocks_for(computed)
            continue
        if not whole:
            free_blocks -= limits.blocks_for(prompt + known) - limits.blocks_for(computed)
        residents.append(Resident(outer_id(name), prompt, computed, generated, _ahead(expected, most, generated)))
        places.append(place)
    return tuple(residents), places, free_blocks


def _waiting(record: Record) -> tuple[Resident, ...]:
    columns = record.waiting
    listed = [
        Resident(outer_id(name), prompt, 0, generated, _ahead(expected, most, generated))
        for name, prompt, expected, most, generated in zip(
            columns.ids, columns.prompt, columns.expected, columns.most, columns.generated, strict=True
        )
    ]
    return (*listed, *_unlisted(record, columns))


def _unlisted(record: Record, columns: Columns) -> tuple[Resident, ...]:
    """Requests behind those listed, of which only number and prompt tokens are known: all alike, as long as the mean."""
    count = min(record.more_waiting, UNLISTED_MAX)
    if not count:
        return ()
    prompt = max(1, record.more_tokens // record.more_waiting)
    expected = max(1, sum(columns.expected) // max(1, len(columns.expected)))
    return tuple(Resident(f"+{index}", prompt, 0, 0, expected) for index in range(count))
