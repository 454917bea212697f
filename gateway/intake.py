"""The first phase of a request: judge its head, collect its body, read the few fields that routing needs.

Shell only by its use of the loop for sliced scans; all that it decides is refusal or not. Nothing here knows a backend.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from gateway import refusals
from gateway.api import LocalRoute, Refusal, Route, route
from gateway.hops import came_back
from gateway.relay.heads import request_lines
from gateway.relay.requests import RequestHead
from gateway.relay.splice import (
    EMPTY,
    PARSER_DEPTH,
    BodyError,
    BodyFields,
    Edit,
    Piece,
    Scan,
    Span,
    edited,
    model_edit,
    multipart_field,
    multipart_span,
    parse_small,
    usage_edit,
)
from gateway.signals import session_key
from gateway.slo import Asked, SloError, asked
from gateway.suspicion import likeness

if TYPE_CHECKING:
    from gateway.auth import Client, Keyring
    from gateway.server import DataPlane

SCAN_TOKENS = 1024
SCANNED_AT_ONCE_BYTES = 8192
SMALL_UPLOAD_BYTES = 65536
JOINED_AT_ONCE_BYTES = 4_194_304  # a millisecond or two
_AS_IT_IS = (b"", b"identity")
_NO_ROUTE = Route()


class Verdict:
    """What follows from a head alone, kept with it: clients repeat their heads. Holds for one keyring."""

    keyring: "Keyring | None" = None
    route: Route = _NO_ROUTE
    local: LocalRoute | None = None
    client: "Client | None" = None
    refusal: Refusal | None = None
    method = b"POST"
    lines = b""
    lines_identity = b""
    session = ""
    asked: Asked | None = None


def _judged(head: RequestHead, keyring: "Keyring", priority_stays: bool, mark: bytes) -> Verdict:
    verdict = Verdict()
    verdict.keyring = keyring
    try:
        found = route(head)
        if isinstance(found, LocalRoute):
            verdict.local = found
        else:
            verdict.route = found
        if verdict.local is None or verdict.local.what in ("models", "model", "request"):
            verdict.client = keyring.find(head.values.get(b"authorization"), head.values.get(b"x-api-key"))
            if verdict.client is None:
                raise Refusal(401, "invalid_api_key", "A valid API key is needed (Authorization: Bearer KEY, or x-api-key).")
        if head.values.get(b"content-encoding", b"").strip().lower() not in _AS_IT_IS and verdict.local is None:
            raise refusals.encoded_body()
        if verdict.local is None and b"via" in head.values and came_back(head.headers, mark):
            raise refusals.loops()
        verdict.asked = asked(head.values)
    except Refusal as refusal:
        verdict.refusal = refusal
        return verdict
    except SloError as error:
        verdict.refusal = Refusal(400, "invalid_slo", str(error), param=error.header)
        return verdict
    if verdict.local is None:
        verdict.method = head.method
        verdict.lines = request_lines(head, identity=False, priority_stays=priority_stays)
        verdict.lines_identity = request_lines(head, identity=True, priority_stays=priority_stays)
        verdict.session = session_key(head.values)
    return verdict


_NO_VERDICT = Verdict()
_NO_SPANS: Mapping[str, Span] = MappingProxyType({})  # one for all requests


class Intake:
    """What the client sent. `refusal` is set once it is known that no backend will see it; `body` holds the whole body
    from `read` to `release`."""

    verdict: Verdict = _NO_VERDICT
    head: RequestHead | None = None
    refusal: Refusal | None = None
    body = b""
    body_hash: int | None = None  # stays when the body is released, if `liken` was asked before
    _stopped = False
    _length = 0
    _size = 0
    _charged_bytes = 0
    _scan: Scan | None = None
    _pieces: list[bytes] | None = None
    _first = b""
    _spans: Mapping[str, Span] = _NO_SPANS
    _form = b""

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane

    def judge(self, head: RequestHead, length: int) -> None:
        """Route and authenticate by the head alone."""
        self.head = head
        self._length = length
        verdict = head.derived
        if type(verdict) is not Verdict or verdict.keyring is not self._plane.keyring:
            stays = self._plane.config.slo.client_priority == "respect"
            verdict = head.derived = _judged(head, self._plane.keyring, stays, self._plane.mark)
        self.verdict = verdict
        self.refusal = verdict.refusal
        if length > self._plane.limits.body_bytes and self.refusal is None:
            self.refusal = self._too_large()

    @property
    def wants_upload(self) -> bool:
        """Whether the rest of the body is worth reading: it is accepted, or too small to matter."""
        if self.refusal is None:
            return True
        assert self.head is not None
        return not self.head.expects_continue and 0 <= self._length <= SMALL_UPLOAD_BYTES

    def take(self, piece: bytes) -> bool:
        """One piece of the body. False: refused, stop reading."""
        self._size += len(piece)
        if self.refusal is not None:
            return self._size <= SMALL_UPLOAD_BYTES
        plane = self._plane
        if self._size > plane.limits.body_bytes:
            self.refusal = self._too_large()
        elif not plane.charge_body(len(piece), self._size > SMALL_UPLOAD_BYTES):
            self.refusal = Refusal(503, "bodies_full", "Too many request bodies are held at once.", retry_after_s=1)
        else:
            self._charged_bytes += len(piece)
            if not self._first:
                self._first = piece
            elif self._pieces is None:
                self._pieces = [self._first, piece]
            else:
                self._pieces.append(piece)
            return True
        self._first, self._pieces = b"", None
        return False

    def read(self, then: Callable[[BodyFields], None]) -> None:
        """Make the body whole, and go on as `parse` does."""
        first, pieces = self._first, self._pieces
        self._first, self._pieces = b"", None
        if pieces is not None and self._size > JOINED_AT_ONCE_BYTES:
            self._plane.spawn(self._join(pieces, then))
            return
        self.body = first if pieces is None else b"".join(pieces)
        self.parse(self.body, then)

    async def _join(self, pieces: list[bytes], then: Callable[[BodyFields], None]) -> None:
        """On another thread: joining lets go of the interpreter's lock."""
        self.body = await self._plane.loop.run_in_executor(None, b"".join, pieces)
        if self._stopped:
            self.release()
            return
        try:
            self.parse(self.body, then)
        except Refusal as refusal:
            self.refusal = refusal
            then(EMPTY)

    def liken(self) -> int | None:
        """What tells this body from others, reckoned once; what has no body is told by its target. None once it is released."""
        if self.body_hash is None:
            if self.body:
                self.body_hash = likeness(self.body)
            elif self.head is not None and self.verdict.method != b"POST":
                self.body_hash = hash((self.verdict.method, self.head.path, self.head.query))
        return self.body_hash

    def likeness(self, status: int) -> int | None:
        """The same, where an answer of that status asks for it, or it is known."""
        return self.liken() if status >= 500 else self.body_hash

    def release(self) -> None:
        """The body's bytes are no longer held."""
        self._first, self._pieces, self.body = b"", None, b""
        if self._charged_bytes:
            self._plane.release_body(self._charged_bytes)
            self._charged_bytes = 0

    def parse(self, body: bytes, then: Callable[[BodyFields], None]) -> None:
        """Hand the body's fields to `then`: at once, or after slices of scanning between other work. Raises Refusal
        when that is known at once; later refusals are set and `then` gets EMPTY."""
        head, plane = self.head, self._plane
        assert head is not None
        content_type = head.values.get(b"content-type", b"")
        try:
            if self.verdict.route.response_id:
                then(EMPTY)
                return
            if content_type.startswith(b"multipart/"):
                self._form = content_type
                then(BodyFields(model=multipart_field(body, content_type, b"model")))
                return
            small = len(body) <= plane.limits.parse_bytes and plane.limits.json_depth >= PARSER_DEPTH
            fields = parse_small(body) if small else None
            if fields is None or (len(body) > SCANNED_AT_ONCE_BYTES and self._edits(fields)):
                self._scan = Scan(body, plane.limits.json_depth)
                self._scan_on(then)
                return
        except BodyError as error:
            raise _invalid(error) from None
        then(fields)

    def _scan_on(self, then: Callable[[BodyFields], None]) -> None:
        scan = self._scan
        if scan is None:
            return
        try:
            if not scan.step(SCAN_TOKENS):
                self._plane.loop.call_soon(self._scan_on, then)
                return
        except BodyError as error:
            self.refusal = _invalid(error)
        self._scan = None
        self._spans = scan.spans
        then(scan.fields() if self.refusal is None else EMPTY)

    def edited(self, body: bytes, fields: BodyFields, model: str) -> tuple[tuple[Piece, ...], bool]:
        """The documented splices: an alias becomes the model's own name; a stream is asked for its usage.

        (the body to send, in pieces; whether the usage chunk that it brings is ours and not the client's).
        """
        spans, depth, strip = self._spans, self._plane.limits.json_depth, self._strips(fields)
        renamed = fields.model != model and fields.model != ""
        if self._form:
            span = multipart_span(body, self._form, b"model") if renamed else None
            return (edited(body, [(*span, model.encode())]) if span else (body,)), False
        edits: list[Edit] = []
        if strip and (asking := usage_edit(body, fields, depth, spans.get("stream_options"))):
            edits.append(asking)
        if renamed:
            edits.append(model_edit(body, model, depth, spans.get("model")))
        return (edited(body, edits) if edits else (body,)), strip

    def _strips(self, fields: BodyFields) -> bool:
        """Whether the engine is asked for a usage chunk that the client does not want."""
        wanted = fields.stream and not fields.asks_usage
        return wanted and self.verdict.route.asks_usage and self._plane.config.usage == "ask"

    def _edits(self, fields: BodyFields) -> bool:
        """Whether a member inside the body will be replaced, so that its place must be found."""
        renamed = self._plane.resolve(fields.model) not in (None, fields.model) if fields.model else False
        return renamed or (fields.has_stream_options and self._strips(fields))

    def stop(self) -> None:
        """The client left: a scan under way ends."""
        self._scan = None
        self._stopped = True

    def _too_large(self) -> Refusal:
        return Refusal(
            413, "request_too_large", f"The request body is over the limit of {self._plane.limits.body_bytes} bytes."
        )


def _invalid(error: BodyError) -> Refusal:
    text = str(error)
    return Refusal(400, "invalid_body", f"{text[:1].upper()}{text[1:]}.")
