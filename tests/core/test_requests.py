"""Requests from hostile and from honest clients: what is refused, and that cuts and recognised heads change nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api import Refusal, route
from gateway.config import Limits
from gateway.relay.http1 import ProtocolError
from gateway.relay.memo import HeadStore
from gateway.relay.requests import RequestHead, RequestReader
from tests.core.hostile import BODY, HIDDEN, LENGTH, PAYLOADS, TARGET, Payload, get, post
from tests.core.readers import (
    LIMITS,
    READ_BYTES_MAX,
    Event,
    RequestLog,
    chunks,
    cut,
    every,
    read_requests,
    reads,
    token,
    two_pieces,
    value,
)

JUDGED_LATER = 413  # by the intake, from the head's length


def outcome(pieces: list[bytes]) -> tuple[int | None, list[tuple[bytes, bytes, bytes]]]:
    log, status = read_requests(pieces)
    return status, log.whole()


def expected(payload: Payload) -> tuple[int | None, list[tuple[bytes, bytes, bytes]]]:
    status = None if payload.status == JUDGED_LATER else payload.status
    return status, [(request.method, request.target, request.body) for request in payload.requests]


def test_the_list_is_long_enough_and_its_names_are_unique() -> None:
    assert len({payload.name for payload in PAYLOADS}) == len(PAYLOADS) > 170


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.name)
def test_a_hostile_payload_has_its_outcome_however_it_is_cut(payload: Payload) -> None:
    assert outcome(every(payload.raw, READ_BYTES_MAX)) == expected(payload)
    if not payload.any_cut:
        return
    for size in (7, 100, 1460) if len(payload.raw) > 10_000 else (1, 2, 3, 7, 16, 64, 100):
        assert outcome(every(payload.raw, size)) == expected(payload), size
    if len(payload.raw) < 300:
        for pieces in two_pieces(payload.raw):
            assert outcome(pieces) == expected(payload), pieces


@pytest.mark.parametrize("payload", [p for p in PAYLOADS if p.requests], ids=lambda payload: payload.name)
def test_what_is_read_is_routed_by_its_raw_path_alone(payload: Payload) -> None:
    log, _ = read_requests(every(payload.raw, READ_BYTES_MAX))
    if payload.answer == 404:
        with pytest.raises(Refusal) as refused:
            route(log.heads[0])
        assert refused.value.status == 404
    else:
        assert route(log.heads[0])


def test_refusals_say_why_without_repeating_the_client() -> None:
    canary = b"canary" * 20
    for raw in (
        post(LENGTH, host=canary + b"@b"),
        get(b"/\xe9" + canary),
        post(b"Content-Length: +13" + canary),
        post(LENGTH, b"X A: " + canary),
    ):
        with pytest.raises(ProtocolError) as caught:
            RequestReader(RequestLog(), LIMITS).feed(raw)
        assert caught.value.message
        assert "canary" not in caught.value.message


def test_the_limits_are_those_of_the_configuration() -> None:
    tight = Limits(head_bytes=100, headers=3, url_bytes=20)
    for raw, status in (
        (get(b"/" + b"a" * 19), None),
        (get(b"/" + b"a" * 20), 414),
        (get(b"/", b"A: 1", b"B: 2"), None),
        (get(b"/", b"A: 1", b"B: 2", b"C: 3"), 431),
        (get(b"/", b"A: " + b"a" * 40), None),
        (get(b"/", b"A: " + b"a" * 100), 431),
    ):
        log = RequestLog()
        if status is None:
            RequestReader(log, tight).feed(raw)
            assert len(log.heads) == 1
            continue
        with pytest.raises(ProtocolError) as caught:
            RequestReader(log, tight).feed(raw)
        assert (caught.value.status, log.heads) == (status, [])


def test_in_head_tells_a_half_sent_head_from_an_idle_connection() -> None:
    reader = RequestReader(RequestLog(), LIMITS)
    seen = []
    for piece in (b"\r\n", b"P", post(LENGTH)[1:60], post(LENGTH)[60:-13], BODY[:5], BODY[5:]):
        reader.feed(piece)
        seen.append(reader.in_head)
    assert seen == [False, True, True, False, False, False]


@pytest.mark.parametrize(
    ("lines", "version", "keep_alive", "expects"),
    [
        ((), b"HTTP/1.1", True, False),
        ((b"Connection: close",), b"HTTP/1.1", False, False),
        ((b"Connection: X-A, Close",), b"HTTP/1.1", False, False),
        ((), b"HTTP/1.0", False, False),
        ((b"Connection: keep-alive",), b"HTTP/1.0", True, False),
        ((b"Expect: 100-continue",), b"HTTP/1.1", True, True),
        ((b"Expect: 100-Continue",), b"HTTP/1.1", True, True),
        ((b"Expect: 100-continue",), b"HTTP/1.0", False, False),
        ((b"Expect: something",), b"HTTP/1.1", True, False),
    ],
)
def test_what_a_head_says_of_its_connection(lines: tuple[bytes, ...], version: bytes, keep_alive: bool, expects: bool) -> None:
    log, status = read_requests([post(LENGTH, *lines, version=version)])
    assert status is None
    head = log.heads[0]
    assert (head.keep_alive, head.expects_continue, head.old) == (keep_alive, expects, version == b"HTTP/1.0")


def test_a_pipelined_body_is_not_counted_as_a_head() -> None:
    large = post(b"Content-Length: 200000", body=b"a" * 200_000)
    log, status = read_requests([large + post(LENGTH)[:70], post(LENGTH)[70:]])
    assert status is None
    assert [len(body) for _, _, body in log.whole()] == [200_000, 13]


def test_a_request_inside_a_body_stays_inside_when_an_upgrade_follows() -> None:
    carrier = post(b"Content-Length: %d" % len(HIDDEN), body=b"")
    inner = HIDDEN.replace(b"Host: hidden", b"Host: h\r\nUpgrade: h2c")[: len(HIDDEN)]
    offer = post(b"Connection: Upgrade", b"Upgrade: h2c", LENGTH)
    log, status = read_requests([carrier, inner + offer])
    assert (status, log.whole()) == (400, [(b"POST", TARGET, inner)])


# -- honest requests, cut anywhere, one after another


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A valid request that leaves the connection open."""
    method = draw(st.sampled_from((b"POST", b"POST", b"POST", b"GET", b"PUT", b"DELETE")))
    target = draw(st.sampled_from((TARGET, b"/", b"/v1/models?a=b", b"http://other:80/v1/models", b"/x%20y")))
    name = draw(st.sampled_from((b"Content-Length", b"content-length")))
    fields = draw(st.lists(st.tuples(token, value), max_size=3))
    extra = draw(st.sampled_from(((), (), ((b"Expect", b"100-continue"),), ((b"Connection", b"keep-alive"),))))
    body = draw(st.sampled_from((b"", BODY, HIDDEN, b"\r\n\r\n", b"0\r\n\r\n")) | st.binary(max_size=40))
    kind = draw(st.sampled_from(("length", "length", "chunked", "none")))
    if kind == "chunked":
        framing, body = (b"Transfer-Encoding", b"chunked"), draw(chunks(body))
    elif kind == "length" or body:
        framing = (name, b"%d" % len(body))
    else:
        framing = (b"X-None", b"")
    lines = draw(st.permutations([*fields, *extra, framing, (b"Host", b"leeway")]))
    return b"".join((method, b" ", target, b" HTTP/1.1\r\n", *(b"%b: %b\r\n" % line for line in lines), b"\r\n", body))


def alone(raw: bytes) -> list[Event]:
    """The oracle: a new reader, one read."""
    log, status = read_requests([raw])
    assert status is None
    assert log.events[-1][0] == "end"
    return log.events


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_cuts_and_a_connection_s_past_change_nothing(data: st.DataObject) -> None:
    known = data.draw(st.lists(requests(), min_size=1, max_size=3))
    sent = [data.draw(st.sampled_from(known)) for _ in range(data.draw(st.integers(1, 6)))]
    stream = b"".join(sent)
    edges = [len(b"".join(sent[:count])) for count in range(1, len(sent))]
    wild = st.lists(st.integers(1, len(stream)), max_size=5)
    places = data.draw(st.lists(st.sampled_from(edges), unique=True)) if edges else []
    log, status = read_requests(cut(stream, [*places, *data.draw(wild)]))
    assert status is None
    assert log.events == [event for raw in sent for event in alone(raw)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_head_known_from_other_connections_changes_nothing(data: st.DataObject) -> None:
    """Same head with other digits, and heads that differ in one byte, over connections that share their heads."""
    store: HeadStore[RequestHead] = HeadStore()
    base = data.draw(requests())
    for _ in range(3):
        sent = []
        for _ in range(data.draw(st.integers(1, 4))):
            raw = bytearray(base)
            if data.draw(st.booleans()):
                at = data.draw(st.integers(0, max(0, raw.find(b"\r\n\r\n") - 1)))
                raw[at] = data.draw(st.sampled_from(b"aZ0 :,\r/"))
            sent.append(bytes(raw))
        events: list[Event] = []
        for count, raw in enumerate(sent):
            log, status = read_requests([raw])
            events += log.events
            early, _ = read_requests([raw[:-1]])
            left_over = any(event[0] == "end" for event in early.events)  # then the next head would begin with it
            if left_over or status is not None or not log.events or log.events[-1][0] != "end" or not log.heads[-1].keep_alive:
                sent = sent[: count + 1]  # the connection ends here
                break
        log, _ = read_requests(sent, store)
        assert log.events == events


@pytest.mark.parametrize("store", [None, HeadStore()], ids=["own heads", "shared heads"])
def test_a_recognised_head_takes_each_body_at_its_own_length(store: HeadStore[RequestHead] | None) -> None:
    def sized(body: bytes) -> bytes:
        return post(b"Content-Length: %d" % len(body), b"X-A: 1", body=body)

    first, empty, small, large = sized(BODY), sized(b""), sized(b"x"), sized(b"y" * 1234)
    close, other = post(LENGTH, b"Connection: close"), post(LENGTH, b"X-A: 2")
    pieces = [first, small, empty, *every(large, 400), small + small, small + large[:200], large[200:], other, first, close]
    log, status = read_requests(pieces, store)
    assert status is None
    assert [body for _, _, body in log.whole()] == [
        *(BODY, b"x", b"", b"y" * 1234, b"x", b"x", b"x", b"y" * 1234),
        *(BODY, BODY, BODY),
    ]
    assert [event[-1] for event in log.events if event[0] == "head"] == [13, 1, 0, 1234, 1, 1, 1, 1234, 13, 13, 13]
    assert log.heads[1] is log.heads[0], "the head was to be recognised"
    assert log.heads[8].values[b"x-a"] == b"2"


def test_a_head_is_never_taken_for_one_that_was_pipelined_behind_it() -> None:
    """One read with several requests teaches the first head, whatever follows it."""
    plain, secret = post(LENGTH), post(LENGTH, b"Authorization: Bearer k", target=b"/v1/completions")
    asking = post(LENGTH, b"Expect: 100-continue")
    for together in (plain + secret, plain + secret + secret, asking + secret, asking + secret + secret):
        store: HeadStore[RequestHead] = HeadStore()
        read_requests([together], store)
        for raw in (plain, asking):
            first, _ = read_requests([raw, raw], store)
            assert first.events == alone(raw) * 2


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_broken_framing_raises_nothing_else_and_never_invents_requests(data: st.DataObject) -> None:
    raw = bytearray(data.draw(requests() | st.sampled_from([p.raw for p in PAYLOADS if len(p.raw) < 2000])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        edit = data.draw(st.sampled_from(("replace", "insert", "delete")))
        some = data.draw(st.sampled_from((b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"0", b"\xff", b"Upgrade: a\r\n")))
        raw[at : at + (0 if edit == "insert" else 1)] = b"" if edit == "delete" else some
    whole, status = read_requests([bytes(raw)])
    assert status in (None, 400, 405, 414, 431, 505)
    parts, _ = read_requests(data.draw(reads(bytes(raw))))
    assert parts.events[: len(whole.events)] == whole.events


def test_the_repr_shows_no_header_values() -> None:
    log, _ = read_requests([post(LENGTH, b"Authorization: Bearer canary")])
    assert repr(log.heads[0]) == "<RequestHead POST /v1/chat/completions 3 headers>"
