"""Budgets in an engine's scheduler, without the engine: what senders say, what is learned, and the queue's bookkeeping."""

import math
from dataclasses import dataclass, field
from random import Random

import pytest

from backends.cascade import Cascade, CascadeOptions, EnginePace, options
from backends.cascade_queue import HOLD_STEPS, BudgetQueue
from backends.cascade_step import IN_VAIN_STEPS, Room
from backends.standing import Standing, standing
from predictor.places import TIER_2

NOW_S = 1_800_000_000.0


@dataclass(eq=False)
class Held:
    """A request as a scheduler holds it."""

    request_id: str
    num_prompt_tokens: int = 100
    leeway: Standing = field(default_factory=lambda: standing(None, 0, NOW_S))
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    leeway_expected: int = 50
    priority: int = 0


def held(name: str, prompt: int = 100, arrival_s: float = NOW_S, **hints: object) -> Held:
    told = {"leeway_v": 1, **{f"leeway_{key}": value for key, value in hints.items()}} if hints else None
    return Held(name, prompt, standing(told, 0, arrival_s))


def decoding(name: str, computed: int, **hints: object) -> Held:
    made = held(name, **hints)  # type: ignore[arg-type]
    made.num_computed_tokens, made.num_output_tokens = computed, 10
    made.leeway.first_s = NOW_S - 0.1
    return made


def line(slots: int = 2, **given: object) -> tuple[BudgetQueue, Cascade]:
    cascade = Cascade(CascadeOptions(**given), slots)  # type: ignore[arg-type]
    queue = BudgetQueue(cascade)
    queue.open(NOW_S)
    return queue, cascade


@pytest.mark.parametrize(
    ("hints", "priority", "deadline_s"),
    [
        (None, 0, math.inf),
        ({"leeway_v": 1, "leeway_ttft_ms": 500}, 0, NOW_S + 0.5),
        ({"leeway_v": 1, "leeway_ttft_ms": 500, "leeway_arrival_unix_ms": NOW_S * 1000 - 200}, 0, NOW_S + 0.3),
        ({"leeway_v": 1, "leeway_deadline_unix_ms": NOW_S * 1000 + 700, "leeway_ttft_ms": 500}, 0, NOW_S + 0.7),
        ({"leeway_v": 2, "leeway_ttft_ms": 500}, 0, math.inf),
        ({"leeway_ttft_ms": 500}, 0, math.inf),
        ({"leeway_v": 1, "leeway_ttft_ms": "500", "leeway_arrival_unix_ms": 3, "leeway_class": 7}, 0, math.inf),
        ({"leeway_v": 1, "leeway_ttft_ms": -5, "leeway_tpot_ms": float("nan")}, 0, math.inf),
        (None, int(NOW_S * 1000) + 400, NOW_S + 0.4),
        (None, TIER_2 + int(NOW_S * 1000) - 400, NOW_S - 0.4),
        (None, 5, math.inf),
    ],
)
def test_what_a_sender_says(hints: object, priority: int, deadline_s: float) -> None:
    made = standing(hints, priority, NOW_S)
    assert made.deadline_s == pytest.approx(deadline_s, abs=1e-3) or made.deadline_s == deadline_s
    assert made.target.tpot_s == math.inf


def test_options_come_from_the_environment() -> None:
    assert options({}) == CascadeOptions()
    given = {"LEEWAY_ORDER": "lrb", "LEEWAY_RHO": "0.2", "LEEWAY_ALPHA": "1", "LEEWAY_AGE_S": "9", "LEEWAY_PREEMPT": "0"}
    assert options(given) == CascadeOptions("lrb", 0.2, 1.0, 9.0, preempt=False)
    for name, value in (("LEEWAY_ORDER", "random"), ("LEEWAY_RHO", "much"), ("LEEWAY_RHO", "2"), ("LEEWAY_AGE_S", "0")):
        with pytest.raises(ValueError, match=name):
            options({name: value})


def test_the_pace_is_learned_from_steps() -> None:
    pace = EnginePace()
    pace.hinted(1000, 0.5)
    assert pace.prompt_s(1000) == pytest.approx(0.5 + pace.step_s)
    for _ in range(50):
        pace.saw(0.03, 0)
        pace.saw(0.03 + 512 * 0.0002, 512)
    pace.saw(60.0, 0)  # somebody stopped the machine
    assert 0.03 <= pace.step_s < 0.05
    assert pace.token_s == pytest.approx(0.0002, rel=0.05)
    pace.hinted(1000, 99.0)
    assert pace.token_s == pytest.approx(0.0002, rel=0.05), "what was seen counts more than what is said"


def test_whom_the_scheduler_skips_returns_as_it_was() -> None:
    queue, cascade = line()
    for name, ttft_ms in (("a", 1000), ("b", 2000), ("c", 3000)):
        queue.add_request(held(name, ttft_ms=ttft_ms))
    skipped, taken = queue.pop_request(), queue.pop_request()
    queue.prepend_requests([skipped])
    assert [one.request_id for one in queue] == ["a", "c"]
    assert queue.close() == [taken]
    assert taken.leeway.begun_s == NOW_S
    assert skipped.leeway.begun_s == 0
    assert cascade.queue.share.debt == 0


def test_who_gave_way_rests_for_a_step_and_the_urgent_one_is_first() -> None:
    queue, _ = line()
    for name in ("patient", "urgent"):
        queue.add_request(held(name, ttft_ms=1000 if name == "patient" else 2000))
    victim = decoding("victim", 110)
    victim.leeway.gave_way = 1
    queue.prepend_request(victim)
    queue.gave_way(victim, "urgent")
    assert (len(queue), queue.peek_request().request_id) == (3, "urgent")
    urgent = queue.pop_request()
    queue.prepend_requests([urgent])  # no room for it
    queue.close()
    queue.open(NOW_S + 0.01)
    assert next(one.request_id for one in queue) in ("patient", "victim")
    assert queue.peek_request() is urgent, "held"
    for step in range(HOLD_STEPS):
        queue.open(NOW_S + 0.02 * step)
    assert queue.peek_request() is not urgent, "not for ever"


def test_removing_finds_them_wherever_they_are() -> None:
    queue, cascade = line()
    one, other, resting = held("one"), held("other"), decoding("resting", 50)
    for request in (one, other, resting):
        queue.add_request(request)
    queue.gave_way(resting, "one")
    queue.remove_requests([resting, other, held("never there")])
    assert ([*queue], len(queue), len(cascade.queue)) == ([one], 1, 1)
    queue.remove_request(one)
    assert not queue
    with pytest.raises(IndexError):
        queue.peek_request()


def test_the_victim_is_the_largest_budget_that_affords_its_redo() -> None:
    queue, cascade = line(slots=3)
    cascade.pace.step_s, cascade.pace.token_s = 0.01, 0.001
    running = [
        decoding("tight", 110, tpot_ms=10.5, ttft_ms=900),
        decoding("large redo", 300_000, tpot_ms=900, ttft_ms=900),
        decoding("loose", 110, tpot_ms=100, ttft_ms=900),
    ]
    for one in running:
        one.leeway_expected = 200
    queue.add_request(held("urgent", ttft_ms=400))
    cascade.begin(running, NOW_S)
    urgent = cascade.urgent(running, NOW_S)
    assert urgent is not None
    victim = cascade.victim(running, urgent, NOW_S)
    assert victim is not None
    assert victim.request_id == "loose"
    victim.leeway.gave_way = 1
    assert cascade.victim(running, urgent, NOW_S) is None, "once in its life"
    assert cascade.urgent(running[:2], NOW_S) is None, "a free slot is enough"
    cascade.rank(running, NOW_S)
    assert running[2].priority > running[0].priority


def test_a_prompt_that_is_late_anyway_gives_its_blocks_first() -> None:
    queue, cascade = line(slots=4)
    late, small, early = (
        held(name, 900, ttft_ms=ttft_ms) for name, ttft_ms in (("late", 1.0), ("small", 1.0), ("early", 900.0))
    )
    late.num_computed_tokens, small.num_computed_tokens, early.num_computed_tokens = 300, 100, 600
    running = [early, late, small, decoding("loose", 110, tpot_ms=900, ttft_ms=900)]
    cascade.begin(running, NOW_S)
    assert cascade.gives_blocks(NOW_S) is None, "nobody needs them"
    queue.add_request(held("first", ttft_ms=5000.0))
    cascade.begin(running, NOW_S)
    found = cascade.gives_blocks(NOW_S)
    assert found is not None
    assert (found[0].id, found[1]) == ("first", late)
    late.leeway.gave_way = 1
    again = cascade.gives_blocks(NOW_S)
    assert again is not None
    assert again[1] is small
    cascade.rank(running, NOW_S)
    assert late.priority == small.priority > max(running[0].priority, running[3].priority)
    assert cascade.gives_blocks(NOW_S + 200.0) is None, "whoever has waited long keeps them"


def handed(cascade: Cascade, running: list[Held], tokens: int = 100, blocks: int = 1000) -> dict[str, int]:
    """What those begun may have of a step."""
    cascade.begin(running, NOW_S)
    return cascade.hand_out(running, Room(tokens, 4 - len(running), blocks, 16), lambda _: True, NOW_S)


def test_a_begun_prompt_stands_in_the_same_order_as_those_who_wait() -> None:
    queue, cascade = line(slots=4)
    long = held("long", 5000, ttft_ms=60_000.0)
    long.num_computed_tokens = 200
    assert handed(cascade, [long]) == {"long": 100}
    queue.add_request(held("sooner", 30, ttft_ms=3000.0))
    queue.add_request(held("later", 30, ttft_ms=90_000.0))
    assert [one.request_id for one in queue] == ["sooner", "later"]
    assert queue.peek_request().request_id == "sooner"
    assert handed(cascade, [long]) == {"long": 70}, "what the sooner one leaves; the later one comes after it"
    other = held("other", 40, ttft_ms=2000.0)
    assert handed(cascade, [long, other]) == {"other": 40, "long": 30}
    other.num_computed_tokens, other.num_output_tokens = 40, 1
    assert handed(cascade, [long, other]) == {"long": 70}, "it decodes"
    assert len(cascade.queue) == 3
    assert handed(cascade, []) == {}
    assert len(cascade.queue) == len(queue) == 2, "aborted"


def test_tokens_are_left_only_for_whom_the_engine_can_admit() -> None:
    queue, cascade = line(slots=4)
    long = held("long", 5000, ttft_ms=60_000.0)
    queue.add_request(held("sooner", 30, ttft_ms=3000.0))
    assert handed(cascade, [long], blocks=1) == {"long": 100}, "two blocks are needed"
    full = [long, *(decoding(f"d{number}", 110) for number in range(3))]
    assert handed(cascade, full) == {"long": 100}, "no slot"
    assert handed(cascade, [long]) == {"long": 70}
    cascade.end([], {"long": 70})  # it was not admitted, for whatever reason
    assert handed(cascade, [long]) == {"long": 100}
    for _ in range(IN_VAIN_STEPS):
        handed(cascade, [long])
    assert handed(cascade, [long]) == {"long": 70}, "tried again"


def test_a_begun_prompt_that_gave_way_or_whose_prefix_is_there_counts_with_what_is_left() -> None:
    queue, cascade = line(slots=4, order="sjf")
    cached, begun = held("cached", 400, ttft_ms=3000.0), held("begun", 500, ttft_ms=3000.0)
    cached.leeway.cached, begun.num_computed_tokens = 350, 400
    queue.add_request(cached)
    assert handed(cascade, [begun]) == {"begun": 50}, "50 tokens of 400 are to be computed"
    begun.num_computed_tokens = 0
    queue.prepend_request(begun)
    assert (begun.request_id in queue._requests, len(queue), len(cascade.queue)) == (True, 2, 2)
    assert [one.request_id for one in queue] == ["cached", "begun"]
    assert handed(cascade, []) == {}


def test_without_an_slo_the_cheapest_redo_gives_way_and_is_due_again_soon() -> None:
    queue, cascade = line(slots=2)
    running = [decoding("long", 900), decoding("short", 120)]
    queue.add_request(held("urgent", ttft_ms=400))
    cascade.begin(running, NOW_S)
    urgent = cascade.urgent(running, NOW_S)
    assert urgent is not None
    victim = cascade.victim(running, urgent, NOW_S)
    assert victim is running[1]
    victim.leeway.gave_way, victim.num_computed_tokens = 1, 0
    entry = cascade.entry(victim, NOW_S)
    assert NOW_S < entry.deadline_s < NOW_S + 5


def test_first_tokens_teach_the_guard_factor() -> None:
    _, cascade = line(slots=64)
    for number in range(40):
        one = held(f"r{number}", ttft_ms=900, **{"class": "chat"})
        one.leeway.begun_s, one.leeway.estimate_s, one.num_output_tokens = NOW_S - 0.2, 0.1, 1
        cascade.begin([one], NOW_S)
    assert cascade.gamma.of("chat") == pytest.approx(2.0)
    assert cascade.gamma.of("other") == pytest.approx(1.1)


@pytest.mark.parametrize("order", ["fcfs", "sjf", "edf", "lrb", "mh"])
def test_nobody_is_lost_and_nobody_waits_twice(order: str) -> None:
    queue, cascade = line(slots=4, order=order)
    random = Random(7)
    inside: dict[str, Held] = {}
    for serial in range(400):
        now_s = NOW_S + 0.01 * serial
        queue.open(now_s)
        cascade.begin([], now_s)
        for _ in range(random.randrange(3)):
            made = held(f"r{serial}.{random.random()}", random.randrange(1, 500), now_s)
            if random.random() < 0.7:
                made = held(made.request_id, made.num_prompt_tokens, now_s, ttft_ms=random.randrange(10, 3000))
            queue.add_request(made)
            inside[made.request_id] = made
        taken = [queue.pop_request() for _ in range(min(len(queue), random.randrange(4)))]
        back = [one for one in taken if random.random() < 0.5]
        queue.prepend_requests(back)
        admitted = queue.close()
        assert {id(one) for one in admitted} == {id(one) for one in taken} - {id(one) for one in back}
        for one in admitted:
            del inside[one.request_id]
        if inside and random.random() < 0.2:
            gone = inside.pop(random.choice(sorted(inside)))
            queue.remove_requests([gone])
        assert sorted(one.request_id for one in queue) == sorted(inside)
        assert len(queue) == len(inside) == len(cascade.queue)
