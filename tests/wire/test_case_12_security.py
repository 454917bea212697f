"""Failure cases, section 12: authentication, secrets, admin, request ids (12.1, raw framing, is test_hostile.py)."""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from gateway.config import KeySpec, Log
from tests.wire.kit import CANARY, CONFIG, Rig, chat, run
from tests.wire.scripted import ScriptedBackend

KEY = "key-of-a-client"
KEYS = replace(CONFIG, keys=(KeySpec(sha256(KEY.encode()).hexdigest(), "k"),))
BODY = json.dumps(chat()).encode()


def raw(target: str, host: str, *lines: str) -> bytes:
    """A request as a careful attacker writes it."""
    head = (f"POST {target} HTTP/1.1", f"host: {host}", f"content-length: {len(BODY)}", *lines, "", "")
    return "\r\n".join(head).encode() + BODY


GOOD = f"authorization: Bearer {KEY}"
HOSTS = (
    "localhost/v1/models?",
    "u@b",
    "a b",
    "a,b",
    "gateway#",
    "gateway\\x",
    "[::1",
    "[]",
    "gateway:99999999",
    "",
    "gateway/",
)
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("host", HOSTS)
def test_case_12_2_an_odd_host_is_refused(host: str) -> None:
    """12.2: Host values that change a rebuilt URL: 400 and close, with and without a key; nothing reaches a backend."""

    async def case(rig: Rig) -> None:
        for lines in ((), (GOOD,)):
            peer = await rig.connect()
            peer.send(raw(CHAT, host, *lines))
            answer = await peer.answer()
            assert answer.status == 400
            assert answer.error["type"] == "invalid_request_error"
            assert await peer.ended() == b""
        assert rig.calls == 0

    run(case, KEYS, key=KEY)


@pytest.mark.parametrize(
    ("target", "with_key", "without"),
    [
        (CHAT, 200, 401),
        (f"http://other.example{CHAT}", 200, 401),
        (f"http://other.example:99{CHAT}?x=1", 200, 401),
        (f"http://u@other.example{CHAT}", 400, 400),
        (f"ftp://other.example{CHAT}", 400, 400),
        (f"//other.example{CHAT}", 404, 404),
        ("/v1/models/../chat/completions", 405, 405),
        ("/health/../v1/chat/completions", 404, 404),
        ("/health?/v1/chat/completions", 405, 405),
        ("/v1/%63hat/completions", 404, 404),
        ("/v1/chat/completions/", 404, 404),
        ("/v1/chat/completions;x=1", 200, 401),
        ("/V1/chat/completions", 404, 404),
        ("/health", 405, 405),
        ("*", 404, 404),
    ],
)
def test_case_12_2_only_the_parsed_path_counts(target: str, with_key: int, without: int) -> None:
    """12.2: targets in absolute form, dotted, encoded: judged by the parsed path; no key, no call; the backend's own Host."""

    async def case(rig: Rig) -> None:
        for lines, status in (((GOOD,), with_key), ((), without)):
            peer = await rig.connect()
            peer.send(raw(target, "gateway", *lines))
            assert (await peer.answer()).status == status
        assert rig.calls == (with_key == 200)
        if rig.calls:
            call = rig.backend.calls[0]
            assert call.target.startswith(CHAT.encode())
            assert call.headers[b"host"] == f"127.0.0.1:{rig.backend.port}".encode()

    run(case, KEYS, key=KEY)


def test_case_12_3_a_clients_key_never_reaches_a_backend() -> None:
    """12.3: the client's key in any of the usual fields: in no byte that a backend gets, probes included."""

    async def case(rig: Rig) -> None:
        rig.backend.keeps_bytes = True
        for name in ("authorization", "x-api-key", "api-key"):
            value = f"Bearer {CANARY}" if name == "authorization" else CANARY
            headers = {name: value} if name != "api-key" else {name: value, "x-api-key": CANARY}
            assert (await rig.ask(chat("hello"), headers=headers)).status == 200
            assert (await rig.ask(chat("hello", stream=True), headers=headers)).status == 200
        assert len(rig.backend.received) > 1000
        assert CANARY.encode() not in rig.backend.received
        assert b"authorization" not in rig.backend.received.lower()

    run(case, replace(CONFIG, keys=(KeySpec(sha256(CANARY.encode()).hexdigest(), "k"),)), key=CANARY)


WRONG = {
    "missing": {},
    "empty": {"authorization": ""},
    "only the scheme": {"authorization": "Bearer"},
    "wrong": {"authorization": f"Bearer {CANARY}"},
    "another scheme": {"authorization": f"Basic {CANARY}"},
    "one character short": {"authorization": f"Bearer {KEY[:-1]}"},
    "one character long": {"authorization": f"Bearer {KEY}x"},
    "two words": {"authorization": f"Bearer {KEY} {CANARY}"},
    "quotes": {"authorization": f"Bearer '{CANARY}' OR 1=1 --"},
    "not ASCII": {"authorization": f"Bearer {CANARY}\u00e9\u00ff"},
    "4 KB": {"authorization": "Bearer " + CANARY * 256},
    "the hash": {"authorization": f"Bearer {sha256(KEY.encode()).hexdigest()}"},
    "x-api-key": {"x-api-key": CANARY},
    "both wrong": {"authorization": f"Bearer {CANARY}", "x-api-key": CANARY},
    "header wins": {"authorization": f"Bearer {CANARY}", "x-api-key": KEY},
}


def test_case_12_4_all_wrong_keys_get_the_same_word() -> None:
    """12.4: missing, malformed and wrong keys: the same short 401 for all, with nothing of what was sent."""

    async def case(rig: Rig) -> None:
        answers = {}
        for name, headers in WRONG.items():
            peer = await rig.connect()
            peer.send(raw(CHAT, "gateway", *(f"{field}: {value}" for field, value in headers.items())))
            answers[name] = await peer.answer()
        assert {answer.status for answer in answers.values()} == {401}
        assert len({answer.body for answer in answers.values()}) == 1
        shown = answers["wrong"]
        assert shown.error["type"] == "authentication_error"
        assert len(shown.body) < 300
        assert CANARY.encode() not in shown.raw
        assert (await rig.ask(path="/v1/models", method="GET", headers={"x-api-key": "no"})).status == 401
        assert rig.calls == 0

    run(case, replace(KEYS, log=Log(level="debug")), key=KEY)


URLS = (
    "http://169.254.169.254/",
    "http://[fe80::1]:8000",
    "http://0.0.0.0:8000",
    "http://127.0.0.1:22/",
    "file:///etc/passwd",
    "ftp://127.0.0.1:8000",
    "http://a\\@b/",
    "http://user:secret@127.0.0.1:8000",
    "http://127.0.0.1:8000/?x=1",
    "http://8.8.8.8:8000",
    "http://2130706433:8000",
    "http://[::ffff:169.254.169.254]:8000",
    "//127.0.0.1:8000",
    "127.0.0.1:8000",
)


def test_case_12_5_adding_a_backend() -> None:
    """12.5: without the credential 401; with it, only http(s) to allowed addresses; nothing is connected to on the way."""

    async def case(rig: Rig) -> None:
        listener = ScriptedBackend("canary listener")
        await listener.start()
        body = {"name": "x", "url": listener.url, "engine": "openai"}
        for key in (None, "", "wrong", KEY):
            assert (await rig.admin("POST", "/admin/backends", body, key=key)).status == 401
        for url in URLS:
            answer = await rig.admin("POST", "/admin/backends", {"name": "x", "url": url})
            assert 400 <= answer.status < 500, url
            assert answer.error["param"] == "url", url
        assert len(rig.app.plane.fleet) == 1
        assert listener.connected == 0
        await listener.close()

    run(case, KEYS, key=KEY)


def test_case_12_5_redirects_are_not_followed() -> None:
    """12.5: a backend that redirects, in a probe or in an answer, leads nowhere."""

    async def case(rig: Rig) -> None:
        listener = ScriptedBackend("canary listener")
        await listener.start()
        location = b"location: " + listener.url.encode() + b"/v1/models"
        rig.backend.play = lambda call: call.answer(b"", 307, location)
        answer = await rig.ask(chat())
        assert answer.status == 502
        assert listener.url.encode() not in answer.raw
        rig.backend.get = lambda call: call.answer(b"", 302, location)
        replica = rig.app.plane.fleet.get("b0")
        assert replica is not None
        failures = replica.failures
        while replica.failures == failures:
            await rig.ask(path="/livez", method="GET")
        assert listener.connected == 0
        await listener.close()

    run(case)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a-Z_0.9", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("x" * 4096, False),
        (f"{CANARY} two", False),
        (f"{CANARY}\ttab", False),
        (f"{CANARY}\x1b[31m", False),
        (f"{CANARY}\u202e", False),
        (f'{CANARY}","x":"', False),
        (f"{CANARY}/../", False),
        ("", False),
    ],
)
def test_case_12_6_request_ids(sent: str, kept: bool) -> None:
    """12.6: X-Request-Id is taken if it is at most 128 of [A-Za-z0-9._-], else replaced, towards both sides and in the log."""

    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        peer.send(raw(CHAT, "gateway", f"x-request-id: {sent}"))
        answer = await peer.answer()
        if answer.status == 400:  # what no header may hold is refused as a whole
            assert "\x1b" in sent
            assert rig.calls == 0
            return
        assert answer.status == 200
        shown = answer.headers[b"x-request-id"].decode()
        assert (shown == sent) is kept
        assert rig.backend.calls[0].headers[b"x-request-id"].decode() == shown
        assert [value for name, value in rig.backend.calls[0].fields if name == b"x-request-id"] == [shown.encode()]
        assert (await rig.access(shown))["end"] == "complete"
        stream = await rig.ask(chat(stream=True), headers={"x-request-id": "t-of-a-stream"})
        assert b"t-of-a-stream" not in stream.body

    run(case)
