"""Responses from backends that may be broken or hostile: framing, ends, whole chunks, and what makes a connection
unfit for another request."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import Limits
from gateway.relay.http1 import ProtocolError
from gateway.relay.memo import HeadStore
from gateway.relay.responses import MAX_INFORMATIONAL, ResponseHead, ResponseReader
from tests.core.readers import LIMITS, ResponseLog, chunks, cut, every, read_response, reads, token, two_pieces, value

OK = b"HTTP/1.1 200 OK\r\n"
SSE = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
LAST = b"0\r\n\r\n"


def sized(body: bytes, *lines: bytes) -> bytes:
    return b"\r\n".join((OK[:-2], b"Content-Length: %d" % len(body), *lines, b"", body))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def ended(log: ResponseLog) -> list[bytes]:
    return [event[1] for event in log.events if event[0] == "end"]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("raw", "body", "reusable"),
    [
        (sized(b"hi"), b"hi", True),
        (sized(b""), b"", True),
        (sized(b"hi", b"Connection: close"), b"hi", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
        (HINTS + sized(b"hi"), b"hi", True),
        (HINTS * MAX_INFORMATIONAL + sized(b"hi"), b"hi", True),
        (b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n" + sized(b"hi"), b"hi", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"", True),
        (SSE + LAST, b"", True),
        (SSE + chunk(b"a") + chunk(b"b") + LAST, b"ab", True),
        (SSE + b"01;x=y\r\na\r\n0\r\nX-Trailer: b\r\n\r\n", b"a", True),
        (OK + b"\r\nuntil the end", b"until the end", False),
        (b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi", b"hi", True),
    ],
)
def test_a_whole_response_ends_once_however_it_is_cut(raw: bytes, body: bytes, reusable: bool) -> None:
    for pieces in (*(every(raw, size) for size in (1, 2, 5, len(raw))), *two_pieces(raw)):
        for takes in (False, True):
            log, reader, violation = read_response(pieces, takes)
            assert (ended(log), reader.ended, reader.reusable, violation) == ([body], True, reusable, ""), pieces


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        OK,
        HINTS,
        sized(b"hi")[:-1],
        SSE,
        SSE + chunk(b"a"),
        SSE + chunk(b"a\n\n"),
        SSE + chunk(b"a") + b"0\r\n",
        SSE + b"5\r\nab",
        sized(b"", b"X-A: b")[:-2],
    ],
)
def test_an_early_end_of_the_connection_is_no_end_of_the_response(raw: bytes) -> None:
    for pieces in (every(raw, 1), [raw] if raw else []):
        log, reader, violation = read_response(pieces)
        assert (ended(log), reader.ended, reader.reusable and reader.ended, violation) == ([], False, False, "")


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 000 Null\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 099 Low\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        HINTS * (MAX_INFORMATIONAL + 1) + sized(b"hi"),
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
        b"HTTP/1.1 200 O\rK\r\nContent-Length: 2\r\n\r\nhi",
        sized(b"hi", b"Content-Length: 2"),
        sized(b"hi", b"Content-Length: 3"),
        sized(b"hi", b"Transfer-Encoding: chunked"),
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n" + chunk(b"hi") + LAST,
        OK + b"Content-Length: +2\r\n\r\nhi",
        OK + b"Content-Length: 2, 2\r\n\r\nhi",
        OK + b"Transfer-Encoding: gzip\r\n\r\nhi",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk(b"hi") + LAST,
        OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"hi") + LAST,
        OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + chunk(b"hi") + LAST,
        OK + b"X-A: b\r\n c\r\n\r\n",
        OK + b"X-A: b\0\r\n\r\n",
        OK + b"X A: b\r\n\r\n",
        SSE + b"0x1\r\na\r\n",
        SSE + b"+1\r\na\r\n",
        SSE + b" 1\r\na\r\n",
        SSE + b"10000000000000001\r\na\r\n",
        SSE + b"1\r\nab\r\n",
        SSE + b"1\na\n0\n\n",
        SSE + b"0\r\nContent-Length: 5\r\n\r\n",
        OK + b"X-A: " + b"a" * 400_000,
        OK + b"X" * 400_000,
        OK[:-2] + b"K" * 400_000,
        OK + b"".join(b"X-%d: a\r\n" % i for i in range(200)) + b"\r\n",
        OK + b"".join(b"X-%d: %b\r\n" % (i, b"a" * 1000) for i in range(100)) + b"\r\n",
        SSE + b"0\r\nX-Trailer: " + b"a" * 400_000,
        SSE + b"5;" + b"a" * 400_000,
        b"\r\n" * 200_000,
    ],
    ids=lambda raw: repr(raw[:60]),
)
def test_a_violation_is_the_backend_s_fault_and_ends_nothing(raw: bytes) -> None:
    for size in (1000,) if len(raw) > 10_000 else (1, 7, len(raw)):
        log, reader, violation = read_response(every(raw, size), eof=False)
        assert violation.startswith("502 ")
        assert (ended(log), reader.ended) == ([], False)


@pytest.mark.parametrize("whole", [sized(b"hi"), SSE + chunk(b"a\n\n") + LAST, b"HTTP/1.1 204 No Content\r\n\r\n"])
@pytest.mark.parametrize("extra", [b"x", sized(b"ho"), LAST, b"\0", b"3\r\na\n\n\r\n"])
def test_bytes_behind_the_end_change_nothing_but_cost_the_connection(whole: bytes, extra: bytes) -> None:
    for pieces in ([whole + extra], [whole, extra], [whole[:-1], whole[-1:] + extra], every(whole + extra, 1)):
        log, reader, violation = read_response(pieces, takes=True)
        assert (len(ended(log)), reader.ended, reader.reusable, violation) == (1, True, False, "")
        assert log.events == read_response([whole])[0].events


def test_the_limits_are_those_of_the_configuration() -> None:
    reader = ResponseReader(ResponseLog(), Limits(head_bytes=1024, headers=8))
    reader.expect()
    with pytest.raises(ProtocolError):
        reader.feed(OK + b"X-A: 1\r\n" * 9 + b"\r\n")


# -- whole chunks


def fed(pieces: list[bytes], takes: bool = True) -> ResponseLog:
    log, _, violation = read_response(pieces, takes)
    assert violation == ""
    return log


def test_whole_chunks_of_whole_events_are_offered_as_they_came() -> None:
    event, other = chunk(b"data: a\n\n"), chunk(b"data: b\n\ndata: c\n\n")
    log = fed([SSE + event, event, other + event, LAST])
    assert log.taken == [event, other + event]
    assert ended(log) == [b"data: a\n\n" * 2 + b"data: b\n\ndata: c\n\ndata: a\n\n"]
    assert ended(fed([SSE + event, event, other + event, LAST], takes=False)) == ended(log)


@pytest.mark.parametrize(
    "data",
    [
        chunk(b"data: a"),
        chunk(b"data: a\n"),
        chunk(b"data: a\n") + chunk(b"\n"),  # an event over two chunks
        chunk(b"\n"),
        chunk(b"data: [DO") + chunk(b"NE]\n\n"),
        chunk(b"data: a\n\n") + chunk(b"data: b"),
        chunk(b"data: a\n\n")[:-1],
        chunk(b"data: a\n\n") + LAST,
        b"9;x=y\r\ndata: a\n\n\r\n",
        b"00000000000000009\r\ndata: a\n\n\r\n",
        b"g\r\n\n\n\r\n",
        b"\n\n\r\n",
    ],
)
def test_anything_else_is_parsed(data: bytes) -> None:
    log = ResponseLog(takes=True)
    reader = ResponseReader(log, LIMITS)
    reader.expect()
    reader.feed(SSE + chunk(b"data: 0\n\n"))
    try:
        assert reader.feed(data) is False
    except ProtocolError:
        assert data.startswith((b"g", b"\n"))
    assert log.taken == []


def test_a_size_line_that_began_in_the_last_read_is_not_read_twice() -> None:
    # 0x16 bytes that read as two chunks once the first digit is lost
    payload = b"data\n\n\r\nb\r\n" + b"x" * 9 + b"\n\n"
    assert len(payload) == 0x16
    stream = SSE + chunk(b"data: a\n\n") + chunk(payload) + LAST
    at = stream.index(b"16\r\n") + 1
    log = fed([stream[:at], stream[at : -len(LAST)], LAST])
    assert ended(log) == [b"data: a\n\n" + payload]
    assert log.taken == []


fragment = st.sampled_from((b"data: a", b"\n", b"\n\n", b"\r\n", b"6\r\n", b"1", b"0\r\n\r\n", b"[DONE]", b"data: b\n\n"))


@settings(max_examples=80, deadline=None)
@given(st.lists(fragment, max_size=14).map(b"".join), st.data())
def test_taking_whole_chunks_gives_the_payload_that_parsing_gives(payload: bytes, data: st.DataObject) -> None:
    stream = SSE + (data.draw(chunks(payload)) if data.draw(st.booleans()) else chunk(payload) * bool(payload) + LAST)
    edges = [at + 2 for at in range(len(stream)) if stream.startswith(b"\r\n", at)]
    pieces = data.draw(reads(stream)) if data.draw(st.booleans()) else cut(stream, data.draw(st.lists(st.sampled_from(edges))))
    taking, parsing = fed(pieces), fed(pieces, takes=False)
    assert taking.events == parsing.events
    assert ended(taking) == [payload]


# -- one response after another


@st.composite
def responses(draw: st.DrawFn) -> tuple[bytes, int, bytes]:
    """(raw, status, body) of a response that leaves the connection open."""
    body = draw(st.sampled_from((b"", b"{}", sized(b"x"), b"data: a\n\n", b"\r\n\r\n")) | st.binary(max_size=30))
    status = draw(st.sampled_from((200, 200, 200, 400, 404, 500, 204, 304)))
    fields = draw(st.lists(st.tuples(token, value), max_size=3))
    if status in (204, 304):
        body, framing, after = b"", (b"X-None", b""), b""
    elif draw(st.booleans()):
        framing, after = (b"Transfer-Encoding", b"chunked"), draw(chunks(body))
    else:
        framing, after = (b"content-length", b"%d" % len(body)), body
    lines = draw(st.permutations([*fields, framing]))
    before = draw(st.sampled_from((b"", b"", b"", HINTS)))
    head = b"".join((b"HTTP/1.1 %d Any\r\n" % status, *(b"%b: %b\r\n" % line for line in lines), b"\r\n"))
    return before + head + after, status, body


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_cuts_and_a_connection_s_past_change_nothing(data: st.DataObject) -> None:
    known = data.draw(st.lists(responses(), min_size=1, max_size=3))
    store: HeadStore[ResponseHead] = HeadStore()
    for _ in range(2):
        log = ResponseLog(takes=data.draw(st.booleans()))
        reader = ResponseReader(log, LIMITS, store)
        for _ in range(data.draw(st.integers(1, 5))):
            raw, status, body = data.draw(st.sampled_from(known))
            reader.expect()
            log.events.clear()
            for piece in [raw] if data.draw(st.booleans()) else data.draw(reads(raw)):
                reader.feed(piece)
            assert [event[1] for event in log.events] == [status, body]
            assert (reader.ended, reader.reusable) == (True, True)
            assert log.events == read_response([raw])[0].events


def test_a_recognised_head_takes_each_body_at_its_own_length() -> None:
    log, store = ResponseLog(), HeadStore[ResponseHead]()
    reader = ResponseReader(log, LIMITS, store)
    bodies = [b"hi", b"", b"a" * 1234, b"b"]
    for body in bodies:
        reader.expect()
        reader.feed(sized(body))
    reader.expect()
    for piece in every(sized(b"c" * 100), 30):
        reader.feed(piece)
    assert ended(log) == [*bodies, b"c" * 100]


def knowing() -> HeadStore[ResponseHead]:
    """A store whose connections recognise a stream's head."""
    store = HeadStore[ResponseHead]()
    for _ in range(2):
        ResponseReader(ResponseLog(), LIMITS, store).feed(SSE + LAST)
    return store


def feed_all(reader: ResponseReader, pieces: list[bytes]) -> None:
    for piece in pieces:
        reader.feed(piece)


@pytest.mark.parametrize(
    ("rest", "body", "plain"),
    [
        (LAST, b"", True),
        (chunk(b"a") + LAST, b"a", True),
        (chunk(b"data: a\n\n") + chunk(b"data: b\n\n") + LAST, b"data: a\n\ndata: b\n\n", True),
        (b"01\r\na\r\n" + LAST, b"a", True),
        (b"1;x=y\r\na\r\n" + LAST, b"a", False),
        (chunk(b"a") + b"0\r\nX-Trailer: b\r\n\r\n", b"a", False),
        (chunk(b"a") + b"00\r\n\r\n", b"a", False),
        (chunk(b"a") + b"0;x\r\n\r\n", b"a", False),
    ],
)
def test_a_stream_s_recognised_head_leaves_the_parser_what_is_more_than_whole_chunks(
    rest: bytes, body: bytes, plain: bool
) -> None:
    store = knowing()
    for pieces in ([SSE + rest], [SSE, rest], *two_pieces(SSE + rest), every(SSE + rest, 1), every(SSE + rest, 3)):
        for takes in (False, True):
            log = ResponseLog(takes=takes)
            reader = ResponseReader(log, LIMITS, store)
            for again in ([SSE + rest], pieces, [sized(b"hi")], pieces):
                reader.expect()
                log.events.clear()
                for piece in again:
                    reader.feed(piece)
                assert (ended(log), reader.ended, reader.reusable) == (
                    [b"hi" if again == [sized(b"hi")] else body],
                    True,
                    True,
                ), pieces
    untouched = ResponseReader(ResponseLog(), LIMITS, knowing())
    for _ in range(3):
        untouched.expect()
        untouched.feed(SSE + rest)
    assert (untouched._parser is None) is plain


@pytest.mark.parametrize("rest", [b"g\r\n", b"1\r\naa", b"-1\r\n", b"0x1\r\na\r\n" + LAST, b"1\na\r\n" + LAST, b"\r\n"])
def test_a_recognised_head_hides_no_violation_behind_it(rest: bytes) -> None:
    store = knowing()
    for pieces in ([SSE + rest], [SSE, rest], [SSE + chunk(b"a"), rest]):
        reader = ResponseReader(log := ResponseLog(), LIMITS, store)
        reader.expect()
        with pytest.raises(ProtocolError):
            feed_all(reader, pieces)
        assert ended(log) == []


def test_what_follows_a_recognised_stream_s_end_costs_the_connection() -> None:
    store = knowing()
    for pieces in ([SSE + LAST + b"x"], [SSE + LAST, b"x"], [SSE + LAST + SSE]):
        reader = ResponseReader(log := ResponseLog(), LIMITS, store)
        reader.expect()
        feed_all(reader, pieces)
        assert (ended(log), reader.reusable) == ([b""], False)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_broken_framing_raises_nothing_else_and_ends_at_most_once(data: st.DataObject) -> None:
    raw = bytearray(data.draw(responses())[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        edit = data.draw(st.sampled_from(("replace", "insert", "delete")))
        some = data.draw(st.sampled_from((b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"0", b"\xff", b"\n\n\r\n")))
        raw[at : at + (0 if edit == "insert" else 1)] = b"" if edit == "delete" else some
    pieces = data.draw(reads(bytes(raw)))
    for takes in (False, True):
        log, _, violation = read_response(pieces, takes)
        assert violation == "" or violation.startswith("502 ")
        assert len(ended(log)) <= 1


def test_the_repr_shows_no_header_values() -> None:
    head = ResponseHead(200, b"OK", [(b"set-cookie", b"canary")], keep_alive=True)
    assert repr(head) == "<ResponseHead 200 1 headers>"
