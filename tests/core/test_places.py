"""Where a request would stand in a queue ordered by budgets or priorities, and what a sidecar then foretells for it."""

import json
import math
from dataclasses import replace
from random import Random

import pytest

from backends.cascade import Cascade, CascadeOptions
from backends.cascade_queue import BudgetQueue
from backends.queue_record import ByBudget, ByPriority
from backends.record_state import sighting
from backends.scheduler_record import Ordering, StepRecorder
from backends.snapshot_record import Limits, decode
from predictor.oracle import FixedPace, Oracle
from predictor.places import TIER_2, UNPROMISED_S, Bid, Comer, Places, Queueing, latest_start_ms
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate
from predictor.share import turns
from predictor.sighting import Sighting
from predictor.snapshot import Resident, Snapshot
from predictor.stepwise import simulate
from predictor.wire import Ask, encode_ask, parse_ask
from tests.core.test_cascade import NOW_S, Held, held

PROFILE = StepProfile(base_s=0.01, prefill_token_s=0.001, decode_seq_s=0.002, kv_token_s=0.0)
SLOTS = 4
LIMITS = Limits(1000, 16, SLOTS, 64, 1024)
NOW_MS = int(NOW_S * 1000)


def published(running: list[Held], waiting: list[Held], ordering: Ordering | None) -> Sighting:
    """What a sidecar sees of an engine whose scheduler holds these."""
    kept: list[bytes] = []
    recorder = StepRecorder("e", LIMITS, lambda payload: not kept.append(payload))
    if ordering is not None:
        recorder.ordered(ordering)
    for one in (*running, *waiting):
        one.max_tokens = 100  # type: ignore[attr-defined]
    recorder.record(100.0, running, waiting, {}, 0, 900, 0)  # type: ignore[arg-type]
    return sighting(1, decode(kept[-1]))


class Budgeted:
    """An engine that orders by budgets, all of whose slots are taken; so many in them have given way before."""

    def __init__(self, seed: int, gave_way: int = 0, **given: object) -> None:
        rng = Random(seed)
        self.cascade = Cascade(CascadeOptions(**given), SLOTS)  # type: ignore[arg-type]
        self.queue = BudgetQueue(self.cascade)
        self.queue.open(NOW_S)
        self.running = [held(f"runs {number}", 20) for number in range(SLOTS)]
        for one in self.running:
            one.num_computed_tokens, one.num_output_tokens = 20 + 5, 5
        for one in self.running[:gave_way]:
            one.leeway.gave_way = 1
        for number in range(rng.randrange(1, 40)):
            arrival_s = NOW_S - rng.uniform(0.0, 2.0)
            hints = {"ttft_ms": rng.uniform(200.0, 8000.0)} if rng.random() < 0.7 else {}
            self.queue.add_request(held(f"waits {number}", rng.randrange(10, 900), arrival_s, **hints))
        self.cascade.begin(self.running, NOW_S)

    def seen(self) -> Sighting:
        return published(self.running, [*self.queue], ByBudget(self.cascade))

    def order_with(self, ask: Ask) -> list[str]:
        """The real one of the next step, when that request has come."""
        facts = {"arrival_unix_ms": ask.arrival_s * 1e3, "deadline_unix_ms": ask.deadline_s * 1e3, "class": ask.class_name}
        self.queue.add_request(held(ask.id, ask.prompt_tokens, NOW_S, **(facts if ask.deadline_s < math.inf else {})))
        self.queue.open(NOW_S)
        self.cascade.begin(self.running, NOW_S)
        return [one.request_id for one in self.queue]


def asked(prompt: int, due_s: float = math.inf, tier: int = 1) -> Ask:
    lengths = LengthEstimate(10, 10, 10, "t")
    arrival_s = NOW_S - 0.1 if due_s < math.inf else 0.0
    ask = Ask("new", "m", prompt, lengths, asked_s=NOW_S, arrival_s=arrival_s, deadline_s=due_s, tier=tier)
    return parse_ask(encode_ask(ask, NOW_MS, tier=tier))  # as it comes over the wire


def comer(ask: Ask) -> Comer:
    arrival_s = ask.arrival_s if ask.deadline_s < math.inf else ask.asked_s
    return Comer(Resident(ask.id, ask.prompt_tokens, 0, 0, 10), arrival_s, ask.deadline_s, ask.class_name, ask.tier, 0.1)


@pytest.mark.parametrize("order", ["mh", "lrb", "edf", "sjf", "fcfs"])
@pytest.mark.parametrize("seed", range(12))
def test_the_place_is_the_real_one_at_an_engine_that_orders_by_budgets(seed: int, order: str) -> None:
    rng = Random(100 + seed)
    due_s = math.inf if seed % 4 == 3 else NOW_S + rng.uniform(0.1, 6.0)
    ask, engine = asked(rng.randrange(10, 600), due_s), Budgeted(seed, order=order, rho=0.0)
    seen = engine.seen()
    assert seen.queueing is not None
    places = Places(seen.queueing, seen.snapshot)
    others, place = places.place(comer(ask), NOW_S)
    real = engine.order_with(ask)
    assert place == real.index("new")
    real.remove("new")
    assert [one.id for one in places.arranged(others).waiting] == real
    assert places.place(comer(ask), NOW_S) == (others, place), "asking changes nothing"


@pytest.mark.parametrize("seed", range(8))
def test_a_tight_request_is_foretold_at_its_real_place(seed: int) -> None:
    """The sidecar's answer is what the engine model says of the queue in its real order, not of its end."""
    ask, engine = asked(48, NOW_S + 0.7), Budgeted(seed, SLOTS, rho=0.0)
    oracle = Oracle(FixedPace(PROFILE))
    seen = engine.seen()
    oracle.saw(seen)
    told = oracle.reply(ask, 100.0).estimate
    real = engine.order_with(ask)
    by_name = {one.id: one for one in (*seen.snapshot.waiting, Resident("new", 48, 0, 0, 10))}
    queue = tuple(by_name[name] for name in real if name != "new")
    truth = simulate(PROFILE, replace(seen.snapshot, waiting=queue), by_name["new"], place=real.index("new"))
    assert (told.ttft_s, told.e2e_s) == (pytest.approx(truth.ttft_s), pytest.approx(truth.e2e_s))
    last = simulate(PROFILE, seen.snapshot, by_name["new"])
    assert told.ttft_s <= last.ttft_s + 1e-9


def test_who_gives_its_slot_is_foretold() -> None:
    """Where the engine's own rule finds somebody, and only there."""
    seen_both = set()
    for seed in range(40):
        rng = Random(seed)
        engine = Budgeted(seed, rng.choice([0, 2, SLOTS]), rho=0.0)
        ask, seen = asked(rng.randrange(20, 300), NOW_S + rng.uniform(0.1, 2.0)), engine.seen()
        oracle = Oracle(FixedPace(PROFILE))
        oracle.saw(seen)
        told = oracle.reply(ask, 100.0).estimate
        engine.order_with(ask)
        urgent = engine.cascade.urgent(engine.running, NOW_S)
        mine = urgent is not None and urgent.id == "new"
        victim = engine.cascade.victim(engine.running, urgent, NOW_S) if mine and urgent is not None else None
        at_once = told.wait_s < 0.001
        assert at_once == (victim is not None), seed
        seen_both.add(at_once)
    assert seen_both == {True, False}


@pytest.mark.parametrize("order", ["mh", "lrb", "edf", "sjf"])
@pytest.mark.parametrize("seed", range(12))
def test_begun_prompts_that_would_let_it_pass_are_foretold_behind_it(seed: int, order: str) -> None:
    """As the engine would hand out the tokens of its next step."""
    rng = Random(seed)
    cascade = Cascade(CascadeOptions(order, rho=0.0), SLOTS)
    queue = BudgetQueue(cascade)
    queue.open(NOW_S)
    running = [held(f"b{number}", rng.randrange(100, 900), NOW_S, ttft_ms=rng.uniform(500.0, 9000.0)) for number in range(2)]
    for one in running:
        one.num_computed_tokens = rng.randrange(1, 90)
    cascade.begin(running, NOW_S)
    seen = published(running, [], ByBudget(cascade))
    assert seen.queueing is not None
    assert [at for at, _ in seen.queueing.begun] == [0, 1]
    ask = asked(rng.randrange(10, 600), NOW_S + rng.uniform(0.1, 6.0))
    places = Places(seen.queueing, seen.snapshot)
    others, place = places.place(comer(ask), NOW_S)
    state = places.arranged(others)
    facts = {"arrival_unix_ms": ask.arrival_s * 1e3, "deadline_unix_ms": ask.deadline_s * 1e3}
    queue.add_request(held("new", ask.prompt_tokens, NOW_S, **facts))
    cascade.begin(running, NOW_S)
    real = [one.id for one in (*cascade.queue.first(NOW_S), *cascade.queue.second(NOW_S))]
    before = real.index("new")
    assert sorted(one.id for one in state.running) == sorted(real[:before])
    assert [one.id for one in state.waiting] == real[before + 1 :]
    assert place == 0
    blocks = sum(seen.snapshot.limits.blocks_for(one.prompt_tokens) for one in state.waiting)
    assert state.free_blocks == seen.snapshot.free_blocks + blocks
    assert places.place(comer(ask), NOW_S) == (others, place), "asking changes nothing"


def test_reserved_requests_have_their_places_too() -> None:
    oracle = Oracle(FixedPace(PROFILE))
    engine = Budgeted(3, rho=0.0)
    oracle.saw(engine.seen())
    before_s = oracle.reply(asked(48, NOW_S + 2.5), 100.0).estimate.ttft_s
    oracle.reserve(replace(asked(300, NOW_S + 600.0), id="later"), 100.0)
    assert oracle.reply(asked(48, NOW_S + 2.5), 100.0).estimate.ttft_s == pytest.approx(before_s)
    oracle.reserve(replace(asked(64, NOW_S + 2.4), id="sooner"), 100.0)
    assert oracle.reply(asked(48, NOW_S + 2.5), 100.0).estimate.ttft_s > before_s + 0.05


def test_by_priority_it_stands_behind_those_with_a_smaller_or_the_same_number() -> None:
    numbers = [NOW_MS + 500, NOW_MS + 2000, NOW_MS + 2000, TIER_2 + NOW_MS]
    waiting = [held(f"w{number}", 30) for number in range(4)]
    for one, number in zip(waiting, numbers, strict=True):
        one.priority = number
    seen = published([held("runs", 20)], waiting, ByPriority())
    assert seen.queueing is not None
    places = Places(seen.queueing, seen.snapshot)
    for due_s, tier, place in ((0.1, 1, 0), (1.0, 1, 1), (2.1, 1, 3), (9.0, 1, 3), (0.2, 2, 4), (math.inf, 1, 3)):
        ask = asked(30, NOW_S + due_s if due_s < math.inf else due_s, tier)
        assert places.place(comer(ask), NOW_S)[1] == place, (due_s, tier)
    places.join(comer(asked(30, NOW_S + 1.0)))
    assert places.place(comer(asked(30, NOW_S + 1.5)), NOW_S)[1] == 2


def test_the_number_is_what_gateways_send() -> None:
    assert latest_start_ms(10.0, 12.0, 0.5) == 11_500
    assert latest_start_ms(10.0, 12.0, 0.5, tier=2) == 11_500 + TIER_2
    assert latest_start_ms(10.0, math.inf, 0.5) == int((10.0 + UNPROMISED_S - 0.5) * 1000)


@pytest.mark.parametrize("kind", ["priority", "leeway"])
def test_those_of_whom_nothing_is_known_stay_where_they_are(kind: str) -> None:
    """Before them who holds KV already, behind them who is not listed; who comes last of the known may be behind these."""
    waiting = tuple(Resident(name, 20, 0, 0, 10) for name in ("held", "a", "b", "+0", "+1"))
    limits = EngineLimits(1000, 16, 4, 64, 1024)
    bids = (Bid(NOW_S, NOW_S + 1.0, 0.1, 1000), Bid(NOW_S, NOW_S + 3.0, 0.1, 3000))
    places = Places(
        Queueing(kind, bids, 1, reference_s=1e-4),  # type: ignore[arg-type]
        Snapshot(0.0, limits, (), waiting, 1000),
    )
    first = Comer(waiting[0], 0.0, 2.0) if kind == "priority" else Comer(waiting[0], NOW_S, NOW_S + 2.0)
    last = replace(first, deadline_s=first.deadline_s + 50.0)
    assert places.place(first, NOW_S) == ([0, 1, 2, 3, 4], 2)
    assert places.place(last, NOW_S) == ([0, 1, 2, 3, 4], 5)


def test_an_engine_that_does_not_tell_its_order_and_an_asker_without_a_clock_count_arrivals() -> None:
    engine = Budgeted(5, rho=0.0)
    told, untold = engine.seen(), published(engine.running, [*engine.queue], None)
    assert untold.queueing is None
    ask = asked(48, NOW_S + 0.7)
    answers = []
    for seen, question in ((untold, ask), (told, replace(ask, asked_s=0.0)), (untold, replace(ask, deadline_s=math.inf))):
        oracle = Oracle(FixedPace(PROFILE))
        oracle.saw(seen)
        answers.append(oracle.reply(question, 100.0).estimate)
    assert answers[0] == answers[1] == answers[2]
    oracle = Oracle(FixedPace(PROFILE))
    oracle.saw(told)
    assert oracle.reply(ask, 100.0).estimate.ttft_s < answers[0].ttft_s


def test_a_sidecar_of_before_reads_the_question_as_ever() -> None:
    """It takes the fields that it knows: those of a question without a promise."""
    plain, promised = asked(48), asked(48, NOW_S + 0.7, tier=2)
    known = json.loads(encode_ask(plain, NOW_MS))
    sent = json.loads(encode_ask(promised, NOW_MS, tier=2))
    assert {name: sent[name] for name in known} == known
    assert set(sent) - set(known) == {"arrival_unix_ms", "deadline_unix_ms", "class", "tier"}


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5])
def test_turns_give_tier_2_its_share(rho: float) -> None:
    rng = Random(4)
    first, second = ([rng.randrange(50, 500) for _ in range(300)] for _ in range(2))
    order = turns(0.0, rho, first, second)
    assert (order.count(1), order.count(2)) == (300, 300)
    contested = order[: max(place for place, tier in enumerate(order) if tier == 1)]
    given = sum(second[: contested.count(2)]), sum(first[: contested.count(1)])
    assert given[0] / sum(given) == pytest.approx(rho, abs=0.02)
