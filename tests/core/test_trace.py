"""W3C trace context, and what spans tell of requests."""

from random import Random

import pytest

from gateway.accounts import Account
from gateway.slo import NEVER, Promise
from gateway.span_facts import attributes, failure, span_name
from gateway.trace import SAMPLED, Trace, joined, wanted

CLIENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_client_s_trace_is_joined_by_a_span_of_ours() -> None:
    trace = joined(CLIENT, Random(1))
    assert (trace.trace_id, trace.parent_id, trace.flags) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, SAMPLED)
    assert trace.span_id not in (0, trace.parent_id)
    assert joined(b"01-" + CLIENT[3:] + b"-more", Random(1)).trace_id == trace.trace_id, "later versions may say more"
    assert joined(CLIENT[:-2] + b"00", Random(1)).flags == 0, "who is not to be kept stays so"


@pytest.mark.parametrize(
    "text",
    [b"", b"nonsense", CLIENT.upper(), b"ff" + CLIENT[2:], CLIENT[:-1], b"00-" + b"0" * 32 + CLIENT[35:], CLIENT + b"\r\nx: y"]
    + [CLIENT[:36] + b"0" * 16 + CLIENT[52:]],
)
def test_without_one_that_can_be_read_a_new_trace_begins(text: bytes) -> None:
    trace = joined(text, Random(2))
    assert trace.parent_id == 0
    assert trace.trace_id not in (0, 0x0AF7651916CD43DD8448EB211C80319C)
    assert trace.flags == SAMPLED


def test_the_engine_is_told_of_our_span_in_place_of_the_client_s() -> None:
    trace = Trace(0xABC, 0x1, 0xDEF, 0)
    ours = b"traceparent: 00-%032x-%016x-00\r\n" % (0xABC, 0xDEF)
    assert trace.in_lines(b"/v1/x HTTP/1.1\r\nTraceParent: old\r\nx-a: traceparent: b\r\n") == (
        b"/v1/x HTTP/1.1\r\nx-a: traceparent: b\r\n" + ours
    )
    assert trace.in_lines(b"/v1/x HTTP/1.1\r\n") == b"/v1/x HTTP/1.1\r\n" + ours


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_spans_are_exported_where_opentelemetry_s_variables_ask_for_it(environ: dict[str, str], asked: bool) -> None:
    assert wanted(environ) is asked


def account(**fields: object) -> Account:
    made = Account(10.0)
    made.request_id, made.route, made.model, made.status, made.end = "r1", "chat", "m", 200, "complete"
    made.accepted_s, made.dispatched_s, made.sent_s, made.first_byte_s, made.finished_s = 10.1, 10.3, 10.4, 10.9, 12.0
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_what_a_span_tells() -> None:
    promise = Promise("gold", 1.5, NEVER, NEVER)
    told = attributes(account(promise=promise, deadline_s=11.5, tier=2, prompt_tokens=7, backend="b0", key="team"))
    assert span_name(account()) == "chat m"
    assert (told["gen_ai.operation.name"], told["gen_ai.request.model"], told["gen_ai.usage.input_tokens"]) == ("chat", "m", 7)
    assert "gen_ai.usage.output_tokens" not in told, "nobody counted"
    assert (told["leeway.backend"], told["leeway.key"], told["http.response.status_code"]) == ("b0", "team", 200)
    assert (told["leeway.class"], told["leeway.tier"]) == ("gold", 2)
    assert (told["leeway.budget_left_ms"], told["leeway.ttft_ms"]) == (600.0, 900.0)
    assert "error.type" not in told
    spent = {name: value for name, value in told.items() if name.startswith("leeway.spent.")}
    assert sum(map(float, spent.values())) == pytest.approx(2000.0)
    assert spent["leeway.spent.connect_ms"] == 100.0


def test_what_counts_as_failed() -> None:
    assert failure(account(status=400)) == failure(account(end="client_gone")) == ""
    assert failure(account(status=503, end="refused", reason="queue_timeout")) == "queue_timeout"
    assert failure(account(status=502)) == "502"
    assert failure(account(end="failed_in_stream", reason="silent")) == "silent"
    assert attributes(account(status=504, reason="x"))["error.type"] == "x"
