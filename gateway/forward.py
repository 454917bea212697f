"""The life of one request: read, route, wait, connect, send, relay, settle. Shell; one owner object per request.

Every exit passes through `_settle` exactly once: it releases the replica, the key's slot, the held bytes and the
connection. A POST is sent again only if it provably did not run: no connection, or a 429 or 503; a GET may be repeated.
A failure is one JSON error while nothing is out, else one error event and a broken end, else the broken end alone.
"""

from typing import TYPE_CHECKING

from gateway import promises, refusals, wait_status
from gateway.accounts import Account, End
from gateway.answer import Answer, write_own
from gateway.api import Refusal
from gateway.dispatch import Ask
from gateway.intake import Intake
from gateway.patience import AGAINST_BACKEND, Patience, silent_s
from gateway.placement import NOT_STARTED, Placement
from gateway.relay.heads import request_head
from gateway.relay.http1 import CONTINUE, ProtocolError
from gateway.relay.pool import BackendPool
from gateway.relay.requests import RequestHead
from gateway.relay.responses import ResponseHead
from gateway.relay.splice import EMPTY, BodyFields, Piece
from gateway.relay.upstream import Lost, UpstreamConnection
from gateway.replica import Replica
from gateway.signals import request_id

if TYPE_CHECKING:
    from gateway.relay.downstream import ClientConnection
    from gateway.server import DataPlane

NEVER = float("inf")
CONNECT_SLACK_S = 2.0


class Exchange:
    """One request and its answer."""

    # defaults stand on the class: most requests never set most of these
    _phase = "read"
    _pieces: tuple[Piece, ...] = ()
    _fields: BodyFields = EMPTY
    _strip = False
    _entered = False
    _placement: Placement | None = None
    _connection: UpstreamConnection | None = None
    _answer: Answer | None = None
    _ended = False
    _settled = False
    _dropped = False

    def __init__(self, plane: "DataPlane", client: "ClientConnection") -> None:
        self._plane = plane
        self._client = client
        self._intake = Intake(plane)
        self._batch: list[bytes] = []
        self._patience = Patience()
        self.account = Account(plane.now())

    def __repr__(self) -> str:
        return f"<Exchange {self.account.request_id} {self._phase} {self.account.model} on {self.account.backend or '-'}>"

    # -- read: called by the client's connection

    def read_head(self, head: RequestHead, length: int) -> bool:
        """Judge the head. False: the answer is known and the upload is not wanted."""
        plane, intake, account = self._plane, self._intake, self.account
        account.request_id = request_id(head.values.get(b"x-request-id"), plane.ids)
        intake.judge(head, length)
        verdict = intake.verdict
        account.route = verdict.local.what if verdict.local is not None else verdict.route.label
        if verdict.client is not None:
            account.sent_by(verdict.client.spec)
        if intake.refusal is None and head.expects_continue and self._client.first_in_line:
            self._client.write(CONTINUE)
        return intake.wants_upload

    def read_piece(self, piece: bytes) -> None:
        """One piece of the body."""
        if not self._intake.take(piece):
            self._client.stop_reading_body()

    def refuse_protocol(self, error: ProtocolError) -> None:
        """The client broke HTTP: answer that, whatever came before."""
        self.account.request_id = self.account.request_id or request_id(None, self._plane.ids)
        self._intake.refusal = Refusal(error.status, "bad_request", f"{error.message[:1].upper()}{error.message[1:]}.")
        self.begin()

    def begin(self) -> None:
        """The request is read (or refused) and its turn has come."""
        intake, account = self._intake, self.account
        account.accepted_s = self._plane.now()
        if intake.refusal is not None:
            self.refuse(intake.refusal)
        elif intake.verdict.local is not None:
            self._answer_own(*self._plane.local_answer(intake.verdict.local, account.owner), "complete", "")
        else:
            self._phase = "parse"
            try:
                intake.read(self._parsed)
            except Refusal as refusal:
                self.refuse(refusal)

    # -- route

    def _parsed(self, fields: BodyFields) -> None:
        if self._settled:
            return
        try:
            if self._intake.refusal is not None:
                raise self._intake.refusal
            self._route(fields)
        except Refusal as refusal:
            self.refuse(refusal)

    def _route(self, fields: BodyFields) -> None:
        """Resolve the model, check the caps, and look for a place. Raises Refusal."""
        plane, account, intake = self._plane, self.account, self._intake
        head = intake.head
        assert head is not None
        self._fields = fields
        account.stream, account.body_bytes = fields.stream, len(intake.body)
        if plane.books.tracer is not None:
            account.trace = plane.books.tracer.joined(head.values.get(b"traceparent", b""))
        if fields.n > plane.limits.n:
            raise refusals.n_too_large(plane.limits.n)
        if response_id := intake.verdict.route.response_id or fields.previous_response_id:
            self._pin(response_id)
            return
        account.model = model = plane.resolved(fields.model)
        verdict = intake.verdict
        if verdict.asked is not None or plane.has_classes or fields.agent_deadline_s < NEVER:
            promises.promise(plane.classes, verdict.client, verdict.asked, account, fields)
        self._entered = promises.enter(verdict.client, account, plane.now())
        self._pieces, self._strip = intake.edited(intake.body, fields, model)
        ask = Ask(model, verdict.session or fields.session, len(intake.body) // 4)
        due_s = promises.due_s(account, head.values, plane.config.queue.timeout_s)
        placement = self._placement = Placement(plane, self, ask, verdict.route.kind, fields.stream, due_s)
        placement.admit_now = verdict.asked is not None and verdict.asked.admit_now
        if plane.fleet.has_drops:
            placement.avoid_droppers(intake.liken() or 0)
        placement.begin(intake.body, fields)

    def _pin(self, response_id: str) -> None:
        """A stored response lives on the backend that made it, for the key that asked for it."""
        plane, key = self._plane, self._intake.verdict.client
        replica = plane.home(response_id, key.spec.sha256 if key is not None else "")
        self.account.model = self._fields.model or (replica.models[0] if replica.models else "")
        self._entered = promises.enter(key, self.account, plane.now())
        self._placement = Placement(plane, self, None, self._intake.verdict.route.kind, self._fields.stream, NEVER)
        self._placement.go(replica)

    # -- wait, connect, send: called by the placement

    def on_waiting(self, due_s: float) -> None:
        """In the line."""
        self._phase, self._client.due_s = "queue", due_s
        wait_status.begin(self._plane, self._client, self._intake, self.account)

    def on_connecting(self) -> None:
        """A replica is chosen, a connection is being made; connecting has its own limit."""
        self._phase = "connect"
        limit_s = self._plane.timeouts.connect_s + CONNECT_SLACK_S
        self._client.due_s = promises.strict_due_s(self.account, self._plane.now() + limit_s)

    def on_placed(self, pool: BackendPool, connection: UpstreamConnection) -> None:
        """Send the request. From here on it may have run."""
        plane, account = self._plane, self.account
        pieces, verdict = self._pieces or (self._intake.body,), self._intake.verdict
        self._connection, self._phase = connection, "sent"
        now_s = account.sent_s = plane.now()
        self._client.due_s = now_s + silent_s(plane.timeouts, self._fields.stream)
        lines, replica = verdict.lines_identity if self._strip else verdict.lines, self._replica
        if account.promise is not None or replica.scheduling or pool.as_session or replica.identity.recall:
            more, pieces = promises.outgoing(plane, account, replica, self._fields, pieces, now_s, plane.wall.unix_ms())
            lines += more
        if account.trace is not None:
            lines = account.trace.in_lines(lines)
        size = len(pieces[0]) if len(pieces) == 1 else sum([len(piece) for piece in pieces])
        name = account.request_id.encode()
        request = request_head(verdict.method, lines, pool.prefix, pool.hop_lines, size, name, pool.as_session)
        connection.send(self, size, request, *pieces)
        self._client.hasten()

    # -- the answer: called by the backend's connection

    def on_response(self, head: ResponseHead) -> None:
        """The status line and fields are here."""
        plane, placement, status, replica = self._plane, self._placement, head.status, self._replica
        assert placement is not None
        assert self._intake.head is not None
        now_s = self._patience.heard_s = plane.now()
        plane.fleet.responded(replica, status, head.values, self._intake.likeness(status), now_s, self.account.sent_s)
        if status in NOT_STARTED and placement.retry_elsewhere():
            self._let_go()
            return
        self.account.status = status
        self._drop_body()
        self._phase = "answer"
        self._client.due_s = now_s + plane.timeouts.idle_s
        if 300 <= status < 400 and b"location" in head.values:
            self._cut(refusals.redirected())
            return
        self._answer = Answer(
            plane, self._client, self.account, self._intake.head, head, self._intake.verdict.route, self._fields.n, self._strip
        )
        placement.answering(self._answer)
        if self._client.paused:
            self.on_paused(True)

    @property
    def _replica(self) -> Replica:
        """Where the request is; only while it is somewhere."""
        placement = self._placement
        assert placement is not None
        assert placement.replica is not None
        return placement.replica

    def on_body(self, piece: bytes) -> None:
        """One piece of the body, within a read."""
        self._batch.append(piece)

    def on_chunks(self, data: bytes) -> bool:
        """Whole chunks with whole events: most of a stream's life passes here. False: tell it as pieces."""
        answer, placement = self._answer, self._placement
        if answer is None or placement is None or placement.replica is None or not answer.relay_chunks(data):
            return False
        self._patience.heard_s = placement.replica.last_byte_s = self._plane.now()
        return True

    def on_end(self) -> None:
        """The body is whole."""
        self._ended = True

    def on_batch(self) -> None:
        """One read from the backend is parsed: pass on what may go."""
        answer, placement = self._answer, self._placement
        if answer is None or placement is None or self._settled:
            return
        batch, account, verdict = self._batch, self.account, self._intake.verdict
        data = batch[0] if len(batch) == 1 else b"".join(batch)
        batch.clear()
        begins = bool(data) and account.first_byte_s < 0
        if data:
            self._patience.heard_s = self._replica.last_byte_s = now_s = self._plane.now()
            if begins:
                account.first_byte_s = now_s
                if verdict.route.face == "responses" and account.status == 200 and verdict.client is not None:
                    self._plane.response_homes.remember(data, account.backend, verdict.client.spec.sha256)
        progress = answer.relay(data, self._ended)
        if begins:
            placement.first_token()  # its client has it already: what is planned upon it may take longer
        if progress == "done":
            self._connection = None
            self._settle("complete", "", answer.keep_alive)
        elif progress == "cut":
            self._connection = None
            self._fail("stream_cut", "The backend ended the stream before it was complete.")

    def on_lost(self, how: Lost, message: str) -> None:
        """The backend's connection broke while the request was on it."""
        connection, self._connection = self._connection, None
        placement, head = self._placement, self._intake.head
        if self._settled or placement is None or head is None or connection is None:
            return
        if how == "reset" and self._answer is None and placement.repeat(head.method, connection):
            return
        self._plane.fleet.failed(self._replica, "reset", message, self._intake.liken(), self._plane.now(), self.account.sent_s)
        if self._answer is not None:
            self._fail("backend_lost", "The backend broke the connection in the middle of its answer.")
            return
        self.refuse(refusals.backend_lost(malformed=how == "protocol"))

    # -- deadlines and ends

    def on_due(self, now_s: float) -> None:
        """A deadline passed; which one depends on the phase."""
        if self._phase == "queue":
            if self._placement is None or not self._placement.insist():
                wait_s = self._plane.drain_wait_s(self.account.model)
                self.refuse(promises.waited_too_long(self.account, self._placement, wait_s, now_s))
        elif self._phase == "connect":
            self.refuse(refusals.connect_failed())
        elif self._phase == "sent" or self._phase == "answer":
            self._look(now_s)

    def _look(self, now_s: float) -> None:
        """Whether the backend, or the client, was waited for long enough."""
        account, timeouts, patience, replica = self.account, self._plane.timeouts, self._patience, self._replica
        end_s = account.arrived_s + timeouts.total_s
        if self._phase == "sent":
            stream = self._fields.stream
            limit, due_s = patience.first_byte(timeouts, now_s, account.sent_s, end_s, stream=stream, paused=replica.paused)
        else:
            limit, due_s = patience.answer(timeouts, now_s, end_s, paused=replica.paused)
        if not limit:
            self._client.due_s = due_s
        elif limit == "stalled":
            account.reason = "reads too slowly"
            self._client.abort()
        else:
            if limit in AGAINST_BACKEND:
                self._plane.fleet.failed(replica, "timeout", AGAINST_BACKEND[limit], None, now_s, account.sent_s)
            self._cut(refusals.too_late(limit))

    def on_paused(self, paused: bool) -> None:
        """The client's side is full, or free again: so is reading from the backend."""
        now_s = self._plane.now()
        self._patience.stalled_s = now_s if paused else NEVER
        connection, placement = self._connection, self._placement
        if connection is not None and placement is not None:
            placement.stalled(paused)
            self._patience.heard_s = now_s
            connection.pause() if paused else connection.resume()

    def on_gone(self) -> None:
        """The client left."""
        if not self._settled:
            self._settle("client_gone", self.account.reason or f"in phase {self._phase}", keep_alive=False)

    def drain_cut(self) -> None:
        """The gateway's drain limit is reached: whoever is still here gets one error."""
        if not self._settled:
            self._cut(refusals.shutting_down(may_have_run=self._phase in ("sent", "answer")))

    def _cut(self, refusal: Refusal) -> None:
        """Leave the backend and tell the client, in whatever way is still possible."""
        self._let_go()
        if self._answer is not None:
            self._fail(refusal.code, refusal.message, refusal)
        else:
            self.refuse(refusal)

    def _fail(self, code: str, message: str, refusal: Refusal | None = None) -> None:
        """The answer can't be completed."""
        answer = self._answer
        assert answer is not None
        if not answer.head_out:
            self.refuse(refusal or Refusal(502, code, message, may_have_run=True))
        else:
            self._settle("failed_in_stream", code, keep_alive=False, broken=not answer.fail(code, message))

    def refuse(self, refusal: Refusal) -> None:
        """One error answer of ours; nothing is out yet."""
        if self._settled:
            return
        end: End = "failed_before_first_byte" if self.account.attempts and refusal.status >= 500 else "refused"
        body = refusal.body(self._intake.verdict.route.face)
        self._answer_own(refusal.status, refusal.headers, body, end, refusal.code)

    def _answer_own(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes, end: End, reason: str) -> None:
        self.account.status = status
        keep_alive = write_own(self._client, self._intake.head, self.account, headers, body, draining=self._plane.draining)
        self._settle(end, reason, keep_alive)

    # -- settle

    def _drop_body(self) -> None:
        self._dropped = True
        if self._plane.fleet.has_drops:
            self._intake.liken()
        self._pieces = ()
        self._intake.release()

    def _let_go(self) -> None:
        """Break off what the backend does for us, if anything."""
        if self._connection is not None:
            self._connection.abandon()
        self._connection = None

    def _settle(self, end: End, reason: str, keep_alive: bool, broken: bool = False) -> None:
        """The one exit."""
        assert not self._settled
        self._settled = True
        plane, account, intake = self._plane, self.account, self._intake
        account.end, account.reason, account.finished_s = end, reason, plane.now()
        if self._answer is not None and self._answer.account() and end == "complete":
            account.end, account.reason = "failed_in_stream", "the backend said so"
        intake.stop()
        self._let_go()
        if self._placement is not None:
            self._placement.stop(account.end == "complete")
            self._placement = None  # they hold each other
        if self._entered:
            assert intake.verdict.client is not None
            intake.verdict.client.left(account)
        if not self._dropped:
            self._drop_body()
        if broken:
            self._client.abort()
        elif end != "client_gone":
            self._client.finished(keep_alive)
        plane.settled(account)
