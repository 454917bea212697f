"""curl against the gateway: what people type first, and what curl does differently from the SDKs (case 15.5 among it)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Limits
from tests.tools.programs import clean_environment, find, output_of
from tests.wire.kit import CHAT, CONFIG, Rig, chat, run
from tests.wire.scripted import ANSWER, DONE, FINISH, STREAM, Call, event

TWO_MB = 2_000_000
CONTINUE_WAIT_S = 20
SMALL = replace(CONFIG, limits=Limits(body_bytes=1_000_000))
MARK = "\n-- curl --\n"


@dataclass(frozen=True, slots=True)
class Got:
    """What curl received. `told` are its own figures (--write-out); `trace` is what -v shows."""

    body: str
    told: dict[str, Any]
    trace: str

    @property
    def status(self) -> int:
        """The last response's status."""
        return int(self.told["http_code"])


async def curl(rig: Rig, *options: str, path: str = CHAT) -> Got:
    """Run curl on a path of the gateway; it must end well."""
    figures = ("-sS", "-v", "--max-time", "100", "-w", MARK + "%{json}")
    code, out, trace = await output_of(find("curl"), *figures, *options, rig.url + path)
    assert code == 0, trace
    body, _, told = out.rpartition(MARK)
    return Got(body, json.loads(told), trace)


def posted(body: object, *options: str) -> tuple[str, ...]:
    """Options for a JSON body on the command line."""
    return ("-H", "content-type: application/json", "-d", json.dumps(body), *options)


def in_file(folder: Path, size: int) -> Path:
    """A chat request of about `size` bytes in a file."""
    path = folder / "body.json"
    path.write_text(json.dumps(chat("z" * size)))
    return path


def test_a_plain_request() -> None:
    async def case(rig: Rig) -> None:
        got = await curl(rig, *posted(chat()))
        assert (got.status, got.body) == (200, ANSWER.decode())
        models = await curl(rig, path="/v1/models")
        assert [card["id"] for card in json.loads(models.body)["data"]] == ["m"]

    run(case)


@asynccontextmanager
async def curl_reading(rig: Rig, body: object) -> AsyncIterator[asyncio.StreamReader]:
    """curl -N under way; what it prints. It is ended with the block."""
    process = await asyncio.create_subprocess_exec(
        find("curl"), "-sSN", *posted(body), rig.url + CHAT, env=clean_environment(), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def test_a_stream_shows_each_event_as_it_comes() -> None:
    """The backend sends an event only once curl has printed the one before."""
    printed = [asyncio.Event() for _ in range(3)]

    async def play(call: Call) -> None:
        call.start_events()
        for i, gate in enumerate(printed):
            call.events(event(f"part {i};"))
            await gate.wait()
        call.end_events(FINISH, DONE)

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        async with curl_reading(rig, chat(stream=True)) as out:
            for i, gate in enumerate(printed):
                assert await out.readuntil(b"\n\n") == event(f"part {i};")
                gate.set()
            assert await out.read() == FINISH + DONE

    run(case)


def test_a_leaving_curl_ends_the_backends_request() -> None:
    """Ctrl-C in the middle of a stream."""

    async def play(call: Call) -> None:
        call.start_events()
        call.events(event("part 0;"))
        await call.gone.wait()

    async def case(rig: Rig) -> None:
        rig.backend.play = play
        async with curl_reading(rig, chat(stream=True)) as out:
            assert await out.readuntil(b"\n\n") == event("part 0;")
        await rig.backend.calls[0].gone.wait()
        assert rig.backend.calls[0].end == "aborted"

    run(case)


def test_a_large_body_is_waited_for_with_100_continue(tmp_path: Path) -> None:
    """15.5: 100 is sent at once, so curl does not sit out its wait; the body arrives byte for byte."""

    async def case(rig: Rig) -> None:
        file = in_file(tmp_path, TWO_MB)
        wait = ("-H", "Expect: 100-continue", "--expect100-timeout", str(CONTINUE_WAIT_S))
        got = await curl(rig, "-H", "content-type: application/json", "--data-binary", f"@{file}", *wait)
        assert got.status == 200
        assert "< HTTP/1.1 100 Continue" in got.trace
        assert got.told["time_total"] < CONTINUE_WAIT_S / 2
        assert got.told["size_upload"] == file.stat().st_size
        assert rig.backend.calls[0].body == file.read_bytes()

    run(case)


def test_over_the_limit_nothing_is_uploaded(tmp_path: Path) -> None:
    """15.5: 413 by the head alone; no 100, no byte of the body, no call of a backend."""

    async def case(rig: Rig) -> None:
        file = in_file(tmp_path, TWO_MB)
        wait = ("-H", "Expect: 100-continue", "--expect100-timeout", str(CONTINUE_WAIT_S))
        got = await curl(rig, "--data-binary", f"@{file}", *wait)
        assert got.status == 413
        assert json.loads(got.body)["error"]["code"] == "request_too_large"
        assert "100 Continue" not in got.trace
        assert re.search(r"(?im)^< connection: close", got.trace)
        assert got.told["size_upload"] == 0
        assert rig.calls == 0

    run(case, SMALL)


@pytest.mark.parametrize("framing", [(), ("-H", "Transfer-Encoding: chunked")], ids=["length", "chunked"])
def test_over_the_limit_without_expect(tmp_path: Path, framing: tuple[str, ...]) -> None:
    """A client that just sends: it gets its 413 as well, not a reset."""

    async def case(rig: Rig) -> None:
        file = in_file(tmp_path, TWO_MB)
        got = await curl(rig, "--data-binary", f"@{file}", "-H", "Expect:", *framing)
        assert got.status == 413
        assert json.loads(got.body)["error"]["code"] == "request_too_large"
        assert rig.calls == 0

    run(case, SMALL)


def test_a_chunked_upload() -> None:
    async def case(rig: Rig) -> None:
        got = await curl(rig, *posted(chat(), "-H", "Transfer-Encoding: chunked"))
        assert got.status == 200
        assert rig.backend.calls[0].json == chat()

    run(case)


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models"])
def test_head(path: str) -> None:
    """HEAD has GET's status and length and no body; curl would wait for one that was promised wrongly."""

    async def case(rig: Rig) -> None:
        got, full = await curl(rig, "-I", path=path), await curl(rig, path=path)
        assert (got.status, full.status) == (200, 200)
        assert got.told["size_download"] == 0
        assert f"content-length: {len(full.body)}" in got.trace.lower()

    run(case)


@pytest.mark.parametrize("path", ["/", CHAT, "/v1/models"])
def test_options(path: str) -> None:
    async def case(rig: Rig) -> None:
        got = await curl(rig, "-X", "OPTIONS", path=path)
        assert (got.status, got.body) == (204, "")
        assert "POST" in got.trace.lower().partition("< allow:")[2].upper().partition("\n")[0]

    run(case)


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0(stream: bool) -> None:
    """An old client: no chunks; the end of the connection is the end of a stream."""

    async def case(rig: Rig) -> None:
        got = await curl(rig, *posted(chat(stream=stream), "--http1.0"))
        assert got.status == 200
        assert got.body.encode() == (b"".join((*STREAM, DONE)) if stream else ANSWER)
        assert "transfer-encoding" not in got.trace.lower()

    run(case)


def test_an_offer_of_http_2_is_declined() -> None:
    """--http2 on a plain port offers an upgrade with the request: it is answered over HTTP/1.1."""

    async def case(rig: Rig) -> None:
        got = await curl(rig, *posted(chat(), "--http2"))
        assert (got.status, got.body, got.told["http_version"]) == (200, ANSWER.decode(), "1.1")

    run(case)


def test_two_requests_share_a_connection() -> None:
    async def case(rig: Rig) -> None:
        before = len(rig.backend.calls)
        got = await curl(rig, *posted(chat()), rig.url + CHAT)
        assert got.told["num_connects"] == 0
        assert len(rig.backend.calls) == before + 2

    run(case)
