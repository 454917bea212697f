"""One request in the trace that its client began (W3C trace context). Pure.

Where spans are exported, the gateway takes part in the trace: its engine is told of a span of ours, whose parent is the
client's; who brings no trace begins one. Where they are not, nothing here is used and `traceparent` passes as it is.
"""

import re
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from gateway.accounts import Account

SAMPLED = 1
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_LINE = re.compile(rb"^traceparent:[^\r\n]*\r\n", re.IGNORECASE | re.MULTILINE)
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Trace(NamedTuple):
    """`parent_id` 0: the client brought none. `flags` are the client's; without SAMPLED no span is to be kept."""

    trace_id: int
    parent_id: int
    span_id: int
    flags: int

    def in_lines(self, lines: bytes) -> bytes:
        """A head's lines with our `traceparent` in place of the client's."""
        return b"%btraceparent: 00-%032x-%016x-%02x\r\n" % (_LINE.sub(b"", lines), self.trace_id, self.span_id, self.flags)


def joined(traceparent: bytes, rng: Random) -> Trace:
    """The client's trace, or a new one if it has none that can be read."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    span_id = rng.getrandbits(64) or 1
    if found is None:
        return Trace(rng.getrandbits(128) or 1, 0, span_id, SAMPLED)
    return Trace(int(found[1], 16), int(found[2], 16), span_id, int(found[3], 16))


class Tracer(Protocol):
    """What exports spans, as the data plane sees it."""

    def joined(self, traceparent: bytes) -> Trace: ...
    def over(self, account: "Account") -> None: ...


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's variables ask for spans to be exported."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environ.get(name) for name in ENDPOINTS)
