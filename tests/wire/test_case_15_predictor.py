"""Failure cases 15.3 and 15.4: predictors that lie, lag or are gone, and load figures that are old.

Faults last a minute of virtual time at 80 % of the engines' capacity; the faults of the tagger's process, which lives
outside the test's loop and clock, are in test_tagger.py.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import looptime
import pytest

from backends.mock import MockConfig
from gateway.config import GatewayConfig, Health, ModelSpec, PolicyName
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Estimate
from predictor.snapshot import ProbeReply
from predictor.wire import encode_reply
from tests.wire.kit import CONFIG, Rig, chat, run, until, virtual_pause
from tests.wire.scripted import DONE, FINISH, STREAM, Call
from tests.wire.test_probing import Link, Play, Scripted, http

FAULT_S = 60.0
PROBE_S = 0.02
SLACK_S = 0.005
ENGINE = MockConfig(
    models=("m",),
    profile=StepProfile(base_s=0.02, prefill_token_s=1e-4, decode_seq_s=0.25, kv_token_s=0.0),
    limits=EngineLimits(kv_blocks=1024, block_size=16, max_num_seqs=2, max_num_batched_tokens=512, max_model_len=8192),
    output_tokens=lambda _: 4,
)
SERVED_PER_S = 2 * 2 / 1.6  # two engines, two at once, 1.6 s each


def reply(ttft_s: float = 0.2, e2e_s: float = 1.0, running: int = 1, age_s: float = 0.01) -> ProbeReply:
    estimate = Estimate(ttft_s, (e2e_s - ttft_s) / 10, e2e_s, wait_s=0.1)
    return ProbeReply(estimate, running, 0, 500, 0, 20, age_s)


def saying(one: ProbeReply) -> bytes:
    return http(encode_reply(one))


async def hang(link: Link) -> None:
    await link.reader.read(-1)


def slow_by(wait_s: float) -> Play:
    async def play(link: Link) -> None:
        while True:
            await link.request()
            await virtual_pause(wait_s)
            link.writer.write(saying(reply()))

    return play


def always(answer: bytes) -> Play:
    async def play(link: Link) -> None:
        while True:
            await link.request()
            link.writer.write(answer)

    return play


async def close(link: Link) -> None:
    await link.request()
    link.writer.close()


NAN = float("nan")
UNHEARD = ("late", "missing")  # which of the two depends on when a connection is given up
FAULTS: dict[str, tuple[Play | None, str]] = {
    "refused": (None, "missing"),
    "slow": (slow_by(2.0), "late"),  # its connection is given up after two seconds: then it is missing, too
    "silent": (hang, "late"),
    "closing": (close, "missing"),
    "500": (always(http(b'{"error":{"code":"broken"}}', b"500 Internal Server Error")), "missing"),
    "garbage": (always(http(b"<html>it works</html>")), "garbage"),
    "impossible": (always(saying(reply(ttft_s=5.0, e2e_s=1.0))), "garbage"),
    "nan": (always(saying(reply(ttft_s=NAN))), "nan"),
    "negative": (always(saying(reply(ttft_s=-1.0))), "negative"),
    "negative count": (always(saying(reply(running=-3))), "negative"),
    "stale": (always(saying(reply(age_s=30.0))), "stale"),
    "error": (always(saying(replace(reply(), estimate=replace(reply().estimate, spread=50.0)))), "error"),
}


def config(policy: PolicyName, **rule: object) -> GatewayConfig:
    health = Health(interval_s=2.0)  # the default's many probes are most of the work of a virtual minute
    return replace(CONFIG, health=health, models=(replace(ModelSpec("m", policy, probe_s=PROBE_S), **rule),))  # type: ignore[arg-type]


async def load(rig: Rig, seconds: float, share: float) -> list[str]:
    """Requests at an even rate, a share of the capacity; all must be served. Gives their ids."""
    asked = []
    for number in range(int(seconds * share * SERVED_PER_S)):
        peer = await rig.connect()
        request_id = peer.ask(chat(f"request {number}", stream=True))
        asked.append((request_id, asyncio.create_task(peer.answer())))
        await virtual_pause(1.0 / (share * SERVED_PER_S))
    assert {(await task).status for _, task in asked} == {200}
    return [request_id for request_id, _ in asked]


def let_go(rig: Rig) -> None:
    """Close the connections to sidecars: the rules are taken anew."""
    rig.app.plane.adopt(rig.app.plane.config)


def waits_s(rig: Rig) -> dict[str, float]:
    return {line["id"]: line["queue_ms"] / 1e3 for line in rig.log() if line["event"] == "request"}


@pytest.mark.parametrize("fault", FAULTS)
def test_case_15_3_a_predictor_at_fault(fault: str) -> None:
    """15.3: for 60 s at 80 % load: all served by the ladder, no wait beyond the probe limit, counted by its cause alone,
    and predictions are used again within 2 s of the recovery."""
    play, cause = FAULTS[fault]

    async def case(rig: Rig) -> None:
        async with Scripted(play or close).running() as bad, Scripted(always(saying(reply()))).running() as good:
            for view in rig.app.plane.fleet:
                rig.app.plane.respecify_backend(replace(view.spec, sidecar=good.url))
            await load(rig, 1.0, 0.8)
            ((_, desk),) = rig.app.plane.desks
            assert not desk.ladder.counts
            wrong = "http://127.0.0.1:9" if play is None else bad.url
            for view in rig.app.plane.fleet:
                rig.app.plane.respecify_backend(replace(view.spec, sidecar=wrong))
            ids = await load(rig, FAULT_S, 0.8)
            counted = dict(desk.ladder.counts)
            assert sum(counted.values()) == len(ids)
            assert set(counted) <= ({"late", "missing"} if cause in UNHEARD else {cause})
            assert counted[cause] > 0
            for view in rig.app.plane.fleet:
                rig.app.plane.respecify_backend(replace(view.spec, sidecar=good.url))
            await virtual_pause(2.0)
            await load(rig, 2.0, 0.8)
            assert desk.ladder.counts == counted, "back to normal"
            assert f'leeway_prediction_fallbacks_total{{cause="{cause}",model="m"}} {counted[cause]}' in await rig.metrics()
            await until(lambda: set(ids) <= set(waits_s(rig)))
            waited = waits_s(rig)
            assert max(waited[one] for one in ids) <= PROBE_S + SLACK_S
            let_go(rig)

    engines = tuple(replace(ENGINE, name=name) for name in ("e0", "e1"))
    run(case, config("po2"), backends=0, engines=engines, on=looptime.new_event_loop, limit_s=300.0)


HELD = 8


def answering_together(rig: Rig) -> Callable[[Call], object]:
    """A play that answers when all of a round are there."""

    async def play(call: Call) -> None:
        number = sum(len(backend.calls) for backend in rig.backends)
        end = -(-number // HELD) * HELD
        await until(lambda: rig.calls >= end, 60.0, lambda: rig.calls)
        call.start_events()
        call.end_events(*STREAM[:-1], FINISH, DONE)

    return play


@pytest.mark.parametrize("policy", ["po2", "fanout", "min_requests", "nosim", "plan"])
def test_case_15_4_old_load_figures_do_not_herd(policy: PolicyName) -> None:
    """15.4: two equal backends, load figures that are 5 s old, 8 requests at once, 50 rounds: 5 and 3 at worst on average,
    since what was sent since the reading is added in."""
    rounds = 50

    async def case(rig: Rig) -> None:
        async with Scripted(always(saying(reply(age_s=5.0)))).running() as sidecar:
            for backend in rig.backends:
                backend.play = answering_together(rig)
            if policy != "plan":
                for view in rig.app.plane.fleet:
                    rig.app.plane.respecify_backend(replace(view.spec, sidecar=sidecar.url))
            numbers = count()
            most = []
            for _ in range(rounds):
                before = [len(backend.calls) for backend in rig.backends]
                asked = [rig.ask(chat(f"prompt {next(numbers)}", stream=True)) for _ in range(HELD)]
                assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
                most.append(max(len(backend.calls) - was for backend, was in zip(rig.backends, before, strict=True)))
            assert sum(most) / rounds <= 5.0, most
            ((_, desk),) = rig.app.plane.desks
            assert not desk.ladder.counts
            let_go(rig)

    run(case, config(policy, stale_s=20.0, probe_s=10.0), backends=2)
