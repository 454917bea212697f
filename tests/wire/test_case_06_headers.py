"""Failure cases, section 6: which header fields cross, and how large a body may be."""

from dataclasses import replace
from hashlib import sha256

import pytest

from gateway.api import ROUTES
from gateway.config import BackendSpec, KeySpec, Limits
from tests.wire.kit import CANARY, CONFIG, Rig, chat, run, until
from tests.wire.scripted import ANSWER, Call, chunk, head

BACKEND_KEY = "key-of-the-backend"
KEYS = replace(CONFIG, keys=(KeySpec(sha256(CANARY.encode()).hexdigest(), "k"),))
FORM = (
    b'--cut\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--cut\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"content-type: audio/wav\r\n\r\n\x00\xff\r\n--cut--\r\n"
)
MULTIPART = {"content-type": "multipart/form-data; boundary=cut"}
FORMS = (b"/v1/audio/transcriptions", b"/v1/audio/translations", b"/v1/images/edits", b"/v1/images/variations")
PATHS = [*ROUTES, b"/v1/some/engine/route"]


def with_backend_key(spec: BackendSpec) -> BackendSpec:
    return replace(spec, api_key=BACKEND_KEY)


def test_case_6_1_no_hop_by_hop_field_crosses() -> None:
    """6.1: hop-by-hop fields, and those that Connection names, cross in neither direction."""
    hop = {"connection": "X-Foo, keep-alive", "x-foo": "1", "te": "trailers", "keep-alive": "timeout=9", "trailer": "x-sum"}
    hop |= {"proxy-authorization": "Basic eA==", "proxy-connection": "keep-alive"}
    lines = (b"connection: close, X-Bar", b"x-bar: 1", b"keep-alive: timeout=3", b"proxy-authenticate: Basic", b"x-kept: yes")

    def play(call: Call) -> None:
        call.write(head(200, b"content-type: application/json", b"transfer-encoding: chunked", *lines))
        call.write(chunk(ANSWER), b"0\r\nx-sum: 1\r\n\r\n")
        call.close()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        answer = await rig.ask(chat(), headers={**hop, "x-kept": "yes"})
        call = rig.backend.calls[0]
        assert not {name.encode() for name in hop} & call.headers.keys()
        assert b"transfer-encoding" not in call.headers
        assert call.headers[b"x-kept"] == b"yes"
        assert (answer.status, answer.body) == (200, ANSWER)
        assert not {b"x-bar", b"keep-alive", b"proxy-authenticate", b"connection", b"x-sum"} & answer.headers.keys()
        assert answer.headers[b"x-kept"] == b"yes"

    run(case)


@pytest.mark.parametrize("bearer", [True, False], ids=["bearer", "x-api-key"])
def test_case_6_2_one_header_policy_for_all_routes(bearer: bool) -> None:
    """6.2: on every route the client's credentials stay here, the backend's own goes along, and all else passes."""

    async def case(rig: Rig) -> None:
        key = {"authorization": f"Bearer {CANARY}"} if bearer else {"x-api-key": CANARY}
        sent = {**key, "api-key": CANARY, "cookie": f"session={CANARY}", "x-custom": "yes", "user-agent": "test/1"}
        for path in PATHS:
            form = path in FORMS
            body = FORM if form else {"model": "m", "input": "hi", "messages": []}
            answer = await rig.ask(body, path.decode(), headers={**sent, **(MULTIPART if form else {})})
            assert answer.status == 200, (path, answer)
            call = rig.backend.calls[-1]
            assert call.target == path
            assert CANARY.encode() not in call.head, path
            assert call.headers[b"authorization"] == f"Bearer {BACKEND_KEY}".encode(), path
            assert (call.headers[b"x-custom"], call.headers[b"user-agent"]) == (b"yes", b"test/1"), path
            assert len(call.fields) == len(call.headers), path
            assert not form or call.body == FORM
        for path in ("/v1/models", "/v1/models/m"):
            assert (await rig.ask(path=path, method="GET", headers=sent)).status == 200
        assert rig.calls == len(PATHS)
        for path in PATHS:
            assert (await rig.ask(chat(), path.decode(), headers={"authorization": "Bearer wrong"})).status == 401
        assert rig.calls == len(PATHS)

    run(case, KEYS, spec=with_backend_key, key=CANARY)


@pytest.mark.parametrize("size", [1_100_000, 2_100_000, 5_100_000, 31_000_000, 33_000_000])
def test_case_6_3_large_bodies_under_default_limits(size: int) -> None:
    """6.3: bodies of 1.1 to 33 MB pass with the limits as shipped, byte for byte."""
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"QUJD" * (size // 4))

    async def case(rig: Rig) -> None:
        assert (await rig.ask(body)).status == 200
        assert rig.backend.calls[0].body == body

    run(case)


@pytest.mark.parametrize("chunked", [False, True])
def test_case_6_3_6_4_the_limit_is_exact_on_all_routes(chunked: bool) -> None:
    """6.3, 6.4: a body of exactly the limit passes; with one byte more it is 413, and no byte goes to a backend."""
    limit = 5000

    def body_of(path: bytes, size: int) -> bytes:
        if path in FORMS:
            return FORM[:-6] + b" " * (size - len(FORM)) + FORM[-6:]
        start = b'{"model":"m","input":"'
        return start + b"x" * (size - len(start) - 2) + b'"}'

    async def ask(rig: Rig, path: bytes, body: bytes) -> int:
        headers = MULTIPART if path in FORMS else {}
        if not chunked:
            return (await rig.ask(body, path.decode(), headers=headers)).status
        peer = await rig.connect()
        request, _ = peer.head(path.decode(), "POST", {"transfer-encoding": "chunked", **headers})
        peer.send(request, chunk(body[:100]), chunk(body[100:]), b"0\r\n\r\n")
        answer = await peer.answer()
        peer.close()
        return answer.status

    async def case(rig: Rig) -> None:
        for count, path in enumerate(PATHS, 1):
            body = body_of(path, limit)
            assert await ask(rig, path, body) == 200, path
            assert rig.backend.calls[-1].body == body
            assert await ask(rig, path, body_of(path, limit + 1)) == 413, path
            assert rig.calls == count
            assert rig.backend.partial == 0

    run(case, replace(CONFIG, limits=Limits(body_bytes=limit)))


def test_case_6_4_a_larger_body_is_refused_by_its_head() -> None:
    """6.4: Content-Length over the limit: 413 in OpenAI's form before the body is read, and the connection closes."""

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        request, _ = peer.head("/v1/chat/completions", "POST", {"content-length": "100001"})
        peer.send(request)
        answer = await peer.answer()
        assert answer.status == 413
        assert answer.error["code"] == "request_too_large"
        assert await peer.ended() == b""
        assert rig.calls == 0

    run(case, replace(CONFIG, limits=Limits(body_bytes=100_000)))


def test_case_6_4_all_bodies_together_are_bounded() -> None:
    """6.4: when the bodies held at once reach their limit, the next is refused with Retry-After, whole."""

    async def case(rig: Rig) -> None:
        holder = await rig.connect()
        request, _ = holder.head("/v1/chat/completions", "POST", {"content-length": "60000"})
        holder.send(request, b"{" * 59_000)
        while rig.app.plane.held_bytes < 59_000:
            await rig.ask(path="/livez", method="GET")
        answer = await rig.ask(chat("x" * 50_000))
        assert answer.status == 503
        assert answer.headers[b"retry-after"] == b"1"
        assert rig.calls == 0
        assert (await rig.ask(chat("small"))).status == 200
        holder.close()

    run(case, replace(CONFIG, limits=Limits(bodies_bytes=100_000)))


def test_who_holds_large_bodies_keeps_no_small_one_out() -> None:
    """Uploads of one client that go on for ever take what large bodies may have, and no more: others' small ones pass."""

    async def case(rig: Rig) -> None:
        plane = rig.app.plane
        for _ in range(3):
            holder = await rig.connect()
            request, _ = holder.head("/v1/chat/completions", "POST", {"content-length": "400000"})
            holder.send(request, b"{" * 390_000)
        await until(lambda: plane.held_bytes >= 780_000, say=lambda: plane.held_bytes)
        assert (await rig.ask(chat("x" * 150_000))).status == 503
        assert (await rig.ask(chat("x" * 50_000))).status == 200
        rig.drop_peers()
        await until(lambda: plane.held_bytes == 0)
        assert (await rig.ask(chat("x" * 150_000))).status == 200

    run(case, replace(CONFIG, limits=Limits(bodies_bytes=1_000_000)))
