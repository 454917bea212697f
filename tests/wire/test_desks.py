"""The late plan behind real sockets: prefix affinity, the line, time, faults, the ladder, and what is told of it."""

import asyncio
import math
from dataclasses import replace

import looptime
import pytest

from backends.mock import MockConfig
from gateway.config import GatewayConfig, ModelSpec, PolicyName, Queue
from predictor.prefill import StepCosts
from predictor.profile import EngineLimits, StepProfile
from tests.wire.kit import CONFIG, Rig, chat, run, until, virtual_pause
from tests.wire.scripted import DONE, FINISH, Call, Held, ScriptedBackend, event

LONG = "the same long beginning of every prompt " * 400  # 16,000 characters, seven blocks
SLOW = MockConfig(
    models=("m",),
    profile=StepProfile(base_s=0.05, prefill_token_s=1e-4, decode_seq_s=1e-4, kv_token_s=0.0),
    limits=EngineLimits(kv_blocks=4096, block_size=16, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=32768),
)


def config(policy: PolicyName = "plan", **rule: object) -> GatewayConfig:
    return replace(CONFIG, models=(replace(ModelSpec("m", policy), **rule),))  # type: ignore[arg-type]


def backend_of(answer: object) -> str:
    return answer.headers[b"x-leeway-backend"].decode()  # type: ignore[attr-defined]


def test_what_shares_a_beginning_goes_where_that_is() -> None:
    async def case(rig: Rig) -> None:
        homes = {}
        for name in ("alpha ", "beta ", "gamma "):
            homes[name] = backend_of(await rig.ask(chat(name + LONG, stream=True)))
        assert len(set(homes.values())) == 3, "each is computed where nothing is cached or waiting"
        for _ in range(4):
            for name, home in homes.items():
                assert backend_of(await rig.ask(chat(name + LONG + " more", stream=True))) == home
        desks = rig.app.plane.desks
        assert desks.hit_tokens > 0.8 * 12 * 512 * 7

    run(case, config(), backends=3)


def test_it_is_the_default_where_several_serve_a_model() -> None:
    async def several(rig: Rig) -> None:
        await rig.ask(chat())
        assert [model for model, _ in rig.app.plane.desks] == ["m"]

    async def one(rig: Rig) -> None:
        await rig.ask(chat())
        assert list(rig.app.plane.desks) == []

    run(several, CONFIG, backends=2)
    run(one, CONFIG, backends=1)


def test_the_predicted_time_is_told() -> None:
    async def case(rig: Rig) -> None:
        answer = await rig.ask(chat(stream=True))
        timing = answer.headers[b"server-timing"]
        parts = dict(part.strip().split(b";dur=") for part in timing.split(b","))
        assert set(parts) == {b"queue", b"connect", b"predict"}
        assert 0 < float(parts[b"predict"]) < 1000

    run(case, config(), backends=2)
    run(case, config("po2"), backends=2)


def test_short_ones_go_first_and_each_waits_for_an_open_replica() -> None:
    """One backend that holds its first token back: the line forms at the gateway, shortest first."""
    play = Held()
    backend = ScriptedBackend("b0")

    async def case(rig: Rig) -> None:
        backend.play = play
        asked = [asyncio.create_task(rig.ask(chat("1" * 1_500_000, stream=True)))]
        await until(lambda: len(play.order) == 1)
        for text in ("5" * 90_000, "4" * 60_000, "3" * 40_000, "2" * 20_000):
            asked.append(asyncio.create_task(rig.ask(chat(text, stream=True))))
            await until(lambda: rig.app.plane.held == len(asked) - 1)
        play.go_on.set()
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert play.order == ["1", "2", "3", "4", "5"]

    run(case, config(), backends=(backend,), on=looptime.new_event_loop)


def test_the_line_is_bounded_and_empties() -> None:
    play = Held()
    backend = ScriptedBackend("b0")

    async def case(rig: Rig) -> None:
        backend.play = play
        asked = [asyncio.create_task(rig.ask(chat("x" * 1_500_000, stream=True))) for _ in range(10)]
        await until(lambda: sum(task.done() for task in asked) == 4)
        assert rig.app.plane.held == 5
        play.go_on.set()
        statuses = sorted([answer.status for answer in await asyncio.gather(*asked)])
        assert statuses == [200] * 6 + [429] * 4
        assert (rig.app.plane.held, rig.app.plane.desks.waiting) == (0, 0)

    run(case, replace(config(), queue=Queue(size=5)), backends=(backend,))


def test_nobody_is_refused_for_a_prediction() -> None:
    """The longest wait ends: a replica that is open takes the request, though the plan would have it wait."""
    backend = ScriptedBackend("b0")
    held = asyncio.Event()

    async def play(call: Call) -> None:
        call.start_events()
        if len(backend.calls) == 1:
            await held.wait()
        call.end_events(event("x"), FINISH, DONE)

    async def case(rig: Rig) -> None:
        backend.play = play
        first = asyncio.create_task(rig.ask(chat("x" * 1_500_000, stream=True)))
        await until(lambda: len(backend.calls) == 1)
        answer = await rig.ask(chat(stream=True))
        assert answer.status == 200
        held.set()
        assert (await first).status == 200

    run(case, replace(config(), queue=Queue(timeout_s=0.3)), backends=(backend,))


def test_a_client_that_leaves_the_line_is_forgotten() -> None:
    play = Held()
    backend = ScriptedBackend("b0")

    async def case(rig: Rig) -> None:
        backend.play = play
        first = asyncio.create_task(rig.ask(chat("x" * 1_500_000, stream=True)))
        await until(lambda: len(backend.calls) == 1)
        leaver = await rig.connect()
        leaver.ask(chat("y", stream=True))
        await until(lambda: rig.app.plane.held == 1)
        leaver.close()
        await until(lambda: rig.app.plane.held == 0)
        play.go_on.set()
        assert (await first).status == 200
        assert len(backend.calls) == 1

    run(case, config(), backends=(backend,))


@pytest.mark.parametrize(
    "policy", ["plan", "po2", "fanout", "llumnix", "nosim", "dynamo", "cache_aware", "bounded_hash", "llmd"]
)
def test_every_policy_serves_and_lets_go(policy: PolicyName) -> None:
    async def case(rig: Rig) -> None:
        answers = await asyncio.gather(*(rig.ask(chat(f"{i} " * 700, stream=i % 2 == 0)) for i in range(40)))
        assert {answer.status for answer in answers} == {200}
        plane = rig.app.plane
        assert plane.desks.waiting == 0
        assert all(replica.in_flight == 0 for replica in plane.fleet)
        assert all(replica.mirror is not None and len(replica.mirror) == 0 for replica in plane.fleet)
        assert not plane.desks._placements

    run(case, config(policy), backends=3)


def test_a_broken_prediction_fails_and_delays_nobody() -> None:
    async def case(rig: Rig) -> None:
        await rig.ask(chat())
        for replica in rig.app.plane.fleet:
            assert replica.mirror is not None
            replica.mirror.costs = StepCosts(math.nan, math.nan, math.nan, math.nan)
        answers = await asyncio.gather(*(rig.ask(chat(stream=True)) for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        ((_, desk),) = rig.app.plane.desks
        assert desk.ladder.counts["nan"] >= 20
        text = await rig.metrics()
        assert 'leeway_prediction_fallbacks_total{cause="nan",model="m"}' in text.replace(
            'model="m",cause="nan"', 'cause="nan",model="m"'
        )

    run(case, config(), backends=2)


def test_a_dead_sidecar_sends_requests_down_the_ladder() -> None:
    async def case(rig: Rig) -> None:
        answers = [await rig.ask(chat(stream=True)) for _ in range(6)]
        assert {answer.status for answer in answers} == {200}
        ((_, desk),) = rig.app.plane.desks
        assert sum(desk.ladder.counts.values()) >= 6
        assert set(desk.ladder.counts) <= {"missing", "late"}

    run(case, config("po2"), backends=2, spec=lambda spec: replace(spec, sidecar="http://127.0.0.1:9"))


def test_nothing_is_kept_of_backends_that_are_gone() -> None:
    """Backends that come and go under new names: no forecast, no picture of one outlives it."""

    async def case(rig: Rig) -> None:
        server = ScriptedBackend("passing")
        await server.start()
        for name in ("pod-1", "pod-2", "pod-3"):
            made = {"name": name, "url": server.url, "engine": "openai"}
            assert (await rig.admin("POST", "/admin/backends", made)).status == 202
            await until(lambda name=name: (r := rig.app.plane.fleet.get(name)) is not None and r.state == "ready")  # type: ignore[misc]
            assert {(await rig.ask(chat(stream=True))).status for _ in range(4)} == {200}
            assert (await rig.admin("DELETE", f"/admin/backends/{name}?timeout_s=5")).status == 202
            await until(lambda name=name: rig.app.plane.fleet.get(name) is None)  # type: ignore[misc]
        assert (await rig.ask(chat(stream=True))).status == 200
        ((_, desk),) = rig.app.plane.desks
        assert set(desk._foresight._forecasts) == set(desk._foresight._paces) == {"b0", "b1"}
        await server.close()

    run(case, config("fanout"), backends=2)


def test_lengths_are_learned_from_what_engines_count() -> None:
    async def case(rig: Rig) -> None:
        for _ in range(30):
            await rig.ask(chat(stream=True))
            await virtual_pause(0.1)
        known = rig.app.plane.desks.tagging.quick("m", "chat").tag.estimate
        assert known.source != "default"
        assert known.q50 <= 16

    run(
        case,
        config(),
        backends=0,
        engines=tuple(replace(SLOW, name=name, output_tokens=lambda _: 7) for name in ("e0", "e1")),
        on=looptime.new_event_loop,
    )


def test_a_live_engine_s_pace_is_learned_and_long_prompts_are_kept_apart() -> None:
    """Two engines twenty times slower than guessed: after some streams predictions are near the truth."""

    async def case(rig: Rig) -> None:
        for i in range(12):
            await asyncio.gather(*(rig.ask(chat(f"{i} {n} " * 300, stream=True, max_tokens=40)) for n in range(4)))
        paces = [replica.mirror.pace for replica in rig.app.plane.fleet if replica.mirror is not None]
        assert all(4.0 < pace < 40.0 for pace in paces), paces

    run(case, config(), backends=0, engines=(replace(SLOW, name="e0"), replace(SLOW, name="e1")), on=looptime.new_event_loop)
