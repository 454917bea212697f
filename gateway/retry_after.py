"""How long a backend that said 429 or 503 is left alone: its Retry-After, as seconds or as an HTTP date. Pure.

A date counts from the answer's own Date, which the same clock made, so that no difference between two machines' clocks goes
in (RFC 9110, 10.2.3 and 5.6.7). What is missing or cannot be read counts as a second, and nothing as more than a minute.
"""

import re
from calendar import timegm

WAIT_S, WAIT_MAX_S = 1.0, 60.0
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_DATE = re.compile(rb"[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")


def overload_wait_s(retry_after: bytes | None, date: bytes | None) -> float:
    """By the values of these two fields of its answer."""
    if retry_after is None:
        return WAIT_S
    if retry_after.isdigit():
        asked_s = float(retry_after[:9])
    else:
        until_s, said_s = _instant_s(retry_after), _instant_s(date or b"")
        asked_s = until_s - said_s if until_s >= 0 and said_s >= 0 else WAIT_S
    return min(WAIT_MAX_S, max(WAIT_S, asked_s))


def _instant_s(date: bytes) -> float:
    """An HTTP date in its one form that is still written, as seconds since the epoch; -1.0 for anything else."""
    found = _DATE.fullmatch(date)
    if found is None or found[2] not in _MONTHS:
        return -1.0
    day, year, hour, minute, second = (int(found[part]) for part in (1, 3, 4, 5, 6))
    if not (year >= 1970 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return -1.0
    return float(timegm((year, _MONTHS.index(found[2]) + 1, day, hour, minute, second)))
