"""Failure cases, section 10: what counts against a backend, and how it leaves and comes back."""

import asyncio
import itertools
from dataclasses import replace

import looptime
import pytest

from gateway.config import Health, Timeouts
from tests.wire.kit import CONFIG, Rig, chat, metric, run, until, virtual_pause
from tests.wire.scripted import DONE, FINISH, Call, Held, ScriptedBackend, silent, well

FIRST_BYTE_S = 0.2


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
def test_case_10_1_client_mistakes_change_no_backends_state(status: int) -> None:
    """10.1: 40 requests that the backend answers 4xx, then a good one: 40 x 4xx, then 200."""

    async def case(rig: Rig) -> None:
        rig.backend.play = lambda call: call.error(status, b"retry-after: 0")
        replica = rig.app.plane.fleet.get("b0")
        assert replica is not None
        for _ in range(40):
            assert (await rig.ask(chat())).status == status
        assert (replica.state, replica.failures, replica.failed_total) == ("ready", 0, 0)
        rig.backend.play = well
        assert (await rig.ask(chat())).status == 200

    run(case, on=looptime.new_event_loop, limit_s=300)


@pytest.mark.parametrize("stream", [False, True])
def test_case_10_2_a_wedged_backend_leaves_and_comes_back(stream: bool) -> None:
    """10.2: health is fine, POST never answers: it leaves after 3 first-byte time-outs, and returns once it works."""

    async def case(rig: Rig) -> None:
        rig.backend.play = silent
        for _ in range(3):
            assert (await rig.ask(chat("client", stream=stream))).status == 504
        assert rig.state(rig.backend) == "down"
        refused = await rig.ask(chat("client", stream=stream))
        assert refused.status == 503
        assert int(refused.headers[b"retry-after"]) >= 1
        assert sum(b"client" in call.body for call in rig.backend.calls) == 3
        probes = len(rig.backend.calls)
        await rig.backend.called(probes + 2)  # health is fine all the time, and still a token is asked for, in vain
        assert rig.state(rig.backend) == "down"
        loop = asyncio.get_running_loop()
        rig.backend.play, works_s = well, loop.time()
        await rig.routable(rig.backend)
        assert loop.time() - works_s < 2.0
        assert (await rig.ask(chat())).status == 200

    health = Health(interval_s=0.1, timeout_s=0.1)
    config = replace(CONFIG, health=health, timeouts=Timeouts(first_byte_s=FIRST_BYTE_S, unary_s=FIRST_BYTE_S))
    run(case, config, on=looptime.new_event_loop, limit_s=300)


def test_case_10_2_streams_that_get_no_token_wedge_a_backend() -> None:
    """10.2: many streams in flight and none gets a byte for `wedge_s`: it leaves before any request's own limit."""

    async def case(rig: Rig) -> None:
        rig.backend.play = silent
        peers = [await rig.connect() for _ in range(3)]
        for peer in peers:
            peer.ask(chat(stream=True))
        await until(lambda: rig.state(rig.backend) == "down")
        shown = (await rig.admin("GET", "/admin/backends/b0")).json
        assert (shown["routable"], shown["state"]) == (False, "down")

    run(
        case,
        replace(CONFIG, health=Health(interval_s=0.1, timeout_s=0.1, wedge_s=0.3)),
        on=looptime.new_event_loop,
        limit_s=300,
    )


class Load:
    """Clients that ask one request after another, whatever comes, `pause_s` apart (0: at once; then virtual time stands)."""

    def __init__(self, rig: Rig, clients: int, pause_s: float = 0.0) -> None:
        self._rig = rig
        self._pause_s = pause_s
        self._number = itertools.count()
        self._tasks = [asyncio.create_task(self._client(i % 2 == 0)) for i in range(clients)]
        self.statuses: list[int] = []
        self._stop = False

    async def _client(self, stream: bool) -> None:
        while not self._stop:
            answer = await self._rig.ask(chat(f"question {next(self._number)}", stream=stream))
            assert answer.status != 200 or answer.whole
            assert answer.status != 503 or b"retry-after" in answer.headers
            self.statuses.append(answer.status)
            if self._pause_s:
                await virtual_pause(self._pause_s)

    async def stop(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


def test_case_10_3_all_backends_killed_under_load() -> None:
    """10.3: all killed: 503 with Retry-After while down; the first 200 within 2 s of one being back on its port (virtual
    time)."""

    async def case(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        load = Load(rig, 6, pause_s=0.01)
        await until(lambda: len(load.statuses) > 30)
        for backend in rig.backends:
            backend.kill()
        await until(lambda: load.statuses[-20:] == [503] * 20)
        await rig.backend.start()
        back_s = loop.time()
        await until(lambda: load.statuses[-1] == 200)
        assert loop.time() - back_s < 2.0
        await until(lambda: load.statuses[-20:] == [200] * 20)
        await load.stop()
        assert set(load.statuses) <= {200, 502, 503}

    run(case, backends=2, on=looptime.new_event_loop, limit_s=300)


def test_case_10_4_an_open_breaker_shows() -> None:
    """10.4: while a breaker is open, status page, readiness and metrics say not routable, and why."""

    async def case(rig: Rig) -> None:
        rig.backend.play = lambda call: call.reset()
        for number in range(4):
            assert (await rig.ask(chat(f"question {number}"))).status == 502
        shown = (await rig.admin("GET", "/admin/backends/b0")).json
        assert (shown["routable"], shown["state"]) == (False, "down")
        assert shown["reason"].startswith("breaker: ")
        metrics = await rig.metrics()
        assert 'leeway_backend_state{backend="b0",state="down"} 1.0' in metrics
        assert metric(metrics, "leeway_backend_failures_total") == 4
        assert (await rig.ask(path="/readyz", method="GET")).status == 503
        assert (await rig.ask(path="/livez", method="GET")).status == 200

    run(case, replace(CONFIG, health=Health(interval_s=5.0)), on=looptime.new_event_loop, limit_s=300)


def poison(call: Call) -> None:
    """The play of an engine that breaks at one request, and works else."""
    call.error(500) if b"poison" in call.body else well(call)


def test_one_body_that_gets_a_500_closes_no_backend_for_others() -> None:
    """A request that the engine answers 500, retried while nothing else runs: never a 503, to nobody."""

    async def case(rig: Rig) -> None:
        rig.backend.play = poison
        for _ in range(12):
            assert (await rig.ask(chat("poison"))).status == 500
        assert (await rig.ask(chat("good"))).status == 200
        assert rig.state(rig.backend) == "ready"
        moves = [line for line in rig.log() if line["event"] == "backend" and line["after"] == "down"]
        assert not moves

    run(case, replace(CONFIG, health=Health(interval_s=0.05)))


def test_a_backend_that_fails_at_the_only_body_there_is_leaves_by_its_silence() -> None:
    """Nobody asks anything else, and a token that it is asked for does not come: it is the backend. It returns with one."""

    async def case(rig: Rig) -> None:
        rig.backend.play = lambda call: call.error(500)
        for _ in range(3):
            assert (await rig.ask(chat("same"))).status == 500
        await until(lambda: rig.state(rig.backend) == "down", say=lambda: rig.app.plane.fleet)
        assert (await rig.ask(chat("same"))).status == 503
        rig.backend.play = well
        await rig.routable(rig.backend)
        assert (await rig.ask(chat("same"))).status == 200

    run(case, replace(CONFIG, health=Health(interval_s=0.05)))


def test_several_bodies_that_get_500_close_no_only_backend() -> None:
    """Nobody else could serve: it stays, what is good is answered, and a token tells that it works."""

    async def case(rig: Rig) -> None:
        rig.backend.play = poison
        for number in range(8):
            assert (await rig.ask(chat(f"poison {number}"))).status == 500
        shown = (await rig.admin("GET", "/admin/backends/b0")).json
        assert (shown["routable"], shown["why"]) == (True, "it fails at requests; a token that it is asked for will tell")
        calls = rig.calls
        await virtual_pause(6.0)
        assert rig.calls == calls + 1, "the token"
        assert (await rig.ask(chat("good"))).status == 200
        assert (await rig.admin("GET", "/admin/backends/b0")).json["why"] == "ready"
        assert not [line for line in rig.log() if line["event"] == "backend" and line["after"] == "down"]

    run(case, replace(CONFIG, health=Health(interval_s=5.0)), on=looptime.new_event_loop, limit_s=300)


def test_several_bodies_that_get_500_at_one_of_two_open_its_breaker() -> None:
    """Others serve meanwhile; where all of them fail, the last one stays."""

    async def case(rig: Rig) -> None:
        for backend in rig.backends:
            backend.play = lambda call: call.error(500)
        for number in range(20):
            assert (await rig.ask(chat(f"question {number}"))).status == 500
        assert sorted(rig.state(backend) for backend in rig.backends) == ["down", "ready"]

    run(case, replace(CONFIG, health=Health(interval_s=5.0)), backends=2, on=looptime.new_event_loop, limit_s=300)


def test_a_busy_backend_that_fails_at_one_body_is_not_held_to_be_broken() -> None:
    """The token that it is asked for does not come in time, for it has much to do: nothing is concluded from that."""

    async def case(rig: Rig) -> None:
        asked = asyncio.Event()

        async def play(call: Call) -> None:
            if b"poison" in call.body:
                call.error(500)
            else:
                asked.set()
                await call.gone.wait()

        rig.backend.play = play
        for _ in range(6):
            assert (await rig.ask(chat("poison"))).status == 500
        await asked.wait()
        (replica,) = rig.app.plane.fleet
        probed_s = replica.last_probe_s
        await until(lambda: replica.last_probe_s > probed_s)
        assert replica.state == "ready"
        rig.backend.play = well

    run(case, replace(CONFIG, health=Health(interval_s=0.05, timeout_s=0.1)), on=looptime.new_event_loop, limit_s=300)


def test_a_body_goes_elsewhere_after_a_500_and_tells_on_who_fails() -> None:
    """Of two backends one is broken: a client that repeats itself gets its answer from the other, and the first leaves."""

    async def case(rig: Rig) -> None:
        rig.backends[0].play = lambda call: call.error(500)
        statuses = [(await rig.ask(chat("same"))).status for _ in range(40)]
        assert rig.state(rig.backends[0]) == "down"
        assert rig.state(rig.backends[1]) == "ready"
        assert statuses.count(500) == 3
        assert all(after == 200 for before, after in itertools.pairwise(statuses) if before == 500)

    run(case, replace(CONFIG, health=Health(interval_s=5.0)), backends=2, on=looptime.new_event_loop, limit_s=300)


def test_a_backend_that_is_too_busy_for_a_token_is_not_held_to_be_broken() -> None:
    async def case(rig: Rig) -> None:
        rig.backend.play = lambda call: call.error(500 if b"poison" in call.body else 503)
        for _ in range(6):
            assert (await rig.ask(chat("poison"))).status == 500
        tokens = len(rig.backend.calls)
        await rig.backend.called(tokens + 3)
        assert rig.state(rig.backend) == "ready"

    run(case, replace(CONFIG, health=Health(interval_s=0.05)), on=looptime.new_event_loop, limit_s=300)


@pytest.mark.parametrize("status", [501, 505])
def test_what_an_engine_does_not_do_is_no_failure_of_it(status: int) -> None:
    async def case(rig: Rig) -> None:
        rig.backend.play = lambda call: call.error(status)
        for number in range(10):
            assert (await rig.ask(chat(f"question {number}"))).status == status
        assert rig.state(rig.backend) == "ready"

    run(case)


def test_a_date_to_come_back_at_is_heeded() -> None:
    """Retry-After as an HTTP date: the backend is left alone until then, by its own clock, and the client gets it."""

    async def case(rig: Rig) -> None:
        later = b"Mon, 30 Nov 2020 12:00:07 GMT"
        rig.backend.play = lambda call: call.error(503, b"date: Mon, 30 Nov 2020 12:00:00 GMT", b"retry-after: " + later)
        refused = await rig.ask(chat())
        assert (refused.status, refused.headers[b"retry-after"]) == (503, later)
        rig.backend.play = well
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        assert (await rig.ask(chat())).status == 200
        assert 6.5 <= loop.time() - asked_s <= 7.5

    run(case, on=looptime.new_event_loop, limit_s=300)


async def add(rig: Rig, name: str) -> ScriptedBackend:
    """Start one more backend, and add it by REST."""
    backend = ScriptedBackend(name)
    await backend.start()
    added = await rig.admin("POST", "/admin/backends", {"name": name, "url": backend.url, "engine": "openai"})
    assert added.status == 202
    return backend


async def take_away(rig: Rig, backend: ScriptedBackend) -> None:
    """Remove a backend, with time to finish; a declared one is the file's, so it can only be drained."""
    path = f"/admin/backends/{backend.name}"
    if backend is rig.backend:
        assert (await rig.admin("POST", path + "/drain", {"timeout_s": 5})).status == 202
    else:
        assert (await rig.admin("DELETE", path + "?timeout_s=5")).status == 202


def test_case_10_6_a_rolling_change_under_load() -> None:
    """10.6: add a backend and take the old one away at once, under load, five times and back: no request fails."""

    async def case(rig: Rig) -> None:
        load = Load(rig, 6)
        first = old = rig.backend
        for i in range(1, 6):
            new = await add(rig, f"b{i}")
            await take_away(rig, old)
            await rig.routable(new)
            seen = len(load.statuses)
            await until(lambda seen=seen: len(load.statuses) > seen + 30)
            assert not [call for call in old.calls if call.end != "finished"]
            await old.close()
            old = new
        await first.start()
        assert (await rig.admin("POST", "/admin/backends/b0/undrain")).status == 200
        await take_away(rig, old)
        await until(lambda: rig.app.plane.fleet.get(old.name) is None)
        await load.stop()
        await old.close()
        assert set(load.statuses) == {200}

    run(case)


@pytest.mark.parametrize(("serves", "status"), [("new", 200), ("other", 404)])
def test_case_10_6_a_newcomer_is_waited_for(serves: str, status: int) -> None:
    """10.6: a backend that has not said yet what it serves: a request for what it may serve waits for its word."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def late(call: Call) -> None:
        asked.set()
        await go_on.wait()
        call.answer(b'{"object":"list","data":[{"id":"%b"}]}' % serves.encode())

    async def case(rig: Rig) -> None:
        newcomer = ScriptedBackend("newcomer")
        newcomer.get = late
        await newcomer.start()
        body = {"name": "newcomer", "url": newcomer.url, "engine": "openai"}
        assert (await rig.admin("POST", "/admin/backends", body)).status == 202
        await asked.wait()
        waiting = asyncio.create_task(rig.ask({**chat(), "model": "new"}))
        await until(lambda: rig.app.plane.held == 1)
        go_on.set()
        answer = await waiting
        assert answer.status == status
        assert len(newcomer.calls) == (status == 200)
        assert (await rig.admin("DELETE", "/admin/backends/newcomer?timeout_s=1")).status == 202
        await until(lambda: rig.app.plane.fleet.get("newcomer") is None)
        await newcomer.close()

    run(case)


def test_case_10_6_a_removed_backend_finishes_its_stream() -> None:
    """10.6: a stream that runs on a backend which is removed goes on to its end; then the backend is gone."""
    play = Held(begun=True)

    async def case(rig: Rig) -> None:
        added = await add(rig, "added")
        await rig.routable(added)
        added.play = play
        rig.app.plane.fleet.drain(rig.app.plane.fleet.get("b0"), rig.app.plane.now() + 60)
        peer = await rig.connect()
        peer.ask(chat(stream=True))
        await peer.seen(b"begun")
        assert (await rig.admin("DELETE", "/admin/backends/added?timeout_s=30")).status == 202
        assert (await rig.admin("GET", "/admin/backends/added")).json["state"] == "draining"
        play.go_on.set()
        answer = await peer.answer()
        assert answer.whole
        assert answer.body.endswith(FINISH + DONE)
        await until(lambda: rig.app.plane.fleet.get("added") is None)
        await added.close()
        assert (await rig.admin("POST", "/admin/backends/b0/undrain")).status == 200

    run(case)
