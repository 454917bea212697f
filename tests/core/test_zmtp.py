"""ZMTP's bytes: what goes out, and what comes in, cut anywhere; what is not ZMTP or too much of it is refused."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.zmtp import GREETING, MESSAGE_BYTES_MAX, Incoming, ZmtpError, message, ready, subscription

HELLO = GREETING + ready(b"PUB")


def heard(data: bytes, cuts: list[int] | None = None) -> list[tuple[bytes, ...]]:
    incoming = Incoming()
    out = []
    places = sorted({0, len(data), *(cut for cut in cuts or [] if cut < len(data))})
    for begin, end in itertools.pairwise(places):
        out += incoming.feed(data[begin:end])
    return out


def test_greeting_is_that_of_version_3_without_security() -> None:
    assert len(GREETING) == 64
    assert (GREETING[0], GREETING[9], GREETING[10], GREETING[12:16]) == (0xFF, 0x7F, 3, b"NULL")
    assert ready(b"SUB") == b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x08Identity\x00\x00\x00\x00"
    assert subscription(b"kv") == b"\x00\x03\x01kv"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=5),
    st.lists(st.integers(0, 4000), max_size=12),
)
def test_messages_arrive_whole_however_they_are_cut(sent: list[list[bytes]], cuts: list[int]) -> None:
    data = HELLO + b"".join(message(*frames) for frames in sent)
    assert heard(data, cuts) == [tuple(frames) for frames in sent]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"HTTP/1.1 200 OK\r\n", "does not speak ZMTP"),
        (GREETING[:10] + b"\x01" + GREETING[11:], "ZMTP 1"),
        (GREETING[:12] + b"CURVE".ljust(20, b"\0") + GREETING[32:], "credentials"),
        (GREETING + message(b"too early"), "handshake"),
        (HELLO + b"\x02" + (MESSAGE_BYTES_MAX + 1).to_bytes(8, "big"), "more than"),
        (HELLO + b"\x40\x00", "flags"),
        (HELLO + message(*[b""] * 17), "frames"),
        (GREETING + b"\x04\x0a\x05ERROR\x03not", "refuses"),
    ],
)
def test_others_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(ZmtpError, match=says):
        heard(data)


def test_parts_of_one_message_count_together() -> None:
    half = MESSAGE_BYTES_MAX // 2 + 1
    incoming = Incoming()
    incoming.feed(HELLO)
    incoming.feed(b"\x03" + half.to_bytes(8, "big") + bytes(half))
    with pytest.raises(ZmtpError, match="more than"):
        incoming.feed(b"\x02" + half.to_bytes(8, "big"))


def test_a_heartbeat_is_answered() -> None:
    incoming = Incoming()
    incoming.feed(HELLO + b"\x04\x0a\x04PING\x00\x0actx")
    assert incoming.replies == [b"\x04\x08\x04PONGctx"]
