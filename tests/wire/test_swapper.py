"""Models that share a device, on simulated engines that sleep and wake: what others do to them is noticed."""

import looptime

from tests.wire.kit import Rig, run
from tests.wire.swap_kit import ask, config, engines, history, sleep, sleeper, states, swapper, when


def test_what_others_move_is_noticed() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        assert states(rig) == {"e-a": "ready", "e-b": "asleep"}
        assert (await ask(rig, "b")).status == 200
        assert history(rig) == [("b", ("a",), "done")]
        assert swapper(rig).counts == {("b", "done"): 1}
        await sleep(rig, "e-b")
        await when(lambda: states(rig) == {"e-a": "asleep", "e-b": "asleep"})
        assert (await ask(rig, "a")).status == 200
        assert history(rig) == [("b", ("a",), "done"), ("a", (), "done")]

    run(case, config("a", "b"), backends=0, engines=engines("a", "b"), spec=sleeper, on=looptime.new_event_loop, limit_s=120.0)
