"""The checker of fault runs must name every id that breaks a rule: each rule is broken here once, by hand."""

import json
import zlib
from collections.abc import Callable

import pytest

from tests.faults.checker import Kind, Rule, Verdict, View, check, view
from tests.faults.ledger import AccessRecord, ClientRecord, Ledgers, Plan, Request, RunRecord, request
from tests.faults.script import LAST_CHUNK, Wish, script

ID = "r-1"
ERROR_EVENT = b'data: {"error":{"message":"cut","type":"upstream_error","param":null,"code":"backend_lost"}}\n\n'
ANY: frozenset[Kind] = frozenset(("complete", "error", "stream_error", "broken", "gone"))


def ledgers(one: Request) -> Ledgers:
    """All four ledgers of one request that went well on backend b-0."""
    books = Ledgers()
    usage = one.stream
    body = b'{"stream_options":{"include_usage":true},' + one.body[1:] if usage and not one.asks_usage else one.body
    sent = script(one.wish, one.id.encode(), one.stream, usage, b"b-0-1")
    mine = script(one.wish, one.id.encode(), one.stream, usage and one.asks_usage, b"b-0-1")
    client = ClientRecord(one, sent_s=1.0, sent_whole=True, status=sent.status, body=mine.app, seen="whole", ended_s=2.0)
    client.headers = {b"x-run": b"b-0-1", b"content-type": b"text/event-stream" if one.stream else b"application/json"}
    books.clients[one.id] = client
    books.run(run_of(one, body, sent.status, usage))
    books.access[one.id] = [logged(one, "complete", sent.status, sent.events)]
    return books


def run_of(one: Request, body: bytes, status: int, usage: bool, number: int = 1) -> RunRecord:
    run = RunRecord(
        id=one.id,
        backend=f"b-{number - 1}",
        number=number,
        head=b"POST / HTTP/1.1\r\nx-request-id: " + one.id.encode(),
        body_crc=zlib.crc32(body),
        body_bytes=len(body),
        wish=one.wish,
        status=status,
        usage=usage,
        started_s=1.1,
        pieces=5,
    )
    run.written, run.end, run.ended_s = 5, "finished", 1.9
    return run


def logged(one: Request, end: str, status: int, events: int = 0, backend: str = "b-0") -> AccessRecord:
    tokens = (7, one.wish.events) if end == "complete" else (-1, -1)
    return AccessRecord(one.id, status, end, "", 1, backend, one.stream, events, *tokens, 1000.0)


def judge(books: Ledgers, right: frozenset[Kind] = ANY) -> Verdict:
    def allowed(record: ClientRecord, seen: View) -> frozenset[Kind]:
        return right

    return check(books, allowed)


def rules(verdict: Verdict) -> set[Rule]:
    return {breach.rule for breach in verdict.breaches}


def own_error(books: Ledgers, status: int, **headers: str) -> None:
    """The client got a JSON error of the gateway's own instead."""
    record = books.clients[ID]
    record.status, record.headers = status, {k.replace("_", "-").encode(): v.encode() for k, v in headers.items()}
    record.body = json.dumps(
        {"error": {"message": "m", "type": "server_error", "param": None, "code": "backend_lost"}}
    ).encode()
    books.access[ID] = [logged(record.request, "failed_before_first_byte", status)]


STREAM = request(ID, "m", True)
PLAIN = request(ID, "m", False)


@pytest.mark.parametrize("one", [STREAM, PLAIN, request(ID, "m", True, asks_usage=True)])
def test_what_went_well_breaks_no_rule(one: Request) -> None:
    verdict = judge(ledgers(one), frozenset(("complete",)))
    assert verdict.breaches == []
    assert (verdict.requests, verdict.accepted, verdict.runs, verdict.amplification) == (1, 1, 1, 1.0)


def no_end(books: Ledgers) -> None:
    books.clients[ID].seen = "none"


def cut_taken_for_success(books: Ledgers) -> None:
    books.clients[ID].body = b"".join(script(Wish(), ID.encode(), True, False).app.partition(b"\n\n")[:2])


def silent_close(books: Ledgers) -> None:
    record = books.clients[ID]
    record.status, record.body, record.seen, record.headers = 0, b"", "cut", {}


def ran_twice(books: Ledgers) -> None:
    books.run(run_of(STREAM, b"{}", 200, True, 2))


def other_request_bytes(books: Ledgers) -> None:
    books.runs[ID][0].body_crc ^= 1


def other_answer_byte(books: Ledgers) -> None:
    books.clients[ID].body = books.clients[ID].body.replace(b"1|", b"7|")


def doubled_event(books: Ledgers) -> None:
    first, blank, rest = books.clients[ID].body.partition(b"\n\n")
    books.clients[ID].body = first + blank + first + blank + rest


def lost_event(books: Ledgers) -> None:
    books.clients[ID].body = books.clients[ID].body.partition(b"\n\n")[2]


def other_status(books: Ledgers) -> None:
    books.clients[ID].status = 201


def stray_run(books: Ledgers) -> None:
    books.run(run_of(request("ghost", "m", True), b"{}", 200, True))


def unasked_bytes(books: Ledgers) -> None:
    books.strays.append("unasked bytes")


def glued_error(books: Ledgers) -> None:
    record = books.clients[ID]
    record.body, record.seen = record.body[:120] + b"\n" + ERROR_EVENT, "cut"
    books.access[ID] = [logged(STREAM, "failed_in_stream", 200)]


def key_at_backend(books: Ledgers) -> None:
    books.runs[ID][0].head += b"\r\nauthorization: Bearer canary-key"


def other_id_at_backend(books: Ledgers) -> None:
    books.runs[ID][0].head = b"POST / HTTP/1.1\r\nx-request-id: other"


def still_running(books: Ledgers) -> None:
    books.runs[ID][0].end = "open"


def left_unseen(books: Ledgers) -> None:
    books.clients[ID].seen = "left"
    books.runs[ID][0].end, books.runs[ID][0].ended_s = "aborted", 9.0


def unlogged(books: Ledgers) -> None:
    books.access.clear()


def logged_twice(books: Ledgers) -> None:
    books.access[ID] *= 2


def logged_as_failed(books: Ledgers) -> None:
    books.access[ID] = [logged(STREAM, "failed_in_stream", 200, 6)]


def logged_elsewhere(books: Ledgers) -> None:
    books.access[ID] = [logged(STREAM, "complete", 200, 6, "b-9")]


def logged_event_count(books: Ledgers) -> None:
    books.access[ID] = [logged(STREAM, "complete", 200, 5)]


def error_without_warning(books: Ledgers) -> None:
    own_error(books, 502)


def refusal_without_time(books: Ledgers) -> None:
    books.runs.clear()
    own_error(books, 503)


def html_error(books: Ledgers) -> None:
    own_error(books, 502, x_should_retry="false")
    books.clients[ID].body = b"<html>bad gateway</html>"


BROKEN: list[tuple[Callable[[Ledgers], None], Rule]] = [
    (no_end, "lost"),
    (cut_taken_for_success, "lost"),
    (silent_close, "lost"),
    (html_error, "lost"),
    (ran_twice, "duplicated"),
    (other_request_bytes, "changed"),
    (other_answer_byte, "changed"),
    (doubled_event, "changed"),
    (lost_event, "changed"),
    (other_status, "changed"),
    (stray_run, "changed"),
    (unasked_bytes, "changed"),
    (key_at_backend, "secret"),
    (other_id_at_backend, "changed"),
    (still_running, "orphan"),
    (left_unseen, "orphan"),
    (unlogged, "log"),
    (logged_twice, "log"),
    (logged_as_failed, "log"),
    (logged_elsewhere, "log"),
    (logged_event_count, "log"),
    (error_without_warning, "wrong end"),
    (refusal_without_time, "wrong end"),
]


@pytest.mark.parametrize(("break_rule", "rule"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_every_broken_rule_is_named(break_rule: Callable[[Ledgers], None], rule: Rule) -> None:
    books = ledgers(STREAM)
    break_rule(books)
    assert rule in rules(judge(books))


def test_an_error_event_must_stand_behind_a_whole_event() -> None:
    books = ledgers(STREAM)
    glued_error(books)
    assert view(books.clients[ID]).kind == "broken"
    assert "wrong end" in rules(judge(books, frozenset(("stream_error",))))


def test_a_stream_cut_behind_an_event_with_one_error_event_is_right() -> None:
    books = ledgers(STREAM)
    record = books.clients[ID]
    first, blank, _ = record.body.partition(b"\n\n")
    record.body, record.seen = first + blank + ERROR_EVENT, "cut"
    books.access[ID] = [logged(STREAM, "failed_in_stream", 200)]
    assert judge(books, frozenset(("stream_error",))).breaches == []


def test_the_wrong_kind_of_end_is_named() -> None:
    books = ledgers(PLAIN)
    breaches = judge(books, frozenset(("error",))).breaches
    assert [(b.rule, b.id, b.what) for b in breaches] == [("wrong end", ID, "complete 200 , not error")]
    assert "b-0 finished 5/5" in str(breaches[0])


def test_a_second_run_after_a_refusal_is_allowed_and_counted() -> None:
    books = ledgers(PLAIN)
    good = books.runs.pop(ID)[0]
    refused = run_of(PLAIN, PLAIN.body, 429, False)
    good.number, good.backend = 2, "b-1"
    books.runs[ID] = [refused, good]
    books.access[ID] = [AccessRecord(ID, 200, "complete", "", 2, "b-1", False, 0, 7, 3, 1000.0)]
    verdict = judge(books, frozenset(("complete",)))
    assert (verdict.breaches, verdict.second_runs_allowed, verdict.amplification) == ([], 1, 2.0)


def test_a_time_out_counts_only_when_the_machine_had_time() -> None:
    books = ledgers(PLAIN)
    own_error(books, 504, x_should_retry="false")
    books.access[ID] = [
        AccessRecord(ID, 504, "failed_before_first_byte", "first_byte_timeout", 1, "b-0", False, 0, -1, -1, 9.0)
    ]
    assert rules(judge(books, frozenset(("complete",)))) == {"wrong end"}
    books.stalls.append((1.2, 1.8))
    verdict = judge(books, frozenset(("complete",)))
    assert (verdict.breaches, verdict.excused) == ([], 1)


def test_a_client_that_left_leaves_no_duty_but_the_abort() -> None:
    one = request(ID, "m", True, plan=Plan(leave="sent"))
    books = ledgers(one)
    books.clients[ID].seen = "left"
    books.runs[ID][0].end, books.runs[ID][0].ended_s = "aborted", 2.25
    books.access[ID] = [logged(one, "client_gone", 0)]
    verdict = judge(books, frozenset(("gone",)))
    assert (verdict.breaches, verdict.abort_s) == ([], [0.25])


def test_verdicts_add_up() -> None:
    total = Verdict()
    for _ in range(3):
        total.add(judge(ledgers(PLAIN)))
    assert (total.requests, total.ends["complete"], total.amplification) == (3, 3, 1.0)


def test_scripts_end_as_they_say() -> None:
    whole = script(Wish(framing="chunked"), b"i", True, False)
    assert whole.pieces[-1] == LAST_CHUNK
    assert whole.ending == "keep"
