"""What goes on to engines: the number for their queue with the right sign, facts for our scheduler, spliced bodies."""

import json

import pytest

from backends.priorities import SGLANG_UNIT_MS, sglang_scheduling, vllm_scheduling
from gateway.config import Slo, Travels
from gateway.slo import NEVER, Promise
from gateway.travel import Luggage, members, numbered, packed, queue_number, session
from predictor.places import TIER_2

NOW = 1_800_000_000_000
PROMISE = Promise("chat", 2.0, 0.05, NEVER)


def luggage(
    left_s: float = 1.5, tier: int = 1, service_s: float = 0.25, restore_s: float = 0.0, promised: bool = True
) -> Luggage:
    promise = PROMISE if promised else None
    return Luggage(NOW - 500, NOW, promise, left_s if promised else NEVER, tier, service_s, 120, restore_s)


@pytest.mark.parametrize(
    ("rule", "scheduling", "sent"),
    [
        ("auto", "priority", True),
        ("auto", "priority-low-first", True),
        ("auto", "leeway", True),
        ("auto", "fcfs", False),
        ("auto", "", False),
        ("always", "", True),
        ("never", "priority", False),
    ],
)
def test_only_engines_that_order_by_it_are_told(rule: Travels, scheduling: str, sent: bool) -> None:
    assert (queue_number(Slo(engine_priority=rule), "vllm", scheduling, luggage()) is not None) is sent
    assert queue_number(Slo(engine_priority=rule), "openai", scheduling, luggage()) is None
    assert numbered("openai", "chat", None, client_has_one=True) == (b"", {}, frozenset())


def test_the_number_is_the_latest_start() -> None:
    number = queue_number(Slo(), "vllm", "priority", luggage())
    assert number == NOW + 1250
    assert numbered("vllm", "chat", number, client_has_one=True) == (b"x-vllm-priority: %d\r\n" % number, {}, frozenset())
    assert queue_number(Slo(), "vllm", "priority", luggage(tier=2)) == NOW + 1250 + TIER_2


def test_an_earlier_start_runs_first_whatever_the_engine_s_sign() -> None:
    early, late = luggage(left_s=1.0), luggage(left_s=9.0)
    hopeless, unpromised = luggage(left_s=-1.0, tier=2), luggage(promised=False)
    for engine, scheduling, sign in (("vllm", "priority", 1), ("sglang", "priority", -1), ("sglang", "priority-low-first", 1)):
        numbers = [queue_number(Slo(), engine, scheduling, one) for one in (early, late, unpromised, hopeless)]
        order = [sign * number for number in numbers if number is not None]
        assert order == sorted(order), (engine, scheduling)
        assert len(set(order)) == 4


def test_sglang_gets_a_unit_that_does_not_preempt_for_trifles() -> None:
    assert 10 * SGLANG_UNIT_MS >= 2000, "it preempts for a difference of 10"
    assert queue_number(Slo(), "sglang", "priority", luggage()) == -((NOW + 1250) // SGLANG_UNIT_MS)


@pytest.mark.parametrize(
    ("route", "has_members"), [("chat", True), ("completions", True), ("responses", True), ("messages", False)]
)
@pytest.mark.parametrize("client_has_one", [False, True])
def test_sglang_is_told_in_the_body_too(route: str, has_members: bool, client_has_one: bool) -> None:
    """It reads the header where it was started to, and for chats alone; Anthropic's bodies have no such member."""
    line, added, replaced = numbered("sglang", route, -7, client_has_one)
    assert line == b"x-override-priority: -7\r\n"
    assert added == ({"priority": -7} if has_members else {})
    assert replaced == (frozenset({"priority"}) if has_members and client_has_one else frozenset())
    body = json.dumps({"model": "m", **({"priority": 3} if client_has_one else {}), "metadata": {"priority": 4}}).encode()
    sent = json.loads(b"".join(packed((body,), added, replaced)))
    assert sent == {**json.loads(body), **added}
    assert b"".join(packed((body,), added, replaced)).count(b'"priority"') == 1 + ("priority" in sent)


def test_facts_go_to_our_scheduler_alone() -> None:
    assert members(Slo(), "vllm", "priority", luggage()) == {}
    assert members(Slo(engine_budget="always"), "sglang", "leeway", luggage()) == {}
    facts = members(Slo(), "vllm", "leeway", luggage())["vllm_xargs"]
    assert facts == {
        "leeway_v": 1,
        "leeway_class": "chat",
        "leeway_arrival_unix_ms": NOW - 500,
        "leeway_ttft_ms": 2000.0,
        "leeway_tpot_ms": 50.0,
        "leeway_estimate_ms": 250.0,
        "leeway_out_tokens": 120,
        "leeway_deadline_unix_ms": NOW + 1500,
    }
    assert all(isinstance(value, str | int | float) for value in facts.values()), "flat scalars: all that vLLM takes"


@pytest.mark.parametrize(
    ("restore_s", "left_s", "forbidden"), [(0.0, 1.5, False), (0.2, 1.5, False), (0.3, 1.5, True), (0.2, 0.1, True)]
)
def test_a_slow_restore_is_forbidden_when_it_does_not_fit(restore_s: float, left_s: float, forbidden: bool) -> None:
    found = members(Slo(), "vllm", "", luggage(left_s=left_s, restore_s=restore_s))
    assert found == ({"kv_transfer_params": {"kv_load_tiers": []}} if forbidden else {})


BODY = b' {"model":"m", "vllm_xargs" : {"mine":1, "leeway_v":7},"stream":true}'
ADDED: dict[str, dict[str, object]] = {"vllm_xargs": {"leeway_v": 1, "leeway_class": "chat"}}


def test_members_are_spliced_in_and_the_rest_stays_byte_for_byte() -> None:
    (piece,) = packed((b'{"model":"m"}',), ADDED, frozenset())
    assert piece == b'{"vllm_xargs":{"leeway_v":1,"leeway_class":"chat"},"model":"m"}'
    assert packed((b"{}",), ADDED, frozenset()) == (b'{"vllm_xargs":{"leeway_v":1,"leeway_class":"chat"}}',)
    pieces = (b'{"model":', b'"m"', memoryview(b"}"))
    assert b"".join(packed(pieces, ADDED, frozenset()))[-12:] == b'"model":"m"}'


def test_a_session_is_named_where_the_engine_repeats_it_and_the_client_has_none() -> None:
    assert session(True, "chat", frozenset(), 'r"1') == {"session_id": 'r"1'}
    (piece,) = packed((b'{"model":"m"}',), session(True, "responses", frozenset(), 'r"1'), frozenset())
    assert json.loads(bytes(piece)) == {"session_id": 'r"1', "model": "m"}
    assert session(False, "chat", frozenset(), "r1") == {}
    assert session(True, "messages", frozenset(), "r1") == session(True, "embeddings", frozenset(), "r1") == {}
    for own in ("session_id", "session_params"):
        assert session(True, "chat", frozenset((own, "vllm_xargs")), "r1") == {}


def test_a_client_s_own_entries_win() -> None:
    (piece,) = packed((BODY,), ADDED, frozenset(("vllm_xargs",)))
    assert json.loads(bytes(piece))["vllm_xargs"] == {"leeway_v": 7, "leeway_class": "chat", "mine": 1}
    assert bytes(piece).startswith(b' {"model":"m", "vllm_xargs" : ')


def test_odd_members_of_the_client_are_left_alone() -> None:
    odd = b'{"vllm_xargs":[1]}'
    assert packed((odd,), ADDED, frozenset(("vllm_xargs",))) == (odd,)
    huge = b'{"vllm_xargs":{},"x":"' + b"y" * 300_000 + b'"}'
    assert packed((huge,), ADDED, frozenset(("vllm_xargs",))) == (huge,)


def test_how_engines_say_that_they_order_their_queue() -> None:
    assert vllm_scheduling({"vllm_config": {"scheduler_config": {"policy": "priority"}}}) == "priority"
    assert vllm_scheduling({"vllm_config": {"scheduler_config": {"policy": "fcfs", "scheduler_cls": None}}}) == "fcfs"
    named = {"policy": "fcfs", "scheduler_cls": "backends.vllm_scheduler.CascadeScheduler"}
    assert vllm_scheduling({"vllm_config": {"scheduler_config": named}}) == "leeway"
    for odd in ({}, {"vllm_config": "text"}, {"vllm_config": {"scheduler_config": {"policy": "magic"}}}):
        assert vllm_scheduling(odd) == ""
    assert sglang_scheduling({"enable_priority_scheduling": True}) == "priority"
    low = {"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}
    assert sglang_scheduling(low) == "priority-low-first"
    assert sglang_scheduling({"enable_priority_scheduling": False}) == "fcfs"
    assert sglang_scheduling({}) == ""
