"""Joins the four ledgers by id and names every id that breaks a rule. Pure.

Rules: each accepted request has exactly one end, which its client can tell from success; a second run only after an
attempt that was refused by a documented answer; bytes unchanged both ways; the gateway's own log agrees with what
client and backend saw; a client that left is left by the backend. No statistics: a single id fails a run.
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.faults.ledger import CANARY, ClientRecord, Ledgers, RunRecord
from tests.faults.script import DONE, Script, script

Rule = Literal["lost", "duplicated", "changed", "wrong end", "log", "orphan", "secret"]
Kind = Literal["complete", "error", "stream_error", "broken", "gone", "unserved", "untold", "hung"]
NOT_STARTED = (429, 503)
ABORT_LIMIT_S = 5.0
TIMEOUTS = frozenset(("connect_failed", "first_byte_timeout", "idle_timeout", "total_timeout", "queue_timeout"))
_LOG_ENDS: dict[Kind, frozenset[str]] = {
    "complete": frozenset(("complete",)),
    "error": frozenset(("refused", "failed_before_first_byte")),
    "stream_error": frozenset(("failed_in_stream",)),
    "broken": frozenset(("failed_in_stream",)),
    "gone": frozenset(("client_gone", "complete", "failed_in_stream", "failed_before_first_byte", "refused")),
    "unserved": frozenset(("client_gone",)),
}


@dataclass(frozen=True, slots=True)
class Breach:
    """One id that broke one rule."""

    id: str
    rule: Rule
    what: str
    context: str = ""

    def __str__(self) -> str:
        return f"{self.rule}: {self.id}: {self.what}{self.context}"


@dataclass(frozen=True, slots=True)
class View:
    """A client's record, understood. `code`: the gateway's own error code; `events`: whole ones before an error event."""

    kind: Kind
    code: str = ""
    app: bytes = b""
    events: int = 0


Allowed = Callable[[ClientRecord, View], frozenset[Kind]]


@dataclass(slots=True)
class Verdict:
    """What a check found; verdicts of epochs add up."""

    requests: int = 0
    accepted: int = 0
    runs: int = 0
    second_runs_allowed: int = 0
    excused: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    breaches: list[Breach] = field(default_factory=list)
    abort_s: list[float] = field(default_factory=list)

    def add(self, other: "Verdict") -> None:
        """Take in another epoch."""
        self.requests += other.requests
        self.accepted += other.accepted
        self.runs += other.runs
        self.second_runs_allowed += other.second_runs_allowed
        self.excused += other.excused
        self.ends += other.ends
        self.breaches += other.breaches
        self.abort_s += other.abort_s

    def count(self, *rules: Rule) -> int:
        """Ids that broke one of the rules."""
        return len({breach.id for breach in self.breaches if breach.rule in rules})

    @property
    def amplification(self) -> float:
        """Runs per accepted request."""
        return self.runs / self.accepted if self.accepted else 0.0


def view(record: ClientRecord) -> View:
    """What the client can tell from what it saw."""
    if record.seen == "left":
        return View("gone")
    if record.seen == "none":
        return View("hung")
    if not record.status:
        return View("unserved")
    if b"x-run" not in record.headers:
        return _gateways_own(record)
    if not record.headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        return View("complete" if record.seen == "whole" else "broken", app=record.body)
    return _stream(record)


def _gateways_own(record: ClientRecord) -> View:
    """A whole answer of the gateway's own must be one JSON error in OpenAI's shape."""
    try:
        error = json.loads(record.body)["error"]
        code = error["code"]
        good = record.seen == "whole" and record.status >= 400 and isinstance(error["message"], str) and "type" in error
    except (ValueError, KeyError, TypeError):
        good, code = False, ""
    return View("error", str(code)) if good else View("untold", str(code))


def _stream(record: ClientRecord) -> View:
    body = record.body
    if record.seen == "whole":
        return View("complete" if _has_end(body) else "untold", app=body, events=body.count(b"\n\n"))
    if not body.endswith(b"\n\n"):
        return View("broken", app=body)
    start = body.rfind(b"\n\n", 0, len(body) - 2) + 2 if body.count(b"\n\n") > 1 else 0
    last = body[start:].lstrip(b"\r\n")
    if last.startswith(b'data: {"error":') and b'"upstream_error"' in last:
        error = json.loads(last[6:])["error"]
        before = body[: len(body) - len(last)]
        return View("stream_error", error["code"], before, before.count(b"\n\n"))
    return View("broken", app=body, events=body.count(b"\n\n"))


def _has_end(body: bytes) -> bool:
    """The stream's own terminal: [DONE], a finish_reason, or an error of the backend's own."""
    return body.endswith(b"data: [DONE]\n\n") or b'"finish_reason":"stop"' in body or b'data: {"error":' in body


def check(ledgers: Ledgers, allowed: Allowed) -> Verdict:
    """Judge everything in the ledgers. `allowed` names the right kinds of end for one request."""
    verdict = Verdict()
    for request_id, record in ledgers.clients.items():
        seen = view(record)
        runs = ledgers.runs.get(request_id, [])
        verdict.requests += 1
        verdict.accepted += record.sent_whole
        verdict.runs += len(runs)
        verdict.ends[seen.kind] += 1
        found = [*_ends(record, seen, allowed), *_runs(record, runs), *_bytes(record, seen, runs)]
        if found and found[0][0] == "wrong end" and _no_time(record, seen, ledgers):
            del found[0]
            verdict.excused += 1
        found += _logged(record, seen, runs, ledgers)
        found += _left(record, runs, verdict, ledgers)
        verdict.second_runs_allowed += max(0, len(runs) - 1)
        if found:
            context = _context(record, runs, ledgers)
            verdict.breaches += [Breach(request_id, rule, what, context) for rule, what in found]
    verdict.breaches += _strays(ledgers)
    return verdict


Found = Iterable[tuple[Rule, str]]


def _context(record: ClientRecord, runs: list[RunRecord], ledgers: Ledgers) -> str:
    """What else the ledgers know of a request, for whoever looks for the cause."""
    one = record.request
    plan = [f"{name}={getattr(one.plan, name)}" for name in one.plan.__slots__ if getattr(one.plan, name)]
    ran = [f"{run.backend} {run.end} {run.written}/{run.pieces}" for run in runs]
    touched = [f"{touch.kind}.{touch.phase} on {touch.proxy}" for touch in ledgers.touches.get(one.id, ())]
    lines = [f"{a.end} ({a.reason}) {a.backend} {a.duration_ms:.0f} ms" for a in ledgers.access.get(one.id, ())]
    armed = [
        f"{w.kind}.{w.phase} on {w.proxy} since {record.sent_s - w.start_s:.2f} s"
        for w in ledgers.windows
        if w.start_s <= record.ended_s and record.sent_s <= w.end_s
    ]
    kind = "stream" if one.stream else "plain"
    return f" [{kind} wish={one.wish.json()} plan={plan} runs={ran} touched={touched} log={lines} armed={armed}]"


def _ends(record: ClientRecord, seen: View, allowed: Allowed) -> Found:
    """Exactly one end, of the right kind, that its client can tell from success."""
    if seen.kind == "hung":
        yield "lost", "the client got no end within its own limit"
    elif seen.kind == "untold":
        yield "lost", f"status {record.status}, {record.seen}, and no end to be told from success: {record.body[-80:]!r}"
    elif seen.kind == "unserved" and record.sent_whole and "unserved" not in allowed(record, seen):
        yield "lost", f"the connection closed without an answer ({record.headers.get(b'-bad', b'').decode()})"
    elif seen.kind not in (right := allowed(record, seen)):
        yield "wrong end", f"{seen.kind} {record.status} {seen.code}, not {' or '.join(sorted(right))}"


def _no_time(record: ClientRecord, seen: View, ledgers: Ledgers) -> bool:
    """A time-out while the machine stood still is the machine's; the end must still be one, and everything else hold."""
    lines = ledgers.access.get(record.request.id, [])
    reasons = {seen.code, *(line.reason for line in lines)}
    return bool(reasons & TIMEOUTS) and ledgers.stalled(record.sent_s, record.ended_s)


def _runs(record: ClientRecord, runs: list[RunRecord]) -> Found:
    """A second run only after a documented not-started answer."""
    for earlier in runs[:-1]:
        if earlier.status not in NOT_STARTED:
            on = ", ".join(f"{run.backend} ({run.status}, {run.end})" for run in runs)
            yield "duplicated", f"{len(runs)} runs on {on}"
            break
    if runs and not record.sent_whole and record.seen != "left":
        yield "changed", "a body ran that the client had not sent whole"


def expected_body(record: ClientRecord, run: RunRecord) -> bytes:
    """The client's body with the one documented splice: a stream that asks for no usage is made to ask."""
    body, request = record.request.body, record.request
    if request.stream and run.usage and not request.asks_usage:
        return b'{"stream_options":{"include_usage":true},' + body[1:]
    return body


def _bytes(record: ClientRecord, seen: View, runs: list[RunRecord]) -> Found:
    """Request bytes at the backend, answer bytes at the client."""
    for run in runs:
        if run.body_crc != zlib.crc32(expected_body(record, run)):
            yield "changed", f"{run.body_bytes} body bytes reached {run.backend}, not the client's {len(record.request.body)}"
        if CANARY in run.head:
            yield "secret", f"the client's key reached {run.backend}"
        if b"\r\nx-request-id: " + record.request.id.encode() not in run.head:
            yield "changed", f"{run.backend} was not told the request's id"
    if seen.kind not in ("complete", "stream_error", "broken"):
        return
    if not runs:
        yield "changed", f"{seen.kind} answer of status {record.status}, and no run"
        return
    right = answer(record, runs[-1])
    if record.status != right.status:
        yield "changed", f"status {record.status} for the backend's {right.status}"
    whole = {right.app}
    if record.request.stream and runs[-1].wish.framing == "close":
        whole.add(right.app.removesuffix(DONE))  # framed by the end alone: finish_reason is terminal enough
    if seen.kind == "complete" and seen.app not in whole:
        yield "changed", f"{len(seen.app)} answer bytes for the backend's {len(right.app)}: {_difference(seen.app, right.app)}"
    elif not right.app.startswith(seen.app):
        yield "changed", f"answer bytes are no part of the backend's: {_difference(seen.app, right.app)}"
    elif seen.kind == "stream_error" and seen.app and not seen.app.endswith((b"\n\n", b"\n\r\n")):
        yield "changed", "the error event is glued to an unfinished event"


def answer(record: ClientRecord, run: RunRecord) -> Script:
    """What the backend's script says that this client should get (the usage chunk only if it asked)."""
    request = record.request
    return script(run.wish, request.id.encode(), request.stream, run.usage and request.asks_usage)


def _difference(got: bytes, right: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(got, right, strict=False)) if a != b), min(len(got), len(right)))
    return f"at {at}: {got[at : at + 40]!r} for {right[at : at + 40]!r}"


def _logged(record: ClientRecord, seen: View, runs: list[RunRecord], ledgers: Ledgers) -> Found:
    """The access log has one line for the request, and the line is true."""
    lines = ledgers.access.get(record.request.id, [])
    if len(lines) != 1:
        optional = seen.kind in ("gone", "unserved") and not runs
        if len(lines) > 1 or not optional:
            yield "log", f"{len(lines)} access lines for a request that ended as {seen.kind}"
        return
    line = lines[0]
    ends = _LOG_ENDS.get(seen.kind)
    own_error = bool(runs) and runs[-1].wish.do == "error_first" and seen.kind == "complete" and line.end == "failed_in_stream"
    if ends is not None and line.end not in ends and not own_error:
        yield "log", f"logged as {line.end} ({line.reason}), seen as {seen.kind} {seen.code}"
    if line.attempts < len(runs):
        yield "log", f"{line.attempts} attempts logged, {len(runs)} runs"
    if runs and line.backend != runs[-1].backend and seen.kind != "error":
        yield "log", f"logged on {line.backend}, ran on {runs[-1].backend}"
    if record.status and record.seen != "left" and line.status != record.status:
        yield "log", f"status {line.status} logged, {record.status} seen"
    if seen.kind == "error":
        yield from _told(record, runs)
    elif seen.kind == "complete":
        yield from _counted(record, runs[-1:], line.events, line.tokens_in, line.tokens_out)


def _told(record: ClientRecord, runs: list[RunRecord]) -> Found:
    """An error of the gateway says whether a new attempt is safe."""
    may_have_run = any(run.status not in NOT_STARTED for run in runs)
    if may_have_run and record.headers.get(b"x-should-retry") != b"false":
        yield "wrong end", f"{record.status} after a run without x-should-retry: false"
    if record.status in NOT_STARTED and b"retry-after" not in record.headers:
        yield "wrong end", f"{record.status} without Retry-After"
    if b"127.0.0.1" in record.body:
        yield "secret", "an internal address in an error"


def _counted(record: ClientRecord, runs: list[RunRecord], events: int, tokens_in: int, tokens_out: int) -> Found:
    """Events and tokens in the access line are those that the backend sent."""
    if not runs:
        return
    wish = runs[0].wish
    if record.status != 200 or wish.gzip or wish.framing == "close" or wish.do in ("error_first", "short"):
        return
    sent = script(wish, record.request.id.encode(), record.request.stream, runs[0].usage)
    if sent.events and not wish.at and events != sent.events:
        yield "log", f"{events} events logged, {sent.events} sent"
    has_usage = runs[0].usage if record.request.stream else True
    if has_usage and not wish.at and (tokens_out != wish.events or tokens_in <= 0) and wish.do != "no_finish":
        yield "log", f"{tokens_in}, {tokens_out} tokens logged for {wish.events} sent"


def _left(record: ClientRecord, runs: list[RunRecord], verdict: Verdict, ledgers: Ledgers) -> Found:
    """No run outlives its request: a client that left, and a gateway that gave up, are seen by the backend."""
    for run in runs:
        if run.end == "open":
            yield "orphan", f"still running on {run.backend} at rest"
        elif run.end == "aborted" and record.seen == "left":
            wait_s = run.ended_s - max(record.ended_s, run.started_s)
            verdict.abort_s.append(wait_s)
            if wait_s > ABORT_LIMIT_S and not ledgers.stalled(record.ended_s, run.ended_s):
                yield "orphan", f"{run.backend} saw the client's leaving after {wait_s:.1f} s"


def _strays(ledgers: Ledgers) -> Iterable[Breach]:
    """Runs and log lines of requests that no client sent, and bytes that no client asked for."""
    for request_id in ledgers.runs:
        if request_id not in ledgers.clients:
            yield Breach(request_id, "changed", "a run of a request that no client sent")
    for text in ledgers.strays:
        yield Breach("-", "changed", text)
