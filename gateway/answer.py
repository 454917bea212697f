"""The last phase: a backend's answer on its way to the client, byte for byte, in our own framing.

Nothing goes out before the status line and, on streams, the first whole event. Short answers are held until they are
whole, so that one which breaks can still become a clean error. Shell only by writing to the client's connection.
"""

from typing import TYPE_CHECKING, Literal

from gateway.accounts import Account
from gateway.api import Route
from gateway.relay.heads import connection_line, own_answer, response_lines
from gateway.relay.http1 import LAST_CHUNK, chunk
from gateway.relay.requests import RequestHead
from gateway.relay.responses import ResponseHead
from gateway.relay.sse import EventFramer, StreamWatch, cut_off, error_event, find_tokens
from gateway.slo import NEVER
from gateway.spending import predicted_ttft_s

if TYPE_CHECKING:
    from gateway.relay.downstream import ClientConnection
    from gateway.server import DataPlane

Progress = Literal["more", "done", "cut"]
_CHUNKED = b"transfer-encoding: chunked\r\n"
_SSE_EXTRA = b"x-accel-buffering: no\r\n"
_NO_CACHE = b"cache-control: no-cache\r\n"
TOKENS_TAIL_BYTES = 4096


class Answer:
    """One response being relayed. `head_out`: something has reached the client, so only a stream error can follow."""

    # defaults stand on the class: most answers never set these
    head_out = False
    keep_alive = False  # whether its head says that the client's connection may go on
    _framer: EventFramer | None = None
    _watch: StreamWatch | None = None
    _held: list[bytes] | None = None
    _held_bytes = 0
    _chunked = False
    _by_close = False
    _passing: StreamWatch | None = None  # the watch, while chunks of ours may be the backend's own

    def __init__(
        self,
        plane: "DataPlane",
        client: "ClientConnection",
        account: Account,
        request: RequestHead,
        response: ResponseHead,
        route: Route,
        choices: int,
        strip_usage: bool,
    ) -> None:
        self._plane = plane
        self._client = client
        self._account = account
        self._request = request
        self._response = response
        self._route = route
        self._choices = choices
        if response.is_sse and b"content-encoding" not in response.values:
            self._framer = EventFramer(plane.limits.event_hold_bytes)
            self._watch = StreamWatch(route.face, strip_usage)

    @property
    def counts_tokens(self) -> bool:
        """Whether its tokens can be counted while they come: it is a stream of events."""
        return self._watch is not None

    @property
    def generated(self) -> int:
        """Events so far, about one for each token."""
        return 0 if self._watch is None else self._watch.events

    @property
    def computed(self) -> int:
        """Nobody can say."""
        return -1

    def relay(self, data: bytes, ended: bool) -> Progress:
        """What one read from the backend brought. `cut`: it ended, but not as a whole answer."""
        if self._framer is not None:
            return self._relay_events(data, ended)
        return self._relay_plain(data, ended)

    def relay_chunks(self, data: bytes) -> bool:
        """Pass whole chunks that hold whole events on as they came. False when they need more than a glance."""
        if self._passing is None or not self._passing.glance(data):
            return False
        self._client.write(data)
        return True

    def _relay_events(self, data: bytes, ended: bool) -> Progress:
        framer, watch = self._framer, self._watch
        assert framer is not None
        assert watch is not None
        out = watch.see(framer.feed(data)) if data else b""
        if not ended:
            if out:
                self._write(out)
            self._passing = watch if self._chunked and framer.between_events else None
            return "more"
        self._passing = None
        tail = framer.rest()
        if tail:
            tail = watch.see(tail)
        if watch.complete(self._choices):
            self._finish(out + tail)
            return "done"
        if out:
            self._write(out)
        return "cut"

    def _relay_plain(self, data: bytes, ended: bool) -> Progress:
        if not ended:
            if not data:
                return "more"
            if self.head_out:
                self._held = [data]  # the tail, for the token counts at the end
                self._write(data)
                return "more"
            held = self._held = [*(self._held or ()), data]
            self._held_bytes += len(data)
            if self._held_bytes > self._plane.limits.answer_hold_bytes:
                whole = b"".join(held)
                self._held = [whole[-TOKENS_TAIL_BYTES:]]
                self._write(whole)
            return "more"
        if self.head_out:
            tail = (self._held[-1] if self._held else b"") + data
        else:
            data = tail = b"".join((*self._held, data)) if self._held else data
        account = self._account
        account.prompt_tokens, account.output_tokens = find_tokens(tail[-TOKENS_TAIL_BYTES:])
        account.truncated = cut_off(tail[-TOKENS_TAIL_BYTES:])
        self._finish(data)
        return "done"

    def fail(self, code: str, message: str) -> bool:
        """Tell the client inside the stream. False when only the broken connection can tell (part of an event is out)."""
        framer = self._framer
        if framer is None or framer.broken:
            return False
        event = error_event(self._route.face, code, message)
        self._client.write(chunk(event) if self._chunked else event)
        return True

    def account(self) -> bool:
        """Fill in what the stream showed. True when the backend itself reported an error in it."""
        watch, account = self._watch, self._account
        if watch is None:
            return False
        account.events = watch.events
        account.prompt_tokens, account.output_tokens = watch.prompt_tokens, watch.output_tokens
        account.truncated = watch.truncated
        return watch.errored

    # -- writing

    def _head_bytes(self, whole_length: int) -> bytes:
        response, old = self._response, self._request.old
        self.head_out = True
        extra = own_lines(self._account)
        bodiless = response.status == 204 or response.status == 304
        if self._framer is not None:
            extra += _SSE_EXTRA if b"cache-control" in response.values else _SSE_EXTRA + _NO_CACHE
        length = response.values.get(b"content-length")
        if bodiless:
            framing = b""
        elif self._framer is None and whole_length >= 0:
            # not the head's own figure: a head that was recognised, not parsed, still holds an earlier answer's length
            framing = b"content-length: %d\r\n" % whole_length
        elif self._framer is None and length is not None:
            framing = b"content-length: %b\r\n" % length
        elif old:
            framing, self._by_close = b"", True
        else:
            framing, self._chunked = _CHUNKED, True
        stays = self._request.keep_alive and not self._by_close and not self._plane.draining and not self._client.ending
        self.keep_alive = stays
        return b"%b%b%b%b\r\n" % (response_lines(response), extra, framing, connection_line(stays, old))

    def _write(self, data: bytes) -> None:
        self._account.answer_bytes += len(data)
        if self.head_out:
            self._client.write(chunk(data) if self._chunked else data)
        else:
            head = self._head_bytes(-1)
            self._client.write(head + (chunk(data) if self._chunked else data))

    def _finish(self, data: bytes) -> None:
        self._account.answer_bytes += len(data)
        head = b"" if self.head_out else self._head_bytes(len(data))
        if self._chunked:
            head += (chunk(data) if data else b"") + LAST_CHUNK
        else:
            head += data
        if head:
            self._client.write(head)


def own_lines(account: Account) -> bytes:
    """Our own header lines on a relayed answer; times in milliseconds. `predict` is the time from dispatch to the first
    token that was predicted, where one was."""
    lines = b"x-request-id: %b\r\nx-leeway-backend: %b\r\nserver-timing: queue;dur=%.2f, connect;dur=%.2f" % (
        account.request_id.encode(),
        account.backend.encode(),
        (account.dispatched_s - account.accepted_s) * 1e3,
        (account.sent_s - account.dispatched_s) * 1e3,
    )
    lines += b", predict;dur=%.2f\r\n" % (account.predicted_s * 1e3) if account.predicted_s >= 0 else b"\r\n"
    return lines if account.promise is None else lines + promise_lines(account)


def promise_lines(account: Account) -> bytes:
    """What is told of a promise: what was left of its budget when the answer began, its tier, the first token foretold."""
    lines = b"x-leeway-tier: %d\r\n" % account.tier
    if account.deadline_s < NEVER:
        begun_s = account.first_byte_s if account.first_byte_s >= 0 else account.sent_s
        lines += b"x-leeway-budget-left-ms: %d\r\n" % int((account.deadline_s - begun_s) * 1e3)
    if account.predicted_s >= 0:
        lines += b"x-leeway-predicted-ttft-ms: %d\r\n" % int(predicted_ttft_s(account) * 1e3)
    return lines


def write_own(
    client: "ClientConnection",
    head: RequestHead | None,
    account: Account,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    *,
    draining: bool,
) -> bool:
    """Write a whole answer of ours, with `account.status`. Gives whether the connection may go on."""
    keep_alive = head is not None and head.keep_alive and not draining and not client.ending
    lines = [*headers, (b"x-request-id", account.request_id.encode())]
    if account.backend:
        lines.append((b"x-leeway-backend", account.backend.encode()))
    old = head is not None and head.old
    bodiless = head is not None and head.method == b"HEAD"
    client.write(own_answer(account.status, lines, body, keep_alive=keep_alive, old_client=old, bodiless=bodiless))
    return keep_alive
