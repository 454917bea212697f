"""Case 14.3: a class with tight promises at 110 % of capacity for a minute, and one a second of a class without any.

The real gateway before a simulated engine, in virtual time. Tier 2 gets its reserved share and no more, nobody waits
longer than the stated limit, and within a class the order is kept. (14.4, the jumping wall clock: tests/tools/test_clock.py.)
"""

import asyncio
from dataclasses import dataclass, replace
from random import Random

import looptime

from backends.mock import MockConfig
from gateway.config import ClassSpec, ModelSpec, Queue
from gateway.spending import stages
from predictor.profile import EngineLimits, StepProfile
from tests.wire.kit import CONFIG, Rig, chat, run, virtual_pause

SECONDS = 60.0
PROMPT_TOKENS = 500
PER_TOKEN_S = 2e-4  # 0.1 s a prompt: ten a second are the engine's capacity
TIGHT_PER_S, LOOSE_PER_S = 11.0, 1.0
RHO, AGE_S = 0.10, 45.0
ENGINE = MockConfig(
    models=("m",),
    profile=StepProfile(base_s=0.002, prefill_token_s=PER_TOKEN_S, decode_seq_s=1e-6, kv_token_s=0.0),
    limits=EngineLimits(kv_blocks=65536, block_size=16, max_num_seqs=64, max_num_batched_tokens=512, max_model_len=32768),
    output_tokens=lambda _: 1,
)
RULE = ModelSpec("m", "plan", order="mh", rho=RHO, age_s=AGE_S, ahead_tokens=0)
SETTINGS = replace(
    CONFIG, models=(RULE,), classes=(ClassSpec("tight", ttft_ms=1000), ClassSpec("loose")), queue=Queue(timeout_s=300.0)
)


@dataclass
class Went:
    """One request: when it came, when it went to the engine, from which tier; `moved`: it was in the other one, too."""

    name: str
    came_s: float
    sent_s: float
    tier: int
    good: bool
    moved: bool


async def one(rig: Rig, name: str, number: int, at_s: float, start_s: float) -> Went:
    await virtual_pause(max(0.0, start_s + at_s - asyncio.get_running_loop().time()))
    came_s = asyncio.get_running_loop().time()
    request_id = f"{name}-{number}"
    text = f"{number} {name} ".ljust(PROMPT_TOKENS * 4 - 60, "x")
    answer = await rig.ask(chat(text, stream=True), headers={"x-slo-class": name, "x-request-id": request_id})
    assert answer.status == 200
    rig.app.plane.books.write()
    (account,) = [kept for kept in rig.app.plane.books._records._kept.values() if kept.request_id == request_id]
    spent = dict(stages(account))
    waited_s = spent["queue_1"] + spent["queue_2"]
    good = account.ttft_s <= 1.0
    tier = account.tier if account.promise else 2
    moved = account.promise is not None and min(spent["queue_1"], spent["queue_2"]) > 1e-6
    return Went(name, came_s, account.accepted_s + waited_s, tier, good, moved)


def minute() -> tuple[list[Went], list[int]]:
    """All requests, and the prompt tokens sent of each tier while both had somebody."""
    went: list[Went] = []
    shared: list[int] = []

    async def case(rig: Rig) -> None:
        rng, asked, at_s = Random(3), [], 0.0
        start_s = asyncio.get_running_loop().time() + 0.1
        while at_s < SECONDS:
            asked.append(("tight", at_s))
            at_s += rng.expovariate(TIGHT_PER_S)
        asked += [("loose", second / LOOSE_PER_S) for second in range(int(SECONDS * LOOSE_PER_S))]
        made = [one(rig, name, number, at_s, start_s) for number, (name, at_s) in enumerate(asked)]
        went.extend(await asyncio.gather(*made))
        ((_, desk),) = rig.app.plane.desks
        shared.extend(desk.line.shared_tokens)

    run(
        case,
        replace(SETTINGS, slo=replace(SETTINGS.slo, records=4096)),
        backends=0,
        engines=(ENGINE,),
        on=looptime.new_event_loop,
        limit_s=1e5,
    )
    return went, shared


def test_case_14_3_tier_2_gets_its_share_and_nobody_starves() -> None:
    went, shared = minute()
    assert sum(shared) > 0.5 * TIGHT_PER_S * SECONDS * PROMPT_TOKENS, "both tiers had somebody for most of the minute"
    assert RHO - 0.02 <= shared[1] / sum(shared) <= RHO + 0.02
    assert max(one.sent_s - one.came_s for one in went) <= AGE_S + 5.0
    for name in ("tight", "loose"):
        for tier in (1, 2):
            mine = [one for one in went if one.name == name and one.tier == tier and not one.moved]
            mine.sort(key=lambda one: one.came_s)
            sent = [one.sent_s for one in mine]
            assert sent == sorted(sent), (name, tier)
    good = sum(one.good for one in went if one.name == "tight")
    assert good / SECONDS >= 0.75 * 10.0, "nearly all that the engine can do is in time"
