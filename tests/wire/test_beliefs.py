"""What was learnt of a backend must not keep away for good what would correct it."""

from dataclasses import replace

import looptime

from gateway.config import ModelSpec
from tests.wire.kit import CONFIG, Rig, chat, run, virtual_pause

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
