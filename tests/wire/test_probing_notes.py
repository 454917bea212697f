"""Reservations and corrections on their way to sidecars: with the next question where they can, and never lost in silence."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import looptime
import pytest

from gateway.jobs import Job
from gateway.probe_line import NOTE_S, NOTES_HELD_MAX, read_head
from gateway.probing import RESERVE_HOLD_S, ProbeClient
from predictor.request import LengthEstimate
from predictor.wire import TOOK_HEADER, encode_reply, parse_question
from tests.wire.kit import virtual_pause
from tests.wire.test_probing import REPLY, Scripted

JOB = Job("1", "demo", 40, LengthEstimate(5, 10, 20, "test"), 0.0, (1, 2))
BODY = encode_reply(REPLY)
Message = tuple[bytes, bytes]


def job(number: int) -> Job:
    return replace(JOB, id=f"r{number}")


def answer(took: int | None = None, status: bytes = b"200 OK") -> bytes:
    line = b"" if took is None else b"%b: %d\r\n" % (TOOK_HEADER.encode(), took)
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, line, len(BODY), BODY)


class Sidecar:
    """Keeps what it was told. `verdict` gives the answer to a message, None to break the connection off."""

    def __init__(self, verdict: Callable[[Message, int], bytes | None]) -> None:
        self.told: list[Message] = []
        self.verdict = verdict
        self.scripted = Scripted(self._play)

    async def _play(self, link: object) -> None:
        reader, writer = link.reader, link.writer  # type: ignore[attr-defined]
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            message = (head.split(b" ")[1], await reader.readexactly(length))
            self.told.append(message)
            question = parse_question(message[1]) if message[0] == b"/predict" else None
            said = self.verdict(message, len(question.reserved) + len(question.corrected) if question else 0)
            if said is None:
                return
            writer.write(said)

    def story(self) -> list[str]:
        """Each message as its route, with the ids of the notes that it brought."""
        lines = []
        for target, body in self.told:
            fields = json.loads(body)
            notes = [f"{kind[0]}:{one['id']}" for kind in ("reserved", "corrected") for one in fields.get(kind, [])]
            name = "" if target == b"/predict" else f" {fields['id']}"
            lines.append(" ".join((target.decode() + name, *notes)))
        return lines


def taking(message: Message, notes: int) -> bytes:
    return answer(notes) if message[0] == b"/predict" else answer()


def of_before(message: Message, notes: int) -> bytes:
    return answer()


def run(sidecar: Sidecar, scenario: Callable[[ProbeClient], Awaitable[None]]) -> None:
    """In virtual time, on real sockets."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(sidecar.scripted.running())
            client = ProbeClient(3.0, loop.time, lambda: 0)
            stack.push_async_callback(client.close)
            client.added("a", sidecar.scripted.url)
            async with asyncio.timeout(60):
                await scenario(client)

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(main())


async def ask(client: ProbeClient) -> bool:
    return (await client.probe(("a",), JOB))["a"] is not None


async def told(sidecar: Sidecar, count: int) -> None:
    """Until the sidecar has so many messages."""
    async with asyncio.timeout(20):
        while len(sidecar.told) < count:
            await virtual_pause(0.001)


def test_notes_travel_in_the_next_question_once_the_sidecar_takes_them() -> None:
    sidecar = Sidecar(taking)

    async def scenario(client: ProbeClient) -> None:
        client.reserve("a", job(0))
        assert await ask(client)
        client.reserve("a", job(1))
        client.correct("a", job(0))
        client.reserve("a", job(2))
        assert await ask(client)
        assert await ask(client)
        assert client.notes_lost == 0

    run(sidecar, scenario)
    assert sidecar.story() == ["/reserve r0", "/predict", "/predict r:r1 r:r2 c:r0", "/predict"]


def test_without_a_question_they_go_by_themselves_within_their_limit() -> None:
    sidecar = Sidecar(taking)

    async def scenario(client: ProbeClient) -> None:
        assert await ask(client)
        began_s = asyncio.get_running_loop().time()
        client.reserve("a", job(1))
        client.correct("a", job(1))
        await told(sidecar, 3)
        assert asyncio.get_running_loop().time() - began_s < RESERVE_HOLD_S + 0.01
        await virtual_pause(1.0)

    run(sidecar, scenario)
    assert sidecar.story() == ["/predict", "/reserve r1", "/correct r1"]


def test_a_sidecar_of_before_gets_them_by_themselves() -> None:
    sidecar = Sidecar(of_before)

    async def scenario(client: ProbeClient) -> None:
        for number in range(3):
            assert await ask(client)
            client.reserve("a", job(number))
        await told(sidecar, 6)

    run(sidecar, scenario)
    assert sidecar.story() == ["/predict", "/reserve r0", "/predict", "/reserve r1", "/predict", "/reserve r2"]


@pytest.mark.parametrize(
    ("said", "repeated"),
    [
        (answer(None, b"400 Bad Request"), True),
        (answer(None), True),
        (answer(0), True),
        (answer(1, b"503 Service Unavailable"), False),
        (answer(1), False),
    ],
    ids=["refused", "another version", "not taken", "no sight, but taken", "taken"],
)
def test_what_a_question_brought_in_vain_goes_again_by_itself(said: bytes, repeated: bool) -> None:
    sidecar = Sidecar(lambda message, notes: said if notes else taking(message, notes))

    async def scenario(client: ProbeClient) -> None:
        await ask(client)
        client.reserve("a", job(1))
        await ask(client)
        await virtual_pause(1.0)
        assert client.notes_lost == 0

    run(sidecar, scenario)
    assert sidecar.story() == ["/predict", "/predict r:r1", *(["/reserve r1"] if repeated else [])]


@pytest.mark.parametrize("alone", [True, False])
def test_a_broken_connection_s_notes_go_over_the_next_one(alone: bool) -> None:
    broken = False

    def verdict(message: Message, notes: int) -> bytes | None:
        nonlocal broken
        if not broken and b'"r1"' in message[1]:
            broken = True
            return None
        return taking(message, notes)

    sidecar = Sidecar(verdict)

    async def scenario(client: ProbeClient) -> None:
        assert await ask(client)
        client.reserve("a", job(1))
        if not alone:
            assert not await ask(client)
        await told(sidecar, 3)
        assert (sidecar.scripted.connections, client.notes_lost) == (2, 0)

    run(sidecar, scenario)
    assert sidecar.story() == ["/predict", "/reserve r1" if alone else "/predict r:r1", "/reserve r1"]


def test_what_cannot_be_told_in_time_is_given_up_and_counted() -> None:
    sidecar = Sidecar(lambda message, notes: None if b'"r1"' in message[1] else taking(message, notes))

    async def scenario(client: ProbeClient) -> None:
        assert await ask(client)
        client.reserve("a", job(1))
        await virtual_pause(NOTE_S + 2.0)
        assert client.notes_lost == 1
        assert await ask(client), "and nothing else is held up by it"

    run(sidecar, scenario)
    assert 2 <= sidecar.story().count("/reserve r1") <= 4
    assert sidecar.story()[-1] == "/predict"


def test_a_refused_reservation_is_counted_and_an_unknown_correction_is_not() -> None:
    sidecar = Sidecar(lambda message, _: answer(None, b"404 Not Found") if message[0] != b"/predict" else answer())

    async def scenario(client: ProbeClient) -> None:
        assert await ask(client)
        client.reserve("a", job(1))
        client.correct("a", job(1))
        await told(sidecar, 3)
        await virtual_pause(0.1)
        assert client.notes_lost == 1

    run(sidecar, scenario)


def test_an_unreachable_sidecar_holds_a_bounded_number_of_notes() -> None:
    sidecar = Sidecar(taking)

    async def scenario(client: ProbeClient) -> None:
        client.added("gone", "http://127.0.0.1:9")
        for number in range(3 * NOTES_HELD_MAX):
            client.reserve("gone", job(number))
        await virtual_pause(NOTE_S + 2.0)
        assert client.notes_lost == 3 * NOTES_HELD_MAX
        client.reserve("nobody", job(1))
        client.correct("nobody", job(1))

    run(sidecar, scenario)


def test_a_connection_that_breaks_under_many_notes_keeps_a_bounded_number() -> None:
    sidecar = Sidecar(lambda message, notes: None if sidecar.scripted.connections == 1 and notes else taking(message, notes))

    async def scenario(client: ProbeClient) -> None:
        assert await ask(client)
        done: list[object] = []
        for number in range(400):
            client.reserve("a", job(number))
            client.ask(("a",), JOB, done.append)
        await virtual_pause(2.0)
        reserved = {one.split()[1] for one in sidecar.story() if one.startswith("/reserve")}
        assert len(reserved) + client.notes_lost == 400
        assert len(reserved) == NOTES_HELD_MAX
        assert len(done) == 400

    run(sidecar, scenario)


@pytest.mark.parametrize("seed", range(12))
def test_every_reservation_is_told_or_counted(seed: int) -> None:
    """Whatever a sidecar answers and whenever it breaks off."""
    rng = random.Random(seed)
    known: set[str] = set()

    def verdict(message: Message, notes: int) -> bytes | None:
        fields = json.loads(message[1])
        ids = {one["id"] for one in fields.get("reserved", [])} | ({fields["id"]} if message[0] == b"/reserve" else set())
        fate = rng.random()
        if fate < 0.02:
            return None
        if fate < 0.2:
            return answer(None, b"400 Bad Request")
        if fate < 0.3 and message[0] == b"/predict":
            return answer(None)  # it does not know of notes: these are not taken
        known.update(ids)
        return taking(message, notes)

    sidecar = Sidecar(verdict)

    async def scenario(client: ProbeClient) -> None:
        for number in range(150):
            client.reserve("a", job(number))
            if rng.random() < 0.5:
                await client.probe(("a",), JOB)
            await virtual_pause(rng.choice((0.0, 0.001, 0.05)))
        await virtual_pause(5.0)
        assert len(known) + client.notes_lost >= 150
        assert len(known) > 75

    run(sidecar, scenario)


def test_heads() -> None:
    assert read_head(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-leeway-took: 3") == (True, 5, 3)
    assert read_head(b"HTTP/1.1 503 No\r\nX-Leeway-Took: 0\r\nContent-Length: 5") == (False, 5, 0)
    assert read_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Leeway-Took: many") == (True, 5, -1)
    assert read_head(b"HTTP/1.1 200 OK\r\nX-Leeway-Took: 3") == (False, -1, -1)
