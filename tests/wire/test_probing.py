"""The probing client against sidecars that answer, lag, lie, break and come back: a result within the (virtual) deadline."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import looptime
import pytest

from backends.mock import MockConfig, MockEngine
from gateway.jobs import Job
from gateway.probe_line import BODY_BYTES_MAX, OUTSTANDING_MAX
from gateway.probing import ProbeClient
from predictor.request import Estimate, LengthEstimate
from predictor.sidecar import SidecarConfig
from predictor.snapshot import GARBLED, ProbeReply
from predictor.wire import encode_reply
from tests.wire.kit import virtual_pause

DEADLINE_S, SLACK_S = 3.0, 0.01
JOB = Job("r1", "demo", 40, LengthEstimate(5, 10, 20, "test"), 0.0, (1, 2))
REPLY = ProbeReply(Estimate(0.1, 0.02, 3.5, 0.05, 0.25, 90), 3, 2, 40, 7, 900, 0.125)
Play = Callable[["Link"], Awaitable[None]]


def http(body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b" % (status, more, len(body), body)


def good(number: int = 3) -> bytes:
    return http(encode_reply(ProbeReply(REPLY.estimate, number, 2, 40, 7, 900, 0.125)))


class Link:
    """One connection of a scripted sidecar."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """One whole request: the target and the body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await self.reader.readexactly(length)
        return head.split(b" ")[1]


class Scripted:
    """A sidecar that does what `play` says with each connection."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.connections = 0
        self.targets: list[bytes] = []
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._play(Link(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator["Scripted"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()


def answering(*answers: bytes) -> Play:
    """Each request gets the next answer; the last one again and again."""

    async def play(link: Link) -> None:
        for number in range(10**6):
            await link.request()
            link.writer.write(answers[min(number, len(answers) - 1)])

    return play


def now() -> float:
    return asyncio.get_running_loop().time()


async def silent(link: Link) -> None:
    await link.reader.read(-1)


def run(scenario: Callable[[ProbeClient], Awaitable[None]], deadline_s: float = DEADLINE_S) -> None:
    async def main() -> None:
        client = ProbeClient(deadline_s, now, lambda: 0)
        try:
            await asyncio.wait_for(scenario(client), 60)
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(main())


async def in_time(client: ProbeClient, *names: str) -> dict[str, ProbeReply | None]:
    began_s = now()
    replies = await client.probe(names, JOB)
    assert now() - began_s < DEADLINE_S + SLACK_S
    return dict(replies)


def test_two_real_sidecars_are_asked_at_once() -> None:
    async def scenario(client: ProbeClient) -> None:
        config = MockConfig(sidecar=SidecarConfig(port=0))
        async with MockEngine(config) as one, MockEngine(config) as two:
            assert one.sidecar is not None
            assert two.sidecar is not None
            client.added("one", one.sidecar.url)
            client.added("two", two.sidecar.url + "/")
            for _ in range(3):
                replies = await in_time(client, "one", "two")
                assert replies.keys() == {"one", "two"}
                for reply in replies.values():
                    assert reply is not None
                    assert 0 < reply.estimate.ttft_s < reply.estimate.e2e_s
            client.reserve("one", JOB)
            reply = (await in_time(client, "one"))["one"]  # behind the reservation on the same connection
            assert reply is not None
            assert reply.waiting == 1

    run(scenario)


def test_reply_is_what_the_sidecar_said_and_the_connection_is_kept() -> None:
    async def scenario(client: ProbeClient) -> None:
        async with Scripted(answering(good())).running() as sidecar:
            client.added("a", sidecar.url)
            for _ in range(5):
                assert repr(await in_time(client, "a")) == repr({"a": REPLY})
            assert sidecar.connections == 1

    run(scenario)


SAYS_NOTHING = (http(b"not json"), http(b'{"v":2}'), http(b'{"v":1,"ttft_s":"soon"}'), http(b""))


@pytest.mark.parametrize(
    "answer",
    [
        http(b"{}", b"503 Service Unavailable"),
        *SAYS_NOTHING,
        http(encode_reply(REPLY), more=b"Transfer-Encoding: chunked\r\n"),
        http(encode_reply(REPLY), more=b"Connection: close\r\n"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1),
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"x" * 100_000,
    ],
    ids=[
        "503", "no JSON", "version", "garbage", "empty", "two framings", "closing", "chunked", "too large", "negative",
        "another protocol", "endless head",
    ],
)  # fmt: skip
def test_bad_answer_is_told_at_once_and_the_other_counts(answer: bytes) -> None:
    async def scenario(client: ProbeClient) -> None:
        async with Scripted(answering(answer)).running() as bad, Scripted(answering(good())).running() as fine:
            client.added("bad", bad.url)
            client.added("fine", fine.url)
            replies = await in_time(client, "bad", "fine")
            assert replies.keys() == {"bad", "fine"}
            assert replies["bad"] is (GARBLED if answer in SAYS_NOTHING else None)
            assert repr(replies["fine"]) == repr(REPLY)

    run(scenario)


def test_late_one_is_missing_and_its_answer_does_not_become_anothers() -> None:
    async def scenario(client: ProbeClient) -> None:
        release = asyncio.Event()

        async def play(link: Link) -> None:
            await link.request()
            await release.wait()
            link.writer.write(good(111))
            await link.request()
            link.writer.write(good(222))

        async with Scripted(play).running() as slow, Scripted(answering(good())).running() as fine:
            client.added("slow", slow.url)
            client.added("fine", fine.url)
            began_s = now()
            assert repr(await client.probe(("slow", "fine"), JOB)) == repr({"fine": REPLY})
            assert client.deadline_s <= now() - began_s < client.deadline_s + SLACK_S
            release.set()
            reply = (await in_time(client, "slow"))["slow"]
            assert reply is not None
            assert reply.running == 222

    run(scenario, deadline_s=1.0)


def test_answers_in_pieces_and_several_in_one_read() -> None:
    async def scenario(client: ProbeClient) -> None:
        async def play(link: Link) -> None:
            for number in range(3):
                await link.request()
                if number == 0:
                    for byte in good(0):
                        link.writer.write(bytes([byte]))
                        await link.writer.drain()
            link.writer.write(good(1) + good(2))
            await link.reader.read(-1)

        async with Scripted(play).running() as sidecar:
            client.added("a", sidecar.url)
            first = await in_time(client, "a")
            both = await asyncio.gather(client.probe(("a",), JOB), client.probe(("a",), JOB))
            got = [replies["a"] for replies in (first, *both)]
            assert [reply and reply.running for reply in got] == [0, 1, 2]

    run(scenario)


def test_many_asks_at_once_are_each_answered_in_order() -> None:
    async def scenario(client: ProbeClient) -> None:
        async def play(link: Link) -> None:
            for number in range(300):
                await link.request()
                link.writer.write(good(number))

        async with Scripted(play).running() as sidecar:
            client.added("a", sidecar.url)
            found = await asyncio.gather(*(client.probe(("a",), JOB) for _ in range(300)))
            assert [reply["a"] and reply["a"].running for reply in found] == list(range(300))
            assert sidecar.connections == 1

    run(scenario)


def test_unreachable_and_unknown_sidecars_are_none_at_once() -> None:
    async def scenario(client: ProbeClient) -> None:
        async with Scripted(silent).running() as gone:
            url = gone.url
        client.added("gone", url)
        client.added("nameless", "http://no-such-host.invalid:1")
        assert await in_time(client, "gone", "unknown") == {"gone": None, "unknown": None}
        assert (await in_time(client, "nameless")).get("nameless") is None
        done: list[object] = []
        client.ask(("gone",), JOB, done.append)
        assert done == [{"gone": None}]  # not even tried: it was refused a moment ago
        client.reserve("gone", JOB)
        client.reserve("unknown", JOB)

    run(scenario)


def test_sidecar_that_was_started_again_is_used_again() -> None:
    async def scenario(client: ProbeClient) -> None:
        async with Scripted(answering(good())).running() as first:
            client.added("a", first.url)
            await in_time(client, "a")
            port = int(first.url.rsplit(":", 1)[1])

        async with Scripted(answering(good())).running(port), asyncio.timeout(5.0):
            replies: dict[str, ProbeReply | None] = {}
            while replies.get("a") is None:
                replies = await in_time(client, "a")
                await virtual_pause(0.01)

    run(scenario)


def test_connection_that_breaks_under_asks_fails_them_and_backs_off() -> None:
    async def scenario(client: ProbeClient) -> None:
        async def dies(link: Link) -> None:
            await link.request()
            link.writer.transport.abort()

        async with Scripted(dies).running() as sidecar:
            client.added("a", sidecar.url)
            assert await in_time(client, "a") == {"a": None}
            for _ in range(20):
                assert await in_time(client, "a") == {"a": None}
            assert sidecar.connections == 1  # within the back-off

    run(scenario)


def test_reservation_goes_with_the_next_ask_or_soon_by_itself() -> None:
    async def scenario(client: ProbeClient) -> None:
        told: list[bytes] = []
        alone = asyncio.Event()

        async def play(link: Link) -> None:
            while True:
                told.append(await link.request())
                link.writer.write(good())
                if told == [b"/predict", b"/reserve", b"/predict", b"/reserve"]:
                    alone.set()

        async with Scripted(play).running() as sidecar:
            client.added("a", sidecar.url)
            await in_time(client, "a")
            client.reserve("a", JOB)
            await in_time(client, "a")
            assert told == [b"/predict", b"/reserve", b"/predict"]
            client.reserve("a", JOB)
            await asyncio.wait_for(alone.wait(), 5.0)

    run(scenario)


def test_hung_sidecar_holds_a_bounded_number_of_asks() -> None:
    async def scenario(client: ProbeClient) -> None:
        async with Scripted(silent).running() as sidecar:
            client.added("a", sidecar.url)
            assert await client.probe(("a",), JOB) == {}
            done: list[object] = []
            for _ in range(OUTSTANDING_MAX + 5):
                client.ask(("a",), JOB, done.append)
            assert done == [{"a": None}] * len(done)
            assert len(done) == OUTSTANDING_MAX + 5  # those that it held, and those that come after

    run(scenario, deadline_s=0.1)


def test_removal_fails_what_is_under_way_and_close_leaves_nothing() -> None:
    async def scenario(client: ProbeClient) -> None:
        async with Scripted(silent).running() as sidecar:
            client.added("a", sidecar.url)
            asked = asyncio.create_task(client.probe(("a",), JOB))
            await asyncio.sleep(0)
            client.removed("a")
            assert await asked == {"a": None}
            assert await in_time(client, "a") == {"a": None}
            client.added("a", sidecar.url)
            last = asyncio.create_task(client.probe(("a",), JOB))
            await asyncio.sleep(0)
            await client.close()
            assert await last == {"a": None}
            assert len(asyncio.all_tasks()) <= 4  # this one, its time limit, and the server's

    run(scenario)


def test_another_address_takes_the_place_of_the_last_and_the_same_one_does_not() -> None:
    async def scenario(client: ProbeClient) -> None:
        async with Scripted(answering(good(1))).running() as one, Scripted(answering(good(2))).running() as two:
            for url, connections in ((one.url, (1, 0)), (one.url, (1, 0)), (two.url, (1, 1))):
                client.added("a", url)
                reply = (await in_time(client, "a"))["a"]
                assert reply is not None
                assert reply.running == 1 + (url == two.url)
                assert (one.connections, two.connections) == connections

    run(scenario)


def test_token_and_path_go_with_every_ask() -> None:
    heads: list[bytes] = []

    async def scenario(client: ProbeClient) -> None:
        async def play(link: Link) -> None:
            heads.append(await link.reader.readuntil(b"\r\n\r\n"))
            link.writer.write(good())
            await link.reader.read(-1)

        async with Scripted(play).running() as sidecar:
            client.added("a", sidecar.url + "/engine-7/", "secret")
            await in_time(client, "a")

    run(scenario)
    assert heads[0].startswith(b"POST /engine-7/predict HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"authorization: Bearer secret\r\n" in heads[0]


def test_address_rule_holds_for_sidecars() -> None:
    async def scenario(_: ProbeClient) -> None:
        async with Scripted(answering(good())).running() as sidecar:
            client = ProbeClient(DEADLINE_S, now, lambda: 0, allowed=lambda _: False)
            client.added("a", sidecar.url)
            assert await in_time(client, "a") == {"a": None}
            assert sidecar.connections == 0
            client.added("a", sidecar.url, guarded=False)
            assert (await in_time(client, "a"))["a"] is not None, "a declared one may be anywhere"
            await client.close()

    run(scenario)


def test_nobody_asked_is_an_empty_answer() -> None:
    async def scenario(client: ProbeClient) -> None:
        assert await in_time(client) == {}

    run(scenario)
