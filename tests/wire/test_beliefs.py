"""What was learnt of a backend must not keep away for good what would correct it."""

from dataclasses import replace

import looptime
import pytest

from backends.base import EngineReport
from gateway.config import BackendSpec, Health, ModelSpec, Timeouts
from gateway.engines import GUESSED_LIMITS
from gateway.jobs import Job
from predictor.request import LengthEstimate
from tests.wire.kit import CONFIG, Rig, chat, run, until, virtual_pause
from tests.wire.scripted import Call, Held, silent, well

PLANNED = replace(CONFIG, models=(ModelSpec("m", "plan"),))
VIRTUAL = looptime.new_event_loop


def test_a_belief_that_refuses_all_strict_requests_is_put_to_the_test() -> None:
    """An engine was slow while its machine was crowded. With strict requests alone it would be asked by nobody any more."""

    async def case(rig: Rig) -> None:
        async def ask(text: str = "x") -> int:
            headers = {"x-slo-ttft-ms": "50", "x-leeway-strict": "true"}
            return (await rig.ask(chat(text, stream=True), headers=headers)).status

        assert await ask() == 200
        (replica,) = rig.app.plane.fleet
        mirror = replica.mirror
        assert mirror is not None
        for _ in range(60):
            mirror.learned.window(1.0, 40.0)
        mirror.take_pace()
        assert [await ask() for _ in range(3)] == [503] * 3
        await virtual_pause(61.0)
        assert await ask("x" * 1_000_000) == 503, "too long at any pace that it may have"
        assert [await ask() for _ in range(3)] == [200, 503, 503]
        await virtual_pause(61.0)
        assert [await ask() for _ in range(2)] == [200, 503]

    run(case, PLANNED, on=VIRTUAL, limit_s=600)


async def wedge(rig: Rig) -> None:
    """Three requests in a row get no first byte."""
    rig.backend.play = silent
    for _ in range(3):
        assert (await rig.ask(chat())).status == 504
    assert rig.state(rig.backend) == "down"


WEDGING = replace(CONFIG, health=Health(interval_s=0.5, timeout_s=1.0), timeouts=Timeouts(first_byte_s=2.0, unary_s=2.0))


async def slow(call: Call) -> None:
    await virtual_pause(5.0)
    well(call)


def embeds(call: Call) -> None:
    """As llama.cpp's server does with --embeddings."""
    call.error(501) if "chat" in call.target.decode() else well(call)


@pytest.mark.parametrize("play", [slow, embeds])
def test_a_token_that_takes_long_or_is_not_made_at_all_proves_enough(play: object) -> None:
    """An engine without a GPU needs seconds for the token that is asked of a wedged one; one for embeddings makes none."""

    async def case(rig: Rig) -> None:
        await wedge(rig)
        rig.backend.play = play  # type: ignore[assignment]
        await virtual_pause(60.0)
        assert rig.state(rig.backend) == "ready"
        rig.backend.play = well
        assert (await rig.ask(chat())).status == 200

    run(case, WEDGING, on=VIRTUAL, limit_s=600)


def test_a_stream_that_goes_on_proves_that_its_engine_was_only_busy() -> None:
    """A prompt took longer than `wedge_s`, and now its tokens come, while nothing else fits in beside."""

    async def case(rig: Rig) -> None:
        rig.backend.play = held = Held(begun=False)
        peer = await rig.connect()
        peer.ask(chat(stream=True))
        await until(lambda: rig.state(rig.backend) == "down")
        rig.backend.play = silent
        await virtual_pause(5.0)
        assert rig.state(rig.backend) == "down", "a head that was there before is no token"
        held.go_on.set()
        await virtual_pause(5.0)
        assert (await peer.answer()).status == 200
        assert rig.state(rig.backend) == "ready"
        (replica,) = rig.app.plane.fleet
        assert replica.trial, "one request has to tell the rest"
        rig.backend.play = well
        assert (await rig.ask(chat())).status == 200

    run(case, replace(CONFIG, health=Health(interval_s=0.5, timeout_s=1.0, wedge_s=3.0)), on=VIRTUAL, limit_s=600)


def test_a_backend_at_another_address_is_believed_to_be_none_of_what_the_old_one_was() -> None:
    async def case(rig: Rig) -> None:
        assert (await rig.ask(chat())).status == 200
        plane, engines = rig.app.plane, rig.app.plane.desks.engines
        old, spare = plane.fleet
        mirror = old.mirror
        assert mirror is not None
        for number in range(12):
            at_s = 5.0 * number
            jobs = [Job(f"t{number}.{index}", "m", 100, LengthEstimate(4, 8, 16, "t"), at_s) for index in range(3)]
            for job in jobs:
                mirror.dispatched(job, 0, at_s)
            engines.reported(old, EngineReport(20, 0.2, 500, 16, (), 4), at_s + 1.0)
            for job in jobs:
                mirror.finished(job.id, at_s + 4.0)
        assert (mirror.limits.max_num_seqs, mirror.limits.kv_blocks) == (17, 500)
        rig.app.operations._respecify(replace(old.spec, url=spare.spec.url))
        await rig.routable()
        assert (await rig.ask(chat())).status == 200
        assert len(rig.backends[1].calls) == 1
        replica, _ = plane.fleet
        assert replica.mirror is not None
        assert replica.mirror.limits == GUESSED_LIMITS

    def apart(spec: BackendSpec) -> BackendSpec:
        return replace(spec, models=("m" if spec.name == "b0" else "other",))

    run(case, PLANNED, backends=2, spec=apart, on=VIRTUAL, limit_s=600)
