"""The access line: what is logged of each request, as JSON. It reads no clock. Compiled, since every request has one.

It holds what the account holds and no more: no prompts, no keys. structlog's chain would take more than twice the CPU
(`make bench-log`); the shape is the same as that of its lines.
"""

import time

import orjson

from gateway.accounts import Account


class Stamp:
    """Instants of the wall clock as text, UTC to the millisecond; the text of a second is made once."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def of(self, unix_s: float) -> str:
        """2026-01-31T12:00:00.123Z"""
        second = int(unix_s)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        millis = str(1000 + int((unix_s - second) * 1000))
        return self._text + "." + millis[1:] + "Z"


def access_line(account: Account, stamp: str) -> bytes:
    """The line, with its end."""
    return orjson.dumps(access_fields(account, stamp), option=orjson.OPT_APPEND_NEWLINE)


def access_fields(account: Account, stamp: str) -> dict[str, object]:
    """What the access line tells of a request."""
    fields: dict[str, object] = {
        "time": stamp,
        "level": "info",
        "event": "request",
        "id": account.request_id,
        "route": account.route,
        "model": account.model,
        "key": account.key,
        "backend": account.backend,
        "stream": account.stream,
        "status": account.status,
        "end": account.end,
        "reason": account.reason,
        "attempts": account.attempts,
        "tokens_in": account.prompt_tokens,
        "tokens_out": account.output_tokens,
        "events": account.events,
        "ttft_ms": _ms(account.ttft_s),
        "queue_ms": _ms(account.queue_s),
        "duration_ms": _ms(account.finished_s - account.arrived_s),
    }
    if account.swap_s:
        fields["swap_ms"] = _ms(account.swap_s)
    return fields


def _ms(value_s: float) -> float:
    """Milliseconds; -1 of what there was not, as of all other figures."""
    return int(value_s * 1e5) / 100 if value_s >= 0 else -1.0
