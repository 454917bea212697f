"""Where time went, whether promises were kept, what of it is counted and told."""

import pytest

from gateway.accounts import Account, End
from gateway.promise_metrics import HALF_LIFE, PromiseMetrics, Shares, jain, size_class
from gateway.records import Records
from gateway.slo import NEVER, Promise
from gateway.spending import STAGES, SoFar, kept, stages, told, told_so_far

PROMISE = Promise("chat", 1.0, 0.1, 20.0)


def account(promise: Promise | None = PROMISE, end: End = "complete", status: int = 200, **fields: object) -> Account:
    """Arrived at 10; read 0.1 s, waited 0.4, connected 0.05, first byte 0.35 after that, 2.1 s of tokens."""
    made = Account(10.0)
    values = {
        "request_id": "r", "accepted_s": 10.1, "dispatched_s": 10.5, "sent_s": 10.55, "first_byte_s": 10.9,
        "finished_s": 13.0, "stream": True, "events": 22, "output_tokens": 22, "work_s": 0.2, "attempts": 1,
    }  # fmt: skip
    for name, value in {**values, **fields}.items():
        setattr(made, name, value)
    made.promise, made.end, made.status = promise, end, status
    if promise is not None:
        made.deadline_s = 10.0 + min(promise.ttft_s, promise.e2e_s)
    return made


def spent(one: Account) -> dict[str, float]:
    return {name: round(value_s, 6) for name, value_s in stages(one)}


def test_the_stages_add_up_to_the_whole() -> None:
    one = account(second_s=0.1, probe_s=0.05, tag_s=0.02, swap_s=0.2)
    assert spent(one) == {
        "read": 0.1, "tag": 0.02, "swap": 0.2, "queue_1": 0.03, "queue_2": 0.1, "probe": 0.05, "retry": 0.0, "connect": 0.05,
        "engine_queue": 0.15, "prefill": 0.2, "decode": 2.1,
    }  # fmt: skip
    assert sum(spent(one).values()) == pytest.approx(3.0)
    assert set(spent(one)) == set(STAGES)


def test_what_it_never_came_to_is_not_told() -> None:
    refused = account(end="refused", status=429, accepted_s=-1.0, dispatched_s=-1.0, sent_s=-1.0, first_byte_s=-1.0)
    assert spent(refused) == {"read": 3.0}
    timed_out = account(end="refused", status=503, dispatched_s=-1.0, sent_s=-1.0, first_byte_s=-1.0)
    assert spent(timed_out) == {"read": 0.1, "tag": 0.0, "swap": 0.0, "queue_1": 2.9, "queue_2": 0.0, "probe": 0.0}
    no_connection = account(end="failed_before_first_byte", status=502, sent_s=-1.0, first_byte_s=-1.0)
    assert spent(no_connection)["connect"] == 2.5
    assert "decode" not in spent(no_connection)


def test_attempts_that_did_not_run_are_told_apart() -> None:
    again = account(first_dispatched_s=10.2, attempts=2)
    assert (spent(again)["queue_1"], spent(again)["retry"]) == (0.1, 0.3)
    assert sum(spent(again).values()) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, (True, True, True, True)),
        ({"first_byte_s": 11.01}, (False, True, True, True)),
        ({"finished_s": 13.5}, (True, False, True, True)),
        ({"finished_s": 31.0, "events": 400, "output_tokens": 400}, (True, True, False, True)),
        ({"stream": False, "first_byte_s": 12.9}, (True, True, True, True)),
        ({"end": "failed_in_stream"}, (False, False, False, True)),
        ({"end": "failed_before_first_byte", "status": 502}, (False, False, False, True)),
        ({"end": "refused", "status": 503}, (False, False, False, True)),
        ({"end": "refused", "status": 400}, (True, True, True, False)),
        ({"end": "client_gone", "finished_s": 10.5, "first_byte_s": -1.0}, (True, True, True, False)),
        ({"end": "client_gone", "finished_s": 11.5, "first_byte_s": -1.0}, (False, True, True, True)),
        ({"promise": None}, (True, True, True, False)),
    ],
)
def test_which_promises_were_kept(fields: dict[str, object], verdict: tuple[bool, ...]) -> None:
    assert kept(account(**fields)) == verdict  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "so_far", "stages_s"),
    [
        ({}, SoFar(11.0), {"queue_1": 0.9}),
        ({}, SoFar(11.0, 3, 2, second_s=0.5), {"queue_1": 0.4, "queue_2": 0.5}),
        ({}, SoFar(11.0, tag_s=0.9), {"tag": 0.9}),
        ({"tag_s": 0.1}, SoFar(11.0, swap_s=0.6), {"tag": 0.1, "swap": 0.6, "queue_1": 0.2}),
        ({"probe_s": -10.7}, SoFar(11.0), {"queue_1": 0.6, "probe": 0.3}),
        ({"dispatched_s": 10.5}, SoFar(11.0), {"queue_1": 0.4, "connect": 0.5}),
        ({"dispatched_s": 10.5, "sent_s": 10.6, "work_s": 0.1}, SoFar(11.0), {"engine_queue": 0.3, "prefill": 0.1}),
        ({"dispatched_s": 10.5, "sent_s": 10.6, "first_byte_s": 10.8}, SoFar(11.0), {"prefill": 0.2, "decode": 0.2}),
    ],
)
def test_the_stages_of_one_under_way_add_up_to_now(fields: dict[str, float], so_far: SoFar, stages_s: dict[str, float]) -> None:
    one = account(**{"dispatched_s": -1.0, "sent_s": -1.0, "first_byte_s": -1.0, "finished_s": 0.0, "work_s": -1.0, **fields})
    found = {name: round(value_s, 6) for name, value_s in stages(one, so_far)}
    assert found.items() >= stages_s.items()
    assert sum(found.values()) == pytest.approx(1.0)


def test_what_is_told_of_one_under_way() -> None:
    one = account(dispatched_s=-1.0, sent_s=-1.0, first_byte_s=-1.0, finished_s=0.0, attempts=0, status=0)
    record = told_so_far(one, "waiting", SoFar(10.8, 3, 2, second_s=0.5), 2.0)
    assert (record["state"], record["ahead"], record["expected_start_ms"], record["end"]) == ("waiting", 3, 2000.0, None)
    assert (record["duration_ms"], record["ttft_ms"], record["status"]) == (800.0, None, None)
    slo = record["slo"]
    assert isinstance(slo, dict)
    assert (slo["budget_left_ms"], slo["tier"], slo["kept"]) == (200.0, 2, None)
    runs = told_so_far(account(tier=1), "streaming", SoFar(12.0), None)
    assert (runs["ahead"], runs["expected_start_ms"], runs["ttft_ms"]) == (None, None, 900.0)
    assert isinstance(runs["slo"], dict)
    assert runs["slo"]["budget_left_ms"] == 100.0, "as it was when the first token came"


def test_what_is_told() -> None:
    record = told(account(backend="b0", model="m", tier=2, predicted_s=0.3, prompt_tokens=9))
    slo = record["slo"]
    assert slo == {
        "class": "chat", "ttft_ms": 1000.0, "tpot_ms": 100.0, "e2e_ms": 20_000.0, "deadline_ms": 1000.0,
        "budget_left_ms": 100.0, "tier": 2, "kept": True,
    }  # fmt: skip
    assert (record["ttft_ms"], record["predicted_ttft_ms"], record["duration_ms"]) == (900.0, 800.0, 3000.0)
    assert told(account(None))["slo"] is None
    only_pace = told(account(Promise("x", NEVER, 0.1, NEVER)))["slo"]
    assert isinstance(only_pace, dict)
    assert only_pace["deadline_ms"] is only_pace["budget_left_ms"] is None


def test_records_are_bounded_and_for_their_owner() -> None:
    records = Records(2)
    for name in ("a", "b", "a", "c"):
        records.keep(account(request_id=name, owner="one"))
    assert len(records) == 2
    assert records.find("b", "one") is None
    assert records.find("a", "one") is not None
    assert records.find("a", "two") is None
    records.resize(1)
    assert (records.find("a", "one"), len(records)) == (None, 1)
    records.resize(0)
    records.keep(account(request_id="d"))
    assert len(records) == 0


def test_jain() -> None:
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert jain([]) == jain([0.0, 0.0]) == 1.0


def test_sizes() -> None:
    assert [size_class(n) for n in (1, 256, 257, 16384, 16385)] == ["<=256", "<=256", "<=1024", "<=16384", ">16384"]


def test_shares_fade_and_are_bounded() -> None:
    shares = Shares()
    for i in range(500):
        shares.saw(f"t{i}", True)
    assert len(shares.shares()) == 65
    for _ in range(int(20 * HALF_LIFE)):
        shares.saw("t1", False)
    assert shares.shares() == [pytest.approx(0.0, abs=1e-3)]


def test_counts_by_class() -> None:
    metrics = PromiseMetrics()
    metrics.record(account())
    metrics.record(account(first_byte_s=11.5, tier=2))
    metrics.record(account(end="refused", status=400))
    text = {(sample.name, *sample.labels.values()): sample.value for family in metrics.families() for sample in family.samples}
    assert text["leeway_slo_requests_total", "chat"] == 2
    assert text["leeway_slo_good_total", "chat"] == 1
    assert text["leeway_slo_violations_total", "chat", "ttft"] == 1
    assert text["leeway_slo_dispatches_total", "chat", "2"] == 1
    assert text["leeway_slo_spent_seconds_total", "chat", "read"] == pytest.approx(0.3)
    for i in range(200):
        metrics.record(account(Promise(f"c{i}", 1.0, NEVER, NEVER)))
    assert len(metrics._classes) == 65
