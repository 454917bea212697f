"""Who lies where is looked up beside all else: answers that come late or never, and mistakes of ours, change nothing."""

import asyncio

import looptime
import pytest

from backends.vllm_sleep import VllmSleep
from gateway.lookout import Lookout
from predictor.cost import Place
from tests.wire.kit import Case, Rig, run, until
from tests.wire.swap_kit import ask, config, engines, history, moved, sleep, sleeper, states, swapper, when


def share(case: Case) -> None:
    """Run a case with two models on one device that holds one."""
    made = engines("a", "b", sleep_s=0.1, wake_s=0.1)
    run(case, config("a", "b"), backends=0, engines=made, spec=sleeper, on=looptime.new_event_loop, limit_s=300.0)


class Told(VllmSleep):
    """A mover that says where its model is when it is told to."""

    def __init__(self, place: Place) -> None:
        self.home, self.holds = "asleep1", False
        self.place = place
        self.asked, self.may_say = asyncio.Event(), asyncio.Event()

    async def where(self) -> Place | None:
        """As told."""
        self.asked.set()
        await self.may_say.wait()
        return self.place


async def look(rig: Rig, **movers: Told) -> "asyncio.Task[None]":
    """A round of looking that waits for these."""
    told = {f"e-{name}": mover for name, mover in movers.items()}
    task = asyncio.create_task(Lookout(rig.app.plane, told, (), lambda name: None).look())
    await asyncio.gather(*(mover.asked.wait() for mover in told.values()))
    return task


def test_one_that_does_not_answer_hides_nobody() -> None:
    async def case(rig: Rig) -> None:
        silent, other = Told("gpu"), Told("asleep1")
        task = await look(rig, a=silent, b=other)
        other.may_say.set()
        await until(lambda: states(rig)["e-b"] == "asleep")
        task.cancel()

    share(case)


def test_an_answer_from_before_a_move_is_worth_nothing() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        mover = Told("gpu")
        task = await look(rig, a=mover)
        swapper(rig).unload("a")
        await moved(rig, 1)
        mover.may_say.set()
        await task
        assert states(rig) == {"e-a": "asleep", "e-b": "asleep"}
        assert (await ask(rig, "a")).status == 200
        assert rig.engines[0].seen_asleep == 0

    share(case)


def test_a_move_that_ends_by_a_mistake_leaves_nobody_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: VllmSleep, fraction: float) -> None:
        monkeypatch.undo()
        raise RuntimeError("a mistake of ours")

    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        monkeypatch.setattr(VllmSleep, "into", broken)
        assert (await ask(rig, "b")).status == 200
        assert history(rig)[-1][::2] == ("b", "done")
        assert [fault for fault in rig.faults if "a mistake of ours" in fault]
        rig.faults.clear()

    share(case)


def test_a_mistake_with_one_of_them_is_told_when_all_others_were_looked_at() -> None:
    class Broken(Told):
        async def where(self) -> Place | None:
            self.asked.set()
            raise RuntimeError("a mistake of ours")

    async def case(rig: Rig) -> None:
        other = Told("asleep1")
        task = await look(rig, a=Broken("gpu"), b=other)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        other.may_say.set()
        with pytest.raises(RuntimeError):
            await task
        assert states(rig)["e-b"] == "asleep"

    share(case)


@pytest.mark.parametrize("where", ["gateway.swapper.plan", "gateway.lookout.Lookout.look"])
def test_a_mistake_in_one_round_does_not_end_the_others(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("a mistake of ours")

    async def case(rig: Rig) -> None:
        monkeypatch.setattr(where, broken)
        if "plan" in where:
            await sleep(rig, "e-b")
            assert (await ask(rig, "b")).status == 200
        await when(lambda: bool(rig.faults))
        await sleep(rig, "e-a")
        assert "a mistake of ours" in rig.faults.pop()

    share(case)


def test_a_drain_that_is_called_off_brings_nobody_back() -> None:
    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b")
        for verb in ("drain", "undrain"):
            assert (await rig.admin("POST", f"/admin/backends/e-b/{verb}")).status in (200, 202)
        assert (await ask(rig, "b")).status == 200
        assert history(rig) == [("b", ("a",), "done")]
        assert rig.engines[1].seen_asleep == 0

    share(case)
