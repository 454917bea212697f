"""How long an overloaded backend is left alone: seconds and HTTP dates, and what is neither."""

import pytest

from gateway.retry_after import overload_wait_s

NOON = b"Mon, 30 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("said", "date", "wait_s"),
    [
        (None, NOON, 1),
        (b"7", None, 7),
        (b"0", None, 1),
        (b"9" * 400, None, 60),
        (b"Mon, 30 Nov 2026 12:00:09 GMT", NOON, 9),
        (b"Tue, 01 Dec 2026 00:00:00 GMT", b"Mon, 30 Nov 2026 23:59:48 GMT", 12),
        (b"Mon, 30 Nov 2026 12:30:00 GMT", NOON, 60),
        (b"Mon, 30 Nov 2026 11:59:00 GMT", NOON, 1),
        (b"Mon, 30 Nov 2026 12:00:09 GMT", None, 1),
        (b"Mon, 30 Nov 2026 12:00:09 GMT", b"now", 1),
        (b"Mon, 30 Nov 2026 12:00:09 CET", NOON, 1),
        (b"Mon, 32 Nov 2026 12:00:09 GMT", NOON, 1),
        (b"Mon, 30 Foo 2026 12:00:09 GMT", NOON, 1),
        (b"Mon, 31 Feb 9999 23:59:60 GMT", NOON, 60),
        (b"soon", NOON, 1),
        (b"-5", NOON, 1),
        ("\u0667".encode(), NOON, 1),
    ],
)
def test_how_long_who_has_too_many_is_left_alone(said: bytes | None, date: bytes | None, wait_s: float) -> None:
    assert overload_wait_s(said, date) == wait_s
