"""A request's head and body until routing: limits, refusals, and the documented edits whichever way it was parsed."""

import hashlib
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api import Refusal
from gateway.auth import Keyring
from gateway.config import GatewayConfig, KeySpec, Limits
from gateway.intake import SMALL_UPLOAD_BYTES, Intake
from gateway.relay.requests import RequestHead
from gateway.relay.splice import EMPTY, BodyFields
from tests.core.test_splice import bodies, text

KEY = b"sk-canary"
SCANNED = Limits(parse_bytes=0)


class Plane:
    """What an intake needs of its server: settings, a body budget, and a loop that runs what is called soon."""

    def __init__(self, limits: Limits | None = None, keys: tuple[KeySpec, ...] = (), usage: str = "ask") -> None:
        self.limits = limits or Limits()
        self.config = GatewayConfig(usage=usage)  # type: ignore[arg-type]
        self.keyring = Keyring(keys)
        self.mark = b"leeway-0"
        self.loop = self
        self.held_bytes = 0
        self._soon: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()

    def call_soon(self, call: Callable[..., None], *arguments: object) -> None:
        self._soon.append((call, arguments))

    def run(self) -> int:
        """Run what waits; how many calls that were."""
        count = 0
        while self._soon:
            call, arguments = self._soon.popleft()
            call(*arguments)
            count += 1
        return count

    def resolve(self, name: str) -> str | None:
        return {"alias": "a-longer-name"}.get(name, name)

    def charge_body(self, size: int, large: bool) -> bool:
        if self.held_bytes + size > self.limits.bodies_bytes:
            return False
        self.held_bytes += size
        return True

    def release_body(self, size: int) -> None:
        self.held_bytes -= size


def head(method: bytes = b"POST", path: bytes = b"/v1/chat/completions", **fields: bytes) -> RequestHead:
    headers = [(name.replace("_", "-").encode(), value) for name, value in fields.items()]
    return RequestHead(method, path, headers, "1.1", keep_alive=True)


def intake(plane: Plane, of: RequestHead | None = None, length: int = 0) -> Intake:
    made = Intake(plane)  # type: ignore[arg-type]
    made.judge(of or head(), length)
    return made


def edited(made: Intake, body: bytes, fields: BodyFields, model: str) -> bytes:
    pieces = made.edited(body, fields, model)[0]
    return body if pieces[0] is body else b"".join(pieces)


def parsed(made: Intake, plane: Plane, body: bytes) -> BodyFields:
    got: list[BodyFields] = []
    made.parse(body, got.append)
    plane.run()
    (fields,) = got
    return fields


@pytest.mark.parametrize(
    ("of", "status"),
    [
        (head(), 401),
        (head(authorization=b"Bearer " + KEY), 0),
        (head(x_api_key=KEY), 0),
        (head(x_api_key=b"wrong"), 401),
        (head(b"GET", b"/v1/models"), 401),
        (head(b"GET", b"/v1/models/m"), 401),
        (head(b"GET", b"/health"), 0),
        (head(b"OPTIONS"), 0),
        (head(path=b"/nowhere"), 404),
        (head(path=b"/v1/responses/"), 404),
        (head(b"GET"), 405),
    ],
)
def test_a_head_is_judged_before_its_body(of: RequestHead, status: int) -> None:
    plane = Plane(keys=(KeySpec(hashlib.sha256(KEY).hexdigest(), "k"),))
    made = intake(plane, of)
    assert (made.refusal.status if made.refusal else 0) == status
    assert made.verdict.client is None or made.verdict.client.spec.name == "k"
    assert KEY not in made.verdict.lines


def test_equal_heads_share_one_verdict_until_the_keys_change() -> None:
    plane, of = Plane(), head()
    first = intake(plane, of).verdict
    assert intake(plane, of).verdict is first
    plane.keyring = Keyring((KeySpec("0" * 64),))
    assert intake(plane, of).refusal is not None
    assert of.derived is not first


@pytest.mark.parametrize(
    ("length", "expects", "refused", "wants"),
    [
        (1000, False, False, True),
        (1001, False, True, True),  # small enough to read over
        (SMALL_UPLOAD_BYTES + 1, False, True, False),
        (1001, True, True, False),  # the client waits for our word
        (-1, False, False, True),
    ],
)
def test_a_length_over_the_limit_is_refused_by_the_head(length: int, expects: bool, refused: bool, wants: bool) -> None:
    made = intake(Plane(Limits(body_bytes=1000)), head(**({"expect": b"100-continue"} if expects else {})), length)
    assert (made.refusal is not None, made.wants_upload) == (refused, wants)
    assert made.refusal is None or made.refusal.status == 413


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=8))
def test_a_body_is_whole_or_refused_never_cut(sizes: list[int]) -> None:
    plane = Plane(Limits(body_bytes=1000))
    made = intake(plane, length=-1)
    sent = b""
    for at, size in enumerate(sizes):
        piece = bytes([at]) * size
        sent += piece
        took = made.take(piece)
        assert took == (len(sent) <= 1000 or (made._size <= SMALL_UPLOAD_BYTES and made._size - size > 1000))
        assert plane.held_bytes <= 1000
    assert (made.refusal is not None) == (len(sent) > 1000)
    if made.refusal is None:
        with suppress(Refusal):  # no JSON
            made.read(lambda _: None)
        assert made.body == sent
    made.release()
    made.release()
    assert plane.held_bytes == 0


def test_all_bodies_together_are_bounded() -> None:
    plane = Plane(replace(Limits(), bodies_bytes=100))
    first, second = intake(plane), intake(plane)
    assert first.take(b"a" * 60)
    assert not second.take(b"b" * 60)
    assert second.refusal is not None
    assert (second.refusal.status, second.refusal.retry_after_s) == (503, 1)
    second.release()
    assert plane.held_bytes == 60
    first.release()
    assert intake(plane).take(b"c" * 100)


@pytest.mark.parametrize("limits", [Limits(), SCANNED])
def test_a_bad_body_is_a_400_in_the_client_s_words(limits: Limits) -> None:
    for body in (b"", b"[]", b"null", b"{}{}", b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}"):
        plane = Plane(limits)
        made = intake(plane)
        try:
            assert parsed(made, plane, body) == EMPTY
            refusal = made.refusal
        except Refusal as caught:
            refusal = caught
        assert refusal is not None
        assert (refusal.status, refusal.code) == (400, "invalid_body")
        assert refusal.message[0].isupper()
        assert refusal.message.endswith(".")


def test_a_tight_depth_holds_for_small_bodies_too() -> None:
    body = b'{"model":"m","stream":true,"stream_options":{},"a":' + b"[" * 20 + b"]" * 20 + b"}"
    plane = Plane(Limits(json_depth=16))
    made = intake(plane)
    assert (parsed(made, plane, body), made.refusal is not None) == (EMPTY, True)
    plane = Plane(Limits(json_depth=32))
    made = intake(plane)
    fields = parsed(made, plane, body)
    assert json.loads(edited(made, body, fields, "real"))["model"] == "real"


def test_a_large_body_is_scanned_between_other_work_and_no_longer_than_its_client_stays() -> None:
    body = b'{"model":"m","messages":[' + b'{"a":"b"},' * 40_000 + b"0]}"
    plane = Plane()
    made = intake(plane)
    got: list[BodyFields] = []
    made.parse(body, got.append)
    assert got == []
    assert plane.run() > 10
    assert got == [BodyFields(model="m")]
    left = intake(plane)
    left.parse(body, got.append)
    left.stop()
    assert plane.run() == 1
    assert len(got) == 1


def test_bodies_that_are_not_json() -> None:
    plane = Plane()
    form = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--B--\r\n'
    audio = intake(plane, head(path=b"/v1/audio/transcriptions", content_type=b"multipart/form-data; boundary=B"))
    assert parsed(audio, plane, form) == BodyFields(model="whisper")
    stored = intake(plane, head(b"GET", b"/v1/responses/resp_1"))
    assert parsed(stored, plane, b"") == EMPTY


@settings(max_examples=80, deadline=None)
@given(bodies(), text, st.sampled_from((Limits(), SCANNED)), st.sampled_from((b"/v1/chat/completions", b"/v1/embeddings")))
def test_the_documented_edits_and_no_other(body: bytes, model: str, limits: Limits, path: bytes) -> None:
    plane = Plane(limits)
    made = intake(plane, head(path=path))
    fields = parsed(made, plane, body)
    strips = made.edited(body, fields, model)[1]
    sent = edited(made, body, fields, model)
    expected = json.loads(body)
    renamed = fields.model not in {"", model}
    asked = fields.stream and not fields.asks_usage and path == b"/v1/chat/completions"
    assert strips == asked
    if renamed:
        expected["model"] = model
    if asked and isinstance(expected.get("stream_options"), dict | None):
        options = expected["stream_options"] = {**(expected.get("stream_options") or {}), "include_usage": True}
        if "continuous_usage_stats" in options:  # it did nothing without the other
            options["continuous_usage_stats"] = False
    assert json.loads(sent) == expected
    assert renamed or asked or sent is body


def test_nothing_is_edited_when_usage_is_off() -> None:
    plane = Plane(usage="off")
    made = intake(plane)
    body = b'{"model":"m","stream":true}'
    assert made.edited(body, parsed(made, plane, body), "m") == ((body,), False)


def test_a_member_too_large_to_look_at_is_still_edited_at_its_place() -> None:
    padding = b" " * 70_000
    body = b'{"model":"alias","stream":true,"stream_options":{' + b'"x":"' + padding + b'"},"n":1}'
    for limits in (Limits(), SCANNED):
        plane = Plane(limits)
        made = intake(plane)
        sent = edited(made, body, parsed(made, plane, body), "a-longer-name")
        options = {"x": padding.decode(), "include_usage": True}
        assert json.loads(sent) == {"model": "a-longer-name", "stream": True, "stream_options": options, "n": 1}
