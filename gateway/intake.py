"""The first phase of a request: judge its head, collect its body, read the few fields that routing needs.

Shell only by its use of the loop for sliced scans; all that it decides is refusal or not. Nothing here knows a backend.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.api import LocalRoute, Refusal, Route, route
from gateway.relay.http1 import RequestHead
from gateway.relay.splice import (
    EMPTY,
    BodyError,
    BodyFields,
    Scan,
    multipart_field,
    parse_small,
)

if TYPE_CHECKING:
    from gateway.auth import Client
    from gateway.server import DataPlane

SCAN_TOKENS = 4096
SMALL_UPLOAD_BYTES = 65536
_NO_ROUTE = Route()


class Intake:
    """What the client sent. `refusal` is set once it is known that no backend will see it."""

    __slots__ = ("_charged_bytes", "_pieces", "_plane", "_scan", "_size", "client_key", "head", "local", "refusal", "route")

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self.head: RequestHead | None = None
        self.route: Route = _NO_ROUTE
        self.local: LocalRoute | None = None
        self.client_key: Client | None = None
        self.refusal: Refusal | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._charged_bytes = 0
        self._scan: Scan | None = None

    def judge(self, head: RequestHead) -> None:
        """Route and authenticate by the head alone."""
        self.head = head
        try:
            found = route(head)
            if isinstance(found, LocalRoute):
                self.local = found
                if found.what not in ("models", "model"):
                    return
            else:
                self.route = found
                if head.content_length > self._plane.limits.body_bytes:
                    raise self._too_large()
            self._authenticate(head.values)
        except Refusal as refusal:
            self.refusal = refusal

    @property
    def wants_upload(self) -> bool:
        """Whether the rest of the body is worth reading: it is accepted, or too small to matter."""
        head = self.head
        assert head is not None
        if self.refusal is None:
            return True
        return not head.expects_continue and (not head.has_body or 0 <= head.content_length <= SMALL_UPLOAD_BYTES)

    def take(self, piece: bytes) -> bool:
        """One piece of the body. False: refused, stop reading."""
        self._size += len(piece)
        if self.refusal is not None:
            return self._size <= SMALL_UPLOAD_BYTES
        plane = self._plane
        if self._size > plane.limits.body_bytes:
            self.refusal = self._too_large()
        elif not plane.charge_body(len(piece)):
            self.refusal = Refusal(503, "bodies_full", "Too many request bodies are held at once.", retry_after_s=1)
        else:
            self._charged_bytes += len(piece)
            self._pieces.append(piece)
            return True
        self._pieces = []
        return False

    def body(self) -> bytes:
        """The whole body, given away."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self) -> None:
        """The body's bytes are no longer held."""
        self._pieces = []
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
            if self.route.response_id:
                then(EMPTY)
                return
            if content_type.startswith(b"multipart/"):
                then(BodyFields(model=multipart_field(body, content_type, b"model")))
                return
            fields = parse_small(body) if len(body) <= plane.limits.parse_bytes else None
            if fields is None:
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
        then(scan.fields() if self.refusal is None else EMPTY)

    def stop(self) -> None:
        """The client left: a scan under way ends."""
        self._scan = None

    def _authenticate(self, values: dict[bytes, bytes]) -> None:
        self.client_key = self._plane.keyring.find(values.get(b"authorization"), values.get(b"x-api-key"))
        if self.client_key is None:
            raise Refusal(401, "invalid_api_key", "A valid API key is needed (Authorization: Bearer KEY, or x-api-key).")

    def _too_large(self) -> Refusal:
        return Refusal(
            413, "request_too_large", f"The request body is over the limit of {self._plane.limits.body_bytes} bytes."
        )


def _invalid(error: BodyError) -> Refusal:
    text = str(error)
    return Refusal(400, "invalid_body", f"{text[:1].upper()}{text[1:]}.")
