"""A waiting request's status on its own stream, for clients that ask for it (`x-leeway-wait-status: sse`). Shell.

Then, and only then, a 200 precedes the engine's (a tool that measures would take what is written before for the first
token): the head of an event stream, and an event `leeway.status` now and every TELL_S until the request goes to an engine.
What is written next to the connection is looked at once: the head of the engine's stream is taken off and the stream goes
on as it is; anything else (a refusal, an engine's error) becomes one error event and the end of the stream. HTTP/1.0
clients are not told.
"""

from typing import TYPE_CHECKING

import orjson

from gateway.accounts import Account
from gateway.relay.heads import connection_line
from gateway.relay.http1 import LAST_CHUNK, chunk
from gateway.relay.sse import Face, error_event

if TYPE_CHECKING:
    from gateway.intake import Intake
    from gateway.relay.downstream import ClientConnection
    from gateway.server import DataPlane

TELL_S = 1.0
HEAD_BYTES_MAX = 65536
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)


def begin(plane: "DataPlane", client: "ClientConnection", intake: "Intake", account: Account) -> None:
    """Tell of the wait from now on, if the client asked for that. Harmless when it is told of already."""
    said, head = intake.verdict.asked, intake.head
    if said is None or not said.wait_status or not account.stream or account.wait_told or head is None or head.old:
        return
    account.wait_told = True
    WaitStatus(plane, client, account, intake.verdict.route.face).begin(keep_alive=head.keep_alive)


class WaitStatus:
    """Has the connection's next write diverted to itself, and writes aside until then."""

    _over = False

    def __init__(self, plane: "DataPlane", client: "ClientConnection", account: Account, face: Face) -> None:
        self._plane = plane
        self._client = client
        self._account = account
        self._face = face

    def begin(self, *, keep_alive: bool) -> None:
        """The head, and the first event."""
        lines = b"x-request-id: %b\r\n" % self._account.request_id.encode()
        framing = b"transfer-encoding: chunked\r\n" + connection_line(keep_alive, old_client=False)
        self._client.write(b"%b%b%b\r\n" % (_HEAD, lines, framing))
        self._client.divert(self._first_write)
        self._tell()

    def _tell(self) -> None:
        if self._over or self._account.dispatched_s >= 0 or self._account.finished_s:
            return  # answered, on its way, or gone
        plane, account, now_s = self._plane, self._account, self._plane.now()
        waiting = plane.line.waiting(account.model) + plane.desks.waiting_for(account.model)
        status: dict[str, object] = {
            "object": "leeway.status",
            "id": account.request_id,
            "state": "waiting",
            "waiting": waiting,
            "waited_ms": int((now_s - account.accepted_s) * 1e3),
            "expected_wait_ms": plane.drain_wait_s(account.model) * 1000,
        }
        if account.promise is not None and account.deadline_s < float("inf"):
            status["budget_left_ms"] = int((account.deadline_s - now_s) * 1e3)
        if plane.lodging.on and (start_s := plane.lodging.expected_s(account.model, now_s)):
            status["expected_start_ms"] = int(start_s * 1e3)  # its model lies on no device
        self._client.aside(chunk(b"event: leeway.status\ndata: %b\n\n" % orjson.dumps(status)))
        plane.loop.call_later(TELL_S, self._tell)

    def _first_write(self, data: bytes) -> None:
        """The answer begins: its head is out already, in our words."""
        self._over = True
        self._client.undivert()
        at = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX) + 4
        head, rest = data[:at].lower(), data[at:]
        if at >= 4 and head.startswith(b"http/1.1 200") and b"\r\ncontent-type: text/event-stream" in head:
            if rest:
                self._client.write(rest)
            return
        self._client.write(chunk(self._as_event(head, rest)) + LAST_CHUNK)
        if b"\r\ncontent-length: %d\r\n" % len(rest) not in head:
            self._client.abort()  # more of it comes, and there is no place for it

    def _as_event(self, head: bytes, body: bytes) -> bytes:
        """An answer that is no stream of events, as the error event that a client of this face knows."""
        code, message = "backend_error", "The backend answered with an error: " + head[9:12].decode(errors="replace")
        try:
            error = orjson.loads(body)["error"]
            message = str(error["message"])[:2000]
            code = str(error.get("code") or error.get("type") or code)[:100]
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            pass
        return error_event(self._face, code, message)
