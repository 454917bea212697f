"""Event boundaries, and what a stream has shown: no byte is lost or moved, only the usage chunk that we asked for goes."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.relay.sse import EventFramer, Face, StreamWatch, error_event, find_tokens, split_events
from tests.core.readers import every, reads, two_pieces

HOLD_BYTES = 64
USAGE = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":7,"total_tokens":12,"completion_tokens":5}}\n\n'
TEXT = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
STOP = b'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"

line = st.sampled_from((b"data: a", b"data:", b": ping", b"id: 1", "data: 한글😀".encode(), b"data: " + b"x" * 100, DONE[:-2]))


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Events in any line-end style, perhaps with an unfinished one at the end."""
    end = draw(st.sampled_from((b"\n", b"\r\n", b"\r")))
    events = [end.join((*draw(st.lists(line, min_size=1, max_size=3)), b"", b"")) for _ in range(draw(st.integers(0, 5)))]
    tail = draw(st.sampled_from((b"", b"data: cut", b"data: " + b"y" * 200, end)))
    return b"".join((*events, tail))


def ends_an_event(data: bytes) -> bool:
    return data.endswith((b"\n\n", b"\n\r\n", b"\r\r"))


@settings(max_examples=150, deadline=None)
@given(streams(), st.data())
def test_framing_loses_nothing_and_stops_behind_events(stream: bytes, data: st.DataObject) -> None:
    framer = EventFramer(HOLD_BYTES)
    fed = out = b""
    for piece in data.draw(reads(stream)) if stream else []:
        fed += piece
        given_on = framer.feed(piece)
        out += given_on
        assert not given_on or framer.broken or ends_an_event(out)
        held = bytes(framer._held)
        assert out + held == fed
        assert len(held) <= HOLD_BYTES
        assert framer.between_events == (not framer.broken and not held)
    assert out + framer.rest() == stream
    assert framer.rest() == b""


@settings(max_examples=100, deadline=None)
@given(streams())
def test_split_events_gives_whole_events(stream: bytes) -> None:
    events = split_events(stream)
    assert b"".join(events) == stream
    assert all(ends_an_event(event) for event in events[:-1])
    assert all(len(split_events(event)) == 1 for event in events)


def test_the_framer_in_words() -> None:
    framer = EventFramer(HOLD_BYTES)
    assert (framer.feed(b"data: a"), framer.between_events) == (b"", False)
    assert (framer.feed(b"\n"), framer.between_events) == (b"", False)
    assert (framer.feed(b"\ndata: b"), framer.between_events, framer.broken) == (b"data: a\n\n", False, False)
    assert (framer.feed(b"\r\n\r"), framer.feed(b"\n")) == (b"", b"data: b\r\n\r\n")
    assert framer.between_events
    large = b"data: " + b"x" * HOLD_BYTES
    assert (framer.feed(large), framer.broken) == (large, True)
    assert (framer.feed(b"more"), framer.broken) == (b"more", True)
    assert (framer.feed(b"end\n\ndata: c"), framer.broken) == (b"end\n\n", False)
    assert framer.rest() == b"data: c"
    assert (framer.feed(b"d: e\n\n" + large), framer.broken) == (b"d: e\n\n" + large, True)


# -- what a stream shows


def watched(face: Face, *pieces: bytes, strip: bool = False) -> tuple[StreamWatch, bytes]:
    watch = StreamWatch(face, strip)
    return watch, b"".join(watch.see(piece) for piece in pieces)


@pytest.mark.parametrize(
    ("face", "stream", "terminal", "errored"),
    [
        ("openai", TEXT + STOP + DONE, True, False),
        ("openai", TEXT + STOP, False, False),
        ("openai", b"data:[DONE]\n\n", True, False),
        ("openai", b"data: a\r\n\r\ndata: [DONE]\r\n\r\n", True, False),
        ("openai", b"data: a\r\rdata: [DONE]\r\r", True, False),
        ("openai", b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n', False, False),
        ("openai", b'data: {"choices":[{"delta":{"content":"say [DONE]"}}]}\n\n', False, False),
        ("openai", b'data: {"type":"message_stop"}\n\n', False, False),
        ("openai", b'data: {"error":{"message":"m"}}\n\n', False, True),
        ("openai", b'data: {"error": {"message":"m"}}\n\n', False, True),
        ("openai", b'data:{ "error" : {"message":"m"}}\n\n', False, True),
        ("openai", b'event: error\ndata: {"message":"m"}\n\n', False, True),
        ("openai", b'data: a\r\rdata: {"error":{}}\r\r', False, True),
        ("openai", b'data: {"choices":[{"delta":{"content":"{\\"error\\": 1}"}}]}\n\n', False, False),
        ("openai", b'data: {"choices":[{"delta":{"content":"event: error"}}]}\n\n', False, False),
        ("responses", b'event: response.completed\ndata: {"type":"response.completed"}\n\n', True, False),
        ("responses", b'data: {"type": "response.incomplete"}\n\n', True, False),
        ("responses", b'data: {"type":"response.failed"}\n\n', True, False),
        ("responses", b'data: {"type":"response.cancelled"}\n\n', True, False),
        ("responses", b'data: {"type":"response.output_text.done"}\n\n', False, False),
        ("responses", DONE, False, False),
        ("responses", b'event: error\ndata: {"type":"error"}\n\n', False, True),
        ("anthropic", b'event: message_stop\ndata: {"type":"message_stop"}\n\n', True, False),
        ("anthropic", b'data: {"type": "message_stop"}\n\n', True, False),
        ("anthropic", b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n', False, False),
        ("anthropic", b'event: error\ndata: {"type":"error","error":{}}\n\n', False, True),
        ("other", DONE, False, False),
    ],
)
def test_terminals_and_errors(face: Face, stream: bytes, terminal: bool, errored: bool) -> None:
    for pieces in ([stream], split_events(stream)):
        watch, out = watched(face, *pieces, strip=True)
        assert (watch.terminal, watch.errored, out) == (terminal, errored, stream)
        assert watch.complete(1) == (terminal or errored or face == "other" or b'"stop"' in stream)


@pytest.mark.parametrize(
    ("finishes", "choices", "whole"),
    [(0, 1, False), (1, 1, True), (1, 0, True), (1, 3, False), (2, 3, False), (3, 3, True), (4, 3, True)],
)
def test_without_a_done_every_choice_must_finish(finishes: int, choices: int, whole: bool) -> None:
    together = b'data: {"choices":[%b]}\n\n' % b",".join([b'{"finish_reason": "length"}'] * finishes)
    apart = [STOP] * finishes
    for pieces in ([together], apart, [b"".join(apart)]):
        watch, _ = watched("openai", TEXT, *pieces)
        assert watch.complete(choices) is whole
    assert watched("other", TEXT)[0].complete(5)
    assert not watched("anthropic", *apart)[0].complete(1)


@pytest.mark.parametrize("gap", [b"", b" ", b"  "])
def test_only_the_usage_chunk_goes(gap: bytes) -> None:
    usage = USAGE.replace(b":[]", b":" + gap + b"[" + gap + b"]").replace(b'usage":', b'usage"' + gap + b":" + gap)
    kept = (
        TEXT,
        STOP,
        b": comment\n\n",
        b'data: {"choices":[{"delta":{"content":"\\"usage\\":{ \\"choices\\":[]"}}]}\n\n',
        b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":7}}\n\n',
        b'data: {"choices":[],"usage":null}\n\n',
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"usage":{"prompt_tokens":7}}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":7}\n\n',
        b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":7}}\n\n',
        b'data: {"a":{"choices":[]},"choices":[1],"usage":{"prompt_tokens":7}}\n\n',
        DONE,
    )
    for at in range(len(kept)):
        before, after = b"".join(kept[:at]), b"".join(kept[at:])
        assert watched("openai", before + usage + after, strip=True)[1] == before + after
        assert watched("openai", before, usage, after, strip=True)[1] == before + after
        assert watched("openai", before + usage + after)[1] == before + usage + after


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_the_usage_chunk_goes_in_every_line_end_style(end: bytes) -> None:
    events = [event.replace(b"\n", end) for event in (TEXT, USAGE, STOP, DONE)]
    watch, out = watched("openai", b"".join(events), strip=True)
    assert out == events[0] + events[2] + events[3]
    assert (watch.prompt_tokens, watch.output_tokens, watch.terminal) == (7, 5, True)


def _chunk(usage: bytes) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"a"}}],"usage":%b}\n\n' % usage


@pytest.mark.parametrize(
    ("pieces", "tokens"),
    [
        ([TEXT, DONE], (-1, -1)),
        ([_chunk(b"null")] * 3, (-1, -1)),
        ([_chunk(b"null")] * 3 + [USAGE, DONE], (7, 5)),
        ([_chunk(b'{"prompt_tokens":0,"completion_tokens":0}'), USAGE], (7, 5)),
        ([USAGE, _chunk(b"null"), DONE], (7, 5)),
        ([_chunk(b'{"prompt_tokens":7,"completion_tokens":%d}' % n) for n in (1, 2, 3)], (7, 3)),
        ([_chunk(b'{"prompt_tokens": 7, "completion_tokens" : 3, "prompt_tokens_details": {"cached_tokens": 1}}')], (7, 3)),
        (
            [
                b'data: {"message":{"usage":{"input_tokens":25,"output_tokens":1}}}\n\n',
                b'data: {"usage":{"output_tokens":15}}\n\n',
            ],
            (25, 15),
        ),
        ([b'data: {"response":{"usage":{"input_tokens":4,"output_tokens":2,"total_tokens":6}}}\n\n'], (4, 2)),
        ([_chunk(b"{}")], (-1, -1)),
        ([_chunk(b'{"prompt_tokens":-1,"completion_tokens":"5"}')], (-1, -1)),
        ([_chunk(b'{"prompt_tokens":1234567890123456789}')], (-1, -1)),
    ],
)
def test_the_last_usage_that_is_one_counts_however_events_arrive(pieces: list[bytes], tokens: tuple[int, int]) -> None:
    for arriving in (pieces, [b"".join(pieces)], [b"".join(pieces[:2]), b"".join(pieces[2:])]):
        for face in ("openai", "anthropic", "responses", "other"):
            watch, _ = watched(face, *arriving)
            assert (watch.prompt_tokens, watch.output_tokens) == tokens
    assert find_tokens(b"".join(pieces)) == tokens


def _token(text: bytes) -> bytes:
    return b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text


event = st.sampled_from(
    (
        *(_token(text) for text in (b"", b"a", b" error", b"[DONE]", b'say \\"usage\\"', b"\\n\\ndata: [DONE]", b"\xc3\xa4")),
        *(
            TEXT,
            STOP,
            USAGE,
            DONE,
            _chunk(b"null"),
            _chunk(b'{"prompt_tokens":3}'),
            b'data: {"usage" : {"prompt_tokens":1}}\n\n',
        ),
        *(
            b'data: {"type":"message_stop"}\n\n',
            b'data: {"type":"response.completed"}\n\n',
            b'data: {"error":{}}\n\n',
            b": ping\n\n",
        ),
    )
)


@settings(max_examples=150, deadline=None)
@given(st.lists(event, max_size=10), st.sampled_from(("openai", "responses", "anthropic", "other")), st.booleans())
def test_a_glance_and_a_look_agree(events: list[bytes], face: Face, strip: bool) -> None:
    """What a glance lets pass, with its chunk framing, is what `see` would have given on, and shows the same."""
    glancing, seeing, apart = (StreamWatch(face, strip) for _ in range(3))
    whole = b"".join(events)
    framed = b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in events)
    if glancing.glance(framed):
        assert seeing.see(whole) == whole
        assert shown(glancing) == shown(seeing)
    else:
        assert shown(glancing) == shown(seeing), "a declined glance counts nothing"
        assert any(re.search(rb'"usage"\s*:\s*\{', data) for data in events)
        seeing.see(whole)
    one_by_one = b"".join(data if apart.glance(data) else apart.see(data) for data in events)
    assert one_by_one == StreamWatch(face, strip).see(whole)
    assert shown(apart) == shown(seeing)


def shown(watch: StreamWatch) -> tuple[object, ...]:
    return (watch.events, watch.terminal, watch.errored, watch.prompt_tokens, watch.output_tokens, watch.complete(2))


def test_events_are_counted_in_any_style() -> None:
    for end in (b"\n", b"\r\n"):
        stream = b"".join(event.replace(b"\n", end) for event in (TEXT, TEXT, STOP, DONE))
        assert watched("openai", stream)[0].events == 4
    assert watched("openai", *every(b"".join((TEXT, STOP)), len(TEXT)))[0].events == 2


# -- our own error event


def parsed(event: bytes) -> tuple[str, dict[str, object]]:
    """(event name, data) as an SSE client reads them."""
    fields = dict(entry.split(b": ", 1) for entry in event.rstrip(b"\n").split(b"\n"))
    return fields.get(b"event", b"").decode(), json.loads(fields[b"data"])


@pytest.mark.parametrize("message", ["The backend broke.", 'a "quoted"\nline', "한글"])
def test_the_error_event_has_the_shape_that_each_sdk_raises_from(message: str) -> None:
    inner = {"message": message, "type": "upstream_error", "param": None, "code": "backend_lost"}
    for face in ("openai", "other"):
        assert parsed(error_event(face, "backend_lost", message)) == ("", {"error": inner})
    flat = {"type": "error", "code": "backend_lost", "message": message, "param": None, "sequence_number": 0}
    assert parsed(error_event("responses", "backend_lost", message)) == ("error", {**flat, "error": inner})
    said = {"type": "error", "error": {"type": "api_error", "message": message}}
    assert parsed(error_event("anthropic", "backend_lost", message)) == ("error", said)


@pytest.mark.parametrize("face", ["openai", "responses", "anthropic", "other"])
def test_the_error_event_is_one_event_and_seen_as_an_error(face: Face) -> None:
    made = error_event(face, "backend_lost", "line\r\nline\rline\n\nline")
    assert split_events(made) == [made]
    for pieces in two_pieces(made):
        framer = EventFramer(65536)
        assert b"".join(framer.feed(piece) for piece in pieces) == made
    assert watched(face, made)[0].errored


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_a_giant_event_in_pieces_is_one_event(end: bytes) -> None:
    framer, watch = EventFramer(1024), StreamWatch("openai", False)
    stream = b"data: a" + end + b"data: " + b"x" * 5000 + end + b"data: [DONE]" + end
    for at in range(0, len(stream), 700):
        passed = framer.feed(stream[at : at + 700])
        if passed:
            watch.see(passed)
    assert watch.events == 3
