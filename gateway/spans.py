"""A span for each request that is over, exported by OTLP over HTTP (extra `otlp`). Shell; loaded only where it is wanted.

OpenTelemetry's own variables say where to, and how: OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT switch
it on; OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_HEADERS, OTEL_BSP_* and the like are read by its library, which queues spans,
sends them from a thread of its own and drops what a dead collector does not take. No request waits for any of it.
"""

import asyncio
import time
from collections.abc import Callable
from random import Random

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from gateway.accounts import Account
from gateway.span_facts import attributes, failure, span_name
from gateway.trace import SAMPLED, Trace, joined

SERVICE = "leeway"


class Spans:
    """See the module's words. `now` is the clock of accounts."""

    def __init__(self, rng: Random, now: Callable[[], float]) -> None:
        self._rng, self._now, self._clock_ns = rng, now, time.time_ns
        known = Resource.create()
        named = str(known.attributes.get(SERVICE_NAME, ""))
        self._resource = known.merge(Resource({SERVICE_NAME: SERVICE})) if named.startswith("unknown_service") else known
        self._scope = InstrumentationScope(SERVICE)
        self._processor = BatchSpanProcessor(OTLPSpanExporter())

    def joined(self, traceparent: bytes) -> Trace:
        """The trace of one that comes."""
        return joined(traceparent, self._rng)

    def over(self, account: Account) -> None:
        """It has its end."""
        trace = account.trace
        if trace is None or not trace.flags & SAMPLED:
            return
        since_ns = self._clock_ns() - int(self._now() * 1e9)  # of the clock of accounts, unix time

        def unix_ns(at_s: float) -> int:
            return since_ns + int(at_s * 1e9)

        first = account.first_byte_s
        failed = failure(account)
        self._processor.on_end(
            ReadableSpan(
                span_name(account),
                self._context(trace, trace.span_id, remote=False),
                self._context(trace, trace.parent_id, remote=True) if trace.parent_id else None,
                self._resource,
                attributes(account),
                (Event("leeway.first_token", timestamp=unix_ns(first)),) if first >= 0 else (),
                kind=SpanKind.SERVER,
                status=Status(StatusCode.ERROR, failed) if failed else Status(StatusCode.UNSET),
                start_time=unix_ns(account.arrived_s),
                end_time=unix_ns(account.finished_s),
                instrumentation_scope=self._scope,
            )
        )

    async def close(self) -> None:
        """Send what is left, as far as that takes no longer than the library's time-outs."""
        await asyncio.get_running_loop().run_in_executor(None, self._processor.shutdown)

    @staticmethod
    def _context(trace: Trace, span_id: int, *, remote: bool) -> SpanContext:
        return SpanContext(trace.trace_id, span_id, remote, TraceFlags(trace.flags & SAMPLED))
