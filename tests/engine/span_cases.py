"""Spans as OpenTelemetry's own exporter sends them, read by its own messages: runs where its libraries are.

usage: python -m tests.engine.span_cases MODEL_DIR [CASE...]
"""

import asyncio
import gzip
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from random import Random
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.accounts import Account
from gateway.slo import NEVER, Promise
from gateway.spans import Spans
from tests.engine.in_engine import run_cases

CLIENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


class Collector(BaseHTTPRequestHandler):
    """Reads what is exported."""

    got: list[Any] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.got.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def exporting() -> Iterator[Spans]:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    Thread(target=server.serve_forever, daemon=True).start()
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    Collector.got.clear()
    try:
        yield Spans(Random(1), time.monotonic)
    finally:
        server.shutdown()


def ended(spans: Spans, traceparent: bytes, **fields: object) -> Account:
    now_s = time.monotonic()
    account = Account(now_s - 2.0)
    account.request_id, account.route, account.model, account.status, account.end = "r1", "chat", "m", 200, "complete"
    account.accepted_s = account.dispatched_s = account.sent_s = now_s - 1.9
    account.first_byte_s, account.finished_s = now_s - 1.5, now_s
    account.trace = spans.joined(traceparent)
    for name, value in fields.items():
        setattr(account, name, value)
    spans.over(account)
    return account


def exported() -> list[Any]:
    return [
        span for _, sent in Collector.got for one in sent.resource_spans for scope in one.scope_spans for span in scope.spans
    ]


def a_request_is_a_span_of_its_client_s_trace() -> None:
    with exporting() as spans:
        account = ended(spans, CLIENT + b"01", promise=Promise("gold", 1.0, NEVER, NEVER))
        asyncio.run(spans.close())
    (span,) = exported()
    assert Collector.got[0][0] == "/v1/traces"
    assert (span.trace_id + span.parent_span_id).hex().encode() == CLIENT[3:52].replace(b"-", b"")
    assert account.trace is not None
    assert int.from_bytes(span.span_id, "big") == account.trace.span_id
    assert (span.name, span.kind, span.status.code) == ("chat m", 2, 0)
    assert abs(span.end_time_unix_nano - span.start_time_unix_nano - 2_000_000_000) < 1000
    assert abs(span.end_time_unix_nano / 1e9 - time.time()) < 60
    assert [event.name for event in span.events] == ["leeway.first_token"]
    told = {one.key: one.value for one in span.attributes}
    assert told["leeway.class"].string_value == "gold"
    assert told["leeway.spent.decode_ms"].double_value == 1500.0
    named = {one.key: one.value.string_value for one in Collector.got[0][1].resource_spans[0].resource.attributes}
    assert named["service.name"] == "leeway"


def what_its_client_does_not_sample_is_not_exported() -> None:
    with exporting() as spans:
        ended(spans, CLIENT + b"00")
        failed = ended(spans, b"", status=504, reason="first_byte_timeout")
        asyncio.run(spans.close())
    (span,) = exported()
    assert failed.trace is not None
    assert (span.parent_span_id, int.from_bytes(span.trace_id, "big")) == (b"", failed.trace.trace_id)
    assert (span.status.code, span.status.message) == (2, "first_byte_timeout")


CASES = [
    a_request_is_a_span_of_its_client_s_trace,
    what_its_client_does_not_sample_is_not_exported,
]

if __name__ == "__main__":
    run_cases(CASES, sys.argv[2:])
