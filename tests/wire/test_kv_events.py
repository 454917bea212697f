"""KV events over real sockets: read, resumed, replayed, forgotten; and what the gateway makes of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp

from backends.kv_feed import KvFeed
from backends.scheduler_record import StepRecorder, payload_max
from backends.snapshot_file import SnapshotFile
from backends.snapshot_record import Limits
from gateway import beside
from gateway.config import BackendSpec
from gateway.metrics import exposition
from predictor.kvview import KvView
from predictor.prefix import PrefixIndex
from predictor.sidecar import SidecarConfig
from tests.core.test_kv_events import CLEARED, frames, removed, stored
from tests.tools.programs import free_port
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.kv_publisher import KvPublisher


def batch(number: int, *events: dict[str, object], ts: float = 0.0) -> bytes:
    return frames(number, *events, ts=ts)[2]


def story(case: Callable[[KvPublisher, KvView, KvFeed], Awaitable[None]], replay: bool = True, keep: int = 1000) -> None:
    """A publisher, and a feed that reads it until the case is over."""

    async def main() -> None:
        publisher, view = KvPublisher(keep), KvView(PrefixIndex(100))
        await publisher.start()
        feed = KvFeed(publisher.endpoint, publisher.replay if replay else "", view)
        reading = asyncio.create_task(feed.run())
        try:
            async with asyncio.timeout(60):
                await case(publisher, view, feed)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await publisher.close()

    asyncio.run(main())


async def subscribed(publisher: KvPublisher, feed: KvFeed) -> None:
    await until(lambda: feed.connected and len(publisher.subscribers) == 1)


def test_events_arrive() -> None:
    async def case(publisher: KvPublisher, view: KvView, feed: KvFeed) -> None:
        await subscribed(publisher, feed)
        publisher.publish(batch(0, stored("s", [1, 2, 3], None)))
        await until(lambda: view.tokens == 48)
        publisher.publish(batch(1, removed(3)))
        await until(lambda: view.tokens == 32)
        publisher.publish(batch(2, CLEARED))
        await until(lambda: view.tokens == 0)
        assert (feed.ledger.batches, feed.ledger.gaps) == (3, 0)

    story(case)
    story(case, replay=False)


def test_who_comes_late_is_told_what_was() -> None:
    async def main() -> None:
        publisher, view = KvPublisher(), KvView(PrefixIndex(100))
        await publisher.start()
        publisher.publish(batch(0, stored("s", [1, 2], None)))
        publisher.publish(batch(1, stored("s", [3], 2)))
        feed = KvFeed(publisher.endpoint, publisher.replay, view)
        reading = asyncio.create_task(feed.run())
        await until(lambda: view.tokens == 48)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await publisher.close()
        assert publisher.replays == [0]

    asyncio.run(main())


def test_a_hole_is_filled_by_the_replay() -> None:
    async def case(publisher: KvPublisher, view: KvView, feed: KvFeed) -> None:
        await subscribed(publisher, feed)
        publisher.drop = {1, 2}
        for number in range(4):
            publisher.publish(batch(number, stored("s", [number], None)))
        await until(lambda: view.tokens == 64)
        assert (feed.ledger.gaps, publisher.replays, view.forgotten) == (0, [0, 1], 0)

    story(case)


def test_a_hole_that_nobody_can_fill_makes_it_forget() -> None:
    async def case(publisher: KvPublisher, view: KvView, feed: KvFeed) -> None:
        await subscribed(publisher, feed)
        publisher.drop = {1}
        for number in range(3):
            publisher.publish(batch(number, stored("s", [number], None)))
        await until(lambda: feed.ledger.batches == 2)
        assert (view.tokens, feed.ledger.gaps, view.forgotten) == (16, 1, 1)

    story(case, replay=False)
    story(case, keep=1)


def test_a_broken_connection_costs_nothing_where_the_last_batch_is_there() -> None:
    async def case(publisher: KvPublisher, view: KvView, feed: KvFeed) -> None:
        await subscribed(publisher, feed)
        publisher.publish(batch(0))
        publisher.publish(batch(1, stored("s", [1], None)))
        await until(lambda: view.tokens == 16)
        publisher.hang_up()
        publisher.publish(batch(2, stored("s", [2], None)))
        await until(lambda: view.tokens == 32)
        await subscribed(publisher, feed)
        publisher.publish(batch(3, stored("s", [3], None)))
        await until(lambda: view.tokens == 48)
        assert (view.forgotten, feed.ledger.restarts) == (0, 0)

    story(case)


def test_another_process_is_noticed() -> None:
    async def case(publisher: KvPublisher, view: KvView, feed: KvFeed) -> None:
        await subscribed(publisher, feed)
        for number in range(3):
            publisher.publish(batch(number, stored("s", [number], None), ts=100.0 + number))
        await until(lambda: view.tokens == 48)
        publisher.hang_up()
        publisher.batches = [batch(number, stored("s", [70 + number], None), ts=200.0 + number) for number in range(4)]
        await subscribed(publisher, feed)
        publisher.publish(batch(4, stored("s", [80], None), ts=300.0))
        await until(lambda: feed.ledger.wanted == 5)
        assert feed.ledger.restarts == 1
        assert view.forgotten >= 1
        assert view.tokens <= 5 * 16, "nothing of the first process is left"

    story(case)


def test_what_is_no_publisher_is_left_alone() -> None:
    async def main() -> None:
        async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(web, "127.0.0.1", 0)
        feed = KvFeed(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", "", KvView(PrefixIndex(1)))
        reading = asyncio.create_task(feed.run())
        await until(lambda: "ZMTP" in feed.problem)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        server.close()

    asyncio.run(main())


def test_a_sidecar_reads_them_too(tmp_path: Path) -> None:
    async def main() -> None:
        publisher, state = KvPublisher(), str(tmp_path / "state")
        await publisher.start()
        file = SnapshotFile(state, payload_max(4))
        StepRecorder("vllm", Limits(96, 16, 4, 64, 1024), file.write).record(0.0, [], [], {}, 0, 96, 0)
        config = SidecarConfig(port=0)
        async with beside.make_sidecar("vllm", state, "demo-fast", [], config, publisher.endpoint, publisher.replay) as sidecar:
            await until(lambda: len(publisher.subscribers) == 1)
            publisher.publish(batch(0, stored("s", [1, 2], None)))

            async def told() -> str:
                async with aiohttp.ClientSession() as client, client.get(f"{sidecar.url}/metrics") as answer:
                    return await answer.text()

            async with asyncio.timeout(60):
                while "leeway_sidecar_kv_tokens 32.0" not in await told():
                    await asyncio.sleep(0)
        await until(publisher.subscribers[0].is_closing)
        file.close()
        await publisher.close()

    asyncio.run(main())


LONG = "the same long beginning of every prompt " * 400


def test_the_gateway_believes_what_the_engine_says() -> None:
    ports = free_port(), free_port()
    publisher = KvPublisher()

    def publishing(spec: BackendSpec) -> BackendSpec:
        if spec.name != "b0":
            return spec
        return replace(spec, kv_events=f"tcp://127.0.0.1:{ports[0]}", kv_replay=f"tcp://127.0.0.1:{ports[1]}")

    async def case(rig: Rig) -> None:
        await publisher.start(*ports)
        await until(lambda: len(publisher.subscribers) == 1)
        replica = rig.app.plane.fleet.get("b0")
        assert replica is not None
        number, calls = 0, rig.backends[0].calls
        while not calls:
            await rig.ask(chat(f"{number} " + LONG, stream=True))
            number += 1
        assert calls[0].headers[b"x-session-id"] == calls[0].headers[b"x-request-id"]
        assert all(b"x-session-id" not in call.headers for call in rig.backends[1].calls)
        mirror = replica.mirror
        assert mirror is not None
        assert len(mirror.index) > 0
        publisher.publish(batch(0, stored(None, [1], None)))
        await until(lambda: 'leeway_backend_kv_tokens{backend="b0"} 16.0' in rig_metrics(rig))
        publisher.publish(batch(1, CLEARED))
        await until(lambda: len(mirror.index) == 0)
        await until(lambda: any(line["event"] == "kv_events" and line["connected"] for line in rig.log()))
        await publisher.close()

    run(case, CONFIG, backends=2, spec=publishing)


def rig_metrics(rig: Rig) -> str:
    return exposition(rig.app.plane).decode()
