"""What clients already say in headers, and what the gateway makes of it. Pure."""

import re
from itertools import count

_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}\Z")
_GO_DURATION = re.compile(rb"(?:(\d{1,6}(?:\.\d{1,6})?)(ms|s|m|h))+\Z")
_GO_PART = re.compile(rb"(\d{1,6}(?:\.\d{1,6})?)(ms|s|m|h)")
_UNIT_S = {b"ms": 0.001, b"s": 1.0, b"m": 60.0, b"h": 3600.0}
SESSION_HEADERS = (
    b"x-session-affinity",
    b"x-session-id",
    b"session-id",
    b"thread-id",
    b"x-claude-code-session-id",
    b"x-correlation-id",
)
TTL_HEADER = b"x-llm-d-inference-ttl"
READ_TIMEOUT_HEADERS = (b"x-stainless-read-timeout", b"x-stainless-timeout")


class RequestIds:
    """Names for requests that bring none: unique per process by a random prefix of 12 hex digits. With it they are UUIDs in
    form, since llama-cpp-python's server answers 400 to others, and all of one length, since SGLang takes the beginning of one
    for the whole."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._next = count(1).__next__

    def new(self) -> str:
        """The next id."""
        return f"{self._prefix}{self._next():020x}"


def request_id(sent: bytes | None, ids: RequestIds) -> str:
    """The client's own `x-request-id` if it is harmless in logs and headers, else a new one."""
    if sent is not None and _ID.match(sent):
        return sent.decode()
    return ids.new()


def session_key(values: dict[bytes, bytes]) -> str:
    """The session that the client names by header, or ""."""
    for name in SESSION_HEADERS:
        value = values.get(name)
        if value:
            return value[:256].decode(errors="replace")
    return ""


def go_duration_s(text: bytes) -> float | None:
    """`2s`, `1m30s`, `500ms` in seconds; None when it is not one."""
    if not _GO_DURATION.match(text):
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in _GO_PART.findall(text))


def queue_limit_s(values: dict[bytes, bytes], limit_s: float) -> float:
    """How long this request may wait: the shortest of the server's limit, its own TTL and its read time-out."""
    ttl = values.get(TTL_HEADER)
    if ttl is not None:
        asked = go_duration_s(ttl)
        if asked is not None and asked < limit_s:
            limit_s = asked
    for name in READ_TIMEOUT_HEADERS:
        value = values.get(name)
        if value is not None and value.replace(b".", b"", 1).isdigit() and len(value) < 12:
            limit_s = min(limit_s, float(value))
    return limit_s
