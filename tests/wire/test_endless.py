"""What goes on for as long as the gateway does: a mistake in one round is told and ends nothing."""

import asyncio
from pathlib import Path

import pytest

from backends.openai import OpenAIAdapter
from gateway.endless import endless
from gateway.learnt import Learnt
from gateway.upkeep import Upkeep
from tests.wire.kit import CONFIG, Rig, run, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins anew at once."""
    monkeypatch.setattr("gateway.endless.AGAIN_S", 0.0)


def test_it_begins_anew_until_it_is_over_or_cancelled() -> None:
    async def main() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        rounds: list[int] = []
        begun, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            rounds.append(0)
            if len(rounds) < 3:
                raise RuntimeError("a mistake of ours")

        await endless(work, "it")
        assert (len(rounds), told) == (3, ["it failed, and begins anew"] * 2)

        async def forever() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.create_task(endless(forever, "it"))
        await begun.wait()
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        assert ended.is_set(), "what it did has ended before it has"

    asyncio.run(main())


@pytest.mark.parametrize("where", [(Upkeep, "_finish_drains"), (OpenAIAdapter, "check"), (Learnt, "save")], ids=str)
def test_a_mistake_ends_neither_housekeeping_nor_probing_nor_keeping(
    where: tuple[type, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = where
    works = getattr(owner, name)
    calls: list[int] = []

    def broken_once(*args: object) -> object:
        calls.append(0)
        if len(calls) == 1:
            raise RuntimeError("a mistake of ours")
        return works(*args)

    async def case(rig: Rig) -> None:
        learnt = Learnt(str(tmp_path / "learnt"), rig.app.logs, rig.app.plane.now)
        learnt.every_s = 0.01
        monkeypatch.setattr(owner, name, broken_once)
        learnt.start()
        await until(lambda: len(calls) > 2)
        await learnt.close()
        assert "a mistake of ours" in rig.faults.pop()

    run(case, CONFIG)
