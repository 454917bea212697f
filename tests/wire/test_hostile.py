"""Failure case 12.1 on the wire: every hostile payload against a running gateway, fresh and behind a good request."""

import asyncio
from dataclasses import replace

from gateway.config import Timeouts
from tests.core.hostile import PAYLOADS, Accepted, Payload
from tests.wire.kit import CONFIG, Rig, chat, run
from tests.wire.scripted import Call

HEAD_S = 0.3  # where it is waited for; elsewhere a busy machine must not use it up
QUICK = replace(CONFIG, timeouts=Timeouts(head_s=HEAD_S, body_stall_s=HEAD_S))
SILENT = [payload for payload in PAYLOADS if payload.answer == 0]
ANSWERED = [payload for payload in PAYLOADS if payload.answer != 0]


def path_of(target: bytes) -> bytes:
    """The path that a target in absolute form means."""
    return b"/" + target.partition(b"://")[2].partition(b"/")[2] if b"://" in target[:8] else target


def allowed(calls: list[Call], payload: Payload) -> bool:
    """Whether the backend ran nothing but requests that the payload holds, each once and in order."""
    held = iter(payload.requests)
    return all(any(matches(call, request) for request in held) for call in calls)


def matches(call: Call, request: Accepted) -> bool:
    """Whether a call is that request."""
    return (call.method, call.target, call.body) == (request.method, path_of(request.target), request.body)


async def hostile(rig: Rig, payload: Payload, behind: bool) -> None:
    """Send one payload, behind a good request if so wished, and hold what comes of it to what must."""
    peer = await rig.connect()
    if behind:
        peer.ask(chat("good"))
        assert (await peer.answer()).status == 200, payload.name
    rig.backend.calls.clear()
    peer.send(payload.raw)
    answer = await peer.answer()
    assert answer.status == payload.answer, (payload.name, answer)
    assert answer.status < 500 or answer.status == 505, (payload.name, answer)
    if payload.status is not None:
        rest = await peer.ended()  # it must end; anything behind the first answer is the refusal itself
        assert rest == b"" or rest.startswith(b"HTTP/1.1 %d " % payload.status), (payload.name, rest)
        assert rest.count(b"HTTP/1.1 ") <= len(payload.requests), (payload.name, rest)
    for _ in payload.requests[1:] if payload.status is None else ():
        assert (await peer.answer()).status == 200, payload.name
    if answer.status >= 400 and answer.body:
        assert answer.headers[b"content-type"] == b"application/json", payload.name
        assert answer.json["error"]["message"], payload.name
    peer.close()
    assert len(rig.backend.calls) <= max(1, len(payload.requests)), payload.name
    assert allowed(rig.backend.calls, payload), (payload.name, rig.backend.calls)
    if payload.answer == 200:
        assert rig.backend.calls or payload.requests[0].method == b"GET", payload.name
    assert rig.backend.partial == 0, payload.name
    assert (await rig.ask(path="/livez", method="GET")).status == 200, payload.name


def test_case_12_1_ambiguous_framing_reaches_no_backend() -> None:
    """12.1: at most the requests that a payload holds reach the backend; what is ambiguous is 4xx and close."""

    async def case(rig: Rig) -> None:
        for payload in ANSWERED:
            await hostile(rig, payload, behind=False)

    run(case)


def test_case_12_1_behind_a_good_request_nothing_changes() -> None:
    """12.1: the same on a connection that has carried a good request."""

    async def case(rig: Rig) -> None:
        for payload in ANSWERED:
            await hostile(rig, payload, behind=True)

    run(case)


def test_case_12_1_what_never_ends_is_ended() -> None:
    """12.1: requests that never end: nothing reaches a backend, 408 at the time limit, and the connection closes."""

    async def one(rig: Rig, payload: Payload) -> None:
        peer = await rig.connect()
        peer.send(payload.raw)
        assert (await peer.answer()).status == 408, payload.name
        assert await peer.ended() == b""

    async def case(rig: Rig) -> None:
        assert SILENT
        await asyncio.gather(*(one(rig, payload) for payload in SILENT))
        assert rig.calls == 0
        assert rig.backend.partial == 0

    run(case, QUICK)
