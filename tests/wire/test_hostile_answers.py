"""Backends that break HTTP or answer out of turn: no byte that is not an answer's reaches a client, nothing is reused."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from gateway.config import Timeouts
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.scripted import ANSWER, Call, ScriptedBackend, head

JSON = b"content-type: application/json"
LENGTH = b"content-length: %d" % len(ANSWER)
CHUNKED = b"transfer-encoding: chunked"
HIDDEN = head(200, JSON, b"content-length: 9") + b'{"bad":1}'

BROKEN = {
    "two lengths": head(200, JSON, LENGTH, b"content-length: 5") + ANSWER,
    "length and chunked": head(200, JSON, LENGTH, CHUNKED) + ANSWER,
    "negative length": head(200, JSON, b"content-length: -1") + ANSWER,
    "length in words": head(200, JSON, b"content-length: many") + ANSWER,
    "bad chunk size": head(200, JSON, CHUNKED) + b"xyz\r\n" + ANSWER,
    "chunk size with a sign": head(200, JSON, CHUNKED) + b"+5\r\nhello\r\n0\r\n\r\n",
    "chunk without its end": head(200, JSON, CHUNKED) + b"5\r\nhelloo\r\n0\r\n\r\n",
    "line feed in a value": head(200, JSON, b"x-a: b\nset-cookie: c", LENGTH) + ANSWER,
    "nul in a value": head(200, JSON, b"x-a: b\x00c", LENGTH) + ANSWER,
    "nameless field": head(200, JSON, b": c", LENGTH) + ANSWER,
    "a head of 100 KB": head(200, JSON, b"x-a: " + b"y" * 100_000, LENGTH) + ANSWER,
    "300 fields": head(200, JSON, *(b"x-%d: 1" % i for i in range(300)), LENGTH) + ANSWER,
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "status 99999": b"HTTP/1.1 99999 OK\r\n\r\n",
    "another protocol": b"RTSP/1.0 200 OK\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "a request": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_502_and_its_connection_is_not_used_again(name: str) -> None:
    async def case(rig: Rig) -> None:
        def play(call: Call) -> None:
            call.write(BROKEN[name])
            call.finish()

        rig.backend.play = play
        answer = await rig.ask(chat())
        assert answer.status == 502
        assert answer.error["code"] == "backend_lost"
        assert answer.headers[b"x-should-retry"] == b"false"
        assert rig.calls == 1
        connected = rig.backend.connected
        rig.backend.play = lambda call: call.answer(ANSWER)
        assert (await rig.ask(chat())).body == ANSWER
        assert rig.backend.connected > connected

    run(case, replace(CONFIG, timeouts=Timeouts(unary_s=2.0)))


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("later", [False, True], ids=["with the answer", "later"])
def test_bytes_behind_an_answer_are_nobodys(framing: str, later: bool) -> None:
    """A second answer behind the first, at once or while the connection idles, is never given to the next request."""
    whole = head(200, JSON, LENGTH) + ANSWER
    if framing == "chunked":
        whole = head(200, JSON, CHUNKED) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(ANSWER), ANSWER)

    async def case(rig: Rig) -> None:
        def play(call: Call) -> None:
            call.write(whole if later else whole + HIDDEN)
            call.finish()
            if later:
                asyncio.get_running_loop().call_soon(call.write, HIDDEN)

        rig.backend.play = play
        peer = await rig.connect()
        for _ in range(5):
            peer.ask(chat())
            answer = await peer.answer()
            assert (answer.status, answer.body) == (200, ANSWER)

    run(case)


def test_an_answer_before_the_body_is_read_is_passed_on() -> None:
    """A backend that refuses a large body by its head, and reads the rest over: its 413 reaches the client, not a 502."""
    refusal = b'{"error":{"message":"too large for this engine","type":"t","code":413}}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # a probe that was called off
            await answer(reader, writer)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        if asked.startswith(b"GET"):
            body = b'{"object":"list","data":[{"id":"early"}]}'
            writer.write(head(200, JSON, b"connection: close", b"content-length: %d" % len(body)) + body)
        else:
            writer.write(head(413, JSON, b"connection: close", b"content-length: %d" % len(refusal)) + refusal)
            await writer.drain()
            while await reader.read(1 << 20):
                pass

    async def case(rig: Rig) -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        early = ScriptedBackend("early")
        assert (await rig.admin("POST", "/admin/backends", {"name": "early", "url": url, "engine": "openai"})).status == 202
        await rig.routable(early)
        answer = await rig.ask({**chat("x" * 30_000_000), "model": "early"})
        assert (answer.status, answer.body) == (413, refusal)
        assert (await rig.admin("DELETE", "/admin/backends/early?timeout_s=1")).status == 202
        await until(lambda: rig.app.plane.fleet.get("early") is None)
        server.close()
        await server.wait_closed()

    run(case)
