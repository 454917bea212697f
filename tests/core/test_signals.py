"""What clients say in headers: ids that are safe to log, sessions, and how long they are willing to wait."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.signals import SESSION_HEADERS, RequestIds, go_duration_s, queue_limit_s, request_id, session_key


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"abc-DEF_1.2", True),
        (b"a" * 128, True),
        (None, False),
        (b"", False),
        (b"a" * 129, False),
        (b"a" * 4000, False),
        (b"a b", False),
        (b"a\tb", False),
        (b"a\n", False),
        (b"\x1b[31mred", False),
        ("a\u202eb".encode(), False),
        ("é".encode(), False),
        (b"a/b", False),
        (b'a"b', False),
    ],
)
def test_a_request_id_is_kept_only_if_it_is_harmless(sent: bytes | None, kept: bool) -> None:
    made = request_id(sent, RequestIds("p"))
    assert made == (sent.decode() if kept and sent else "p" + "1".zfill(20))


def test_our_own_ids_are_uuids_in_form_and_none_begins_another() -> None:
    ids = RequestIds("00f2c4a1b3d9")
    made = [ids.new() for _ in range(300)]
    assert [UUID(name).hex for name in made] == made
    assert made[15] == "00f2c4a1b3d9" + "10".zfill(20)


def test_our_own_ids_are_all_different_and_would_be_kept() -> None:
    ids = RequestIds("p4f2")
    made = [ids.new() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(request_id(name.encode(), ids) == name for name in made)


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_each_session_header_names_the_session(name: bytes) -> None:
    assert session_key({name: b"s1"}) == "s1"


def test_the_first_session_header_wins_and_odd_values_are_bounded() -> None:
    assert session_key(dict.fromkeys(reversed(SESSION_HEADERS), b"x") | {SESSION_HEADERS[0]: b"first"}) == "first"
    assert session_key({SESSION_HEADERS[0]: b"", SESSION_HEADERS[2]: b"third"}) == "third"
    assert session_key({SESSION_HEADERS[0]: b"\xff" * 5000}) == "\ufffd" * 256
    assert session_key({b"session_id": b"x", b"x-request-id": b"y"}) == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"2s", 2.0),
        (b"500ms", 0.5),
        (b"1m30s", 90.0),
        (b"1h2m3s4ms", 3723.004),
        (b"1.5s", 1.5),
        (b"0s", 0.0),
        (b"999999h", 999999 * 3600.0),
        (b"", None),
        (b"2", None),
        (b"s", None),
        (b"-2s", None),
        (b"+2s", None),
        (b"2 s", None),
        (b"2S", None),
        (b"2us", None),
        (b"1e3s", None),
        (b".5s", None),
        (b"2s ", None),
        (b"1234567s", None),
        ("٢s".encode(), None),
        (b"2sx", None),
    ],
)
def test_go_durations(text: bytes, seconds: float | None) -> None:
    assert go_duration_s(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("values", "limit_s"),
    [
        ({}, 60.0),
        ({b"x-llm-d-inference-ttl": b"2s"}, 2.0),
        ({b"x-llm-d-inference-ttl": b"5m"}, 60.0),
        ({b"x-llm-d-inference-ttl": b"soon"}, 60.0),
        ({b"x-stainless-read-timeout": b"10"}, 10.0),
        ({b"x-stainless-timeout": b"7.5"}, 7.5),
        ({b"x-stainless-timeout": b"600"}, 60.0),
        ({b"x-stainless-read-timeout": b"10", b"x-stainless-timeout": b"7", b"x-llm-d-inference-ttl": b"8s"}, 7.0),
        ({b"x-stainless-read-timeout": b"NaN"}, 60.0),
        ({b"x-stainless-read-timeout": b"inf"}, 60.0),
        ({b"x-stainless-read-timeout": b"-1"}, 60.0),
        ({b"x-stainless-read-timeout": b"1e1"}, 60.0),
        ({b"x-stainless-read-timeout": b"1_0"}, 60.0),
        ({b"x-stainless-read-timeout": b"1.2.3"}, 60.0),
        ({b"x-stainless-read-timeout": b"."}, 60.0),
        ({b"x-stainless-read-timeout": b""}, 60.0),
        ({b"x-stainless-read-timeout": b"NOT_GIVEN"}, 60.0),
    ],
)
def test_the_shortest_limit_wins(values: dict[bytes, bytes], limit_s: float) -> None:
    assert queue_limit_s(values, 60.0) == limit_s


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=20), st.binary(max_size=20))
def test_no_header_text_raises_or_lengthens_the_limit(ttl: bytes, timeout: bytes) -> None:
    values = {b"x-llm-d-inference-ttl": ttl, b"x-stainless-timeout": timeout}
    assert 0 <= queue_limit_s(values, 60.0) <= 60.0
    session_key(dict.fromkeys(SESSION_HEADERS, ttl))
    request_id(ttl, RequestIds("p"))
