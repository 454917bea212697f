"""What goes over a sidecar's connection: a reservation within its question's round repeats the question's bytes."""

import asyncio
import time
from collections.abc import Mapping

from gateway.jobs import Job
from gateway.probing import ProbeClient
from predictor.request import Estimate, LengthEstimate
from predictor.snapshot import ProbeReply
from predictor.wire import encode_reply, parse_ask

JOB = Job("7", "demo", 40, LengthEstimate(5, 10, 20, "test"), 0.0, (1, 2), request_id="r7")
BODY = encode_reply(ProbeReply(Estimate(0.1, 0.02, 3.5), 3, 2, 40, 7, 900, 0.125))
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


def told_by(jobs: tuple[Job, Job]) -> list[tuple[bytes, bytes]]:
    """Targets and bodies of what a sidecar gets where the first job is asked about and the second one reserved."""
    told: list[tuple[bytes, bytes]] = []
    both = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while len(told) < 2:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            told.append((head.split(b" ")[1], await reader.readexactly(length)))
            writer.write(ANSWER)
        both.set()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        instants = iter(range(1_700_000_000_000, 1_800_000_000_000))
        client = ProbeClient(30.0, time.monotonic, lambda: next(instants))
        client.added("a", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

        def done(_: Mapping[str, ProbeReply | None]) -> None:
            client.reserve("a", jobs[1])

        client.ask(("a",), jobs[0], done)
        await asyncio.wait_for(both.wait(), 60)
        await client.close()
        server.close()

    asyncio.run(main())
    return told


def test_reservation_repeats_the_question() -> None:
    asked, reserved = told_by((JOB, JOB))
    assert (asked[0], reserved[0]) == (b"/predict", b"/reserve")
    assert asked[1] == reserved[1]
    assert parse_ask(asked[1]).id == "r7"


def test_reservation_for_another_job_says_its_own() -> None:
    other = Job("8", "demo", 50, JOB.lengths, 0.0, request_id="r8")
    _, reserved = told_by((JOB, other))
    assert reserved[0] == b"/reserve"
    assert (parse_ask(reserved[1]).id, parse_ask(reserved[1]).prompt_tokens) == ("r8", 50)
