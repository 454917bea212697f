"""Models whose processes the gateway starts: crashes, loads that fail, its own end. Small real servers, real time."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from backends.managed import ManagedProcess
from tests.wire.kit import Rig, chat, run, until
from tests.wire.process_kit import alive, backend, pids, say, settings
from tests.wire.swap_kit import history, states, swapper


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again after some seconds is here after some tenths."""
    monkeypatch.setattr("gateway.lodging.BAR_FIRST_S", 0.3)


def reasons(rig: Rig, event: str) -> list[str]:
    """What the log says so far of such an event, and why."""
    return [line["reason"] for line in rig.log() if line["event"] == event]


def test_two_processes_take_turns_and_none_outlives_the_gateway(tmp_path: Path) -> None:
    made = settings(backend(tmp_path, "a"), backend(tmp_path, "b"))

    async def case(rig: Rig) -> None:
        assert [await say(rig, model) for model in "abbaa"] == list("abbaa")
        assert history(rig) == [("a", (), "done"), ("b", ("a",), "done"), ("a", ("b",), "done")]
        assert [alive(pid) for pid in (*pids(tmp_path, "a"), *pids(tmp_path, "b"))] == [False, True, False]
        both = await asyncio.gather(*[say(rig, model) for model in "abababab"])
        assert both == list("abababab")
        assert len(history(rig)) <= 5
        costs, size = rig.app.plane.lodging.costs, 16e9
        assert costs.predict("a", size, "rtx-5000-ada", "disk", "gpu").seen == 1
        assert costs.predict("a", size, "rtx-5000-ada", "cache", "gpu").seen >= 1, "the second time it was near"
        assert rig.app.plane.lodging.lodgers["e-a"].rest == "cache", "and stays so when it leaves"

    run(case, made, backends=0)
    assert not any(alive(pid) for model in "ab" for pid in pids(tmp_path, model))


def test_one_that_crashes_comes_back_by_itself(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        assert await say(rig, "a") == "a"
        lost = asyncio.create_task(rig.ask({**chat(), "model": "a", "user": "wait"}))
        await until(lambda: rig.app.plane.fleet.get("e-a").in_flight == 1)
        os.kill(pids(tmp_path, "a")[-1], signal.SIGKILL)
        assert (await lost).status == 502
        await until(lambda: len(reasons(rig, "model gone")) == 1)
        assert await say(rig, "a") == "a", "who comes meanwhile waits for it"
        os.kill(pids(tmp_path, "a")[-1], signal.SIGKILL)
        await until(lambda: len(pids(tmp_path, "a")) == 3 and states(rig) == {"e-a": "ready"})
        assert [told.outcome for told in swapper(rig).history] == ["done"] * 3
        await until(lambda: len(reasons(rig, "model gone")) == 2)
        assert all("ended with 137" in reason for reason in reasons(rig, "model gone"))

    run(case, settings(backend(tmp_path, "a")), backends=0)


def test_one_that_is_killed_while_it_loads_is_started_again(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        assert await say(rig, "a") == "a"
        assert len(pids(tmp_path, "a")) == 2
        (told,) = swapper(rig).history
        assert told.outcome == "done"
        await until(lambda: bool(reasons(rig, "move tried again")))
        (again,) = reasons(rig, "move tried again")
        assert "killed while it loaded" in again

    run(case, settings(backend(tmp_path, "a", fails=1)), backends=0)


def test_one_that_never_loads_is_refused_honestly_and_the_other_comes_back(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        assert await say(rig, "a") == "a"
        answer = await rig.ask({**chat(), "model": "b"})
        assert (answer.status, answer.error["code"]) == (503, "model_not_loaded")
        assert int(answer.headers[b"retry-after"]) >= 1
        assert "killed" not in answer.error["message"]
        assert await say(rig, "a") == "a"
        assert not any(alive(pid) for pid in pids(tmp_path, "b"))

    run(case, settings(backend(tmp_path, "a"), backend(tmp_path, "b", fails=99)), backends=0)


def test_a_prefetch_that_brings_nothing_nearer_teaches_nothing(tmp_path: Path) -> None:
    async def case(rig: Rig) -> None:
        lodger = rig.app.plane.lodging.lodgers["e-a"]
        for _ in range(2):
            swapper(rig)._prefetch("a", "gpu0")  # its command names no files of weights
            await until(lambda: not swapper(rig).moving)
        assert (lodger.place, lodger.fetches) == ("disk", False)
        assert rig.app.plane.lodging.costs.predict("a", 16e9, "rtx-5000-ada", "disk", "ram").seen == 0
        swapper(rig)._prefetch("a", "gpu0")
        assert not swapper(rig).moving, "nor is it tried again and again"

    run(case, settings(backend(tmp_path, "a")), backends=0)


def test_reading_ahead_makes_way_for_a_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless_read(self: ManagedProcess) -> None:
        await asyncio.Event().wait()

    async def case(rig: Rig) -> None:
        monkeypatch.setattr(ManagedProcess, "prefetch", endless_read)
        swapper(rig)._prefetch("b", "gpu0")
        assert swapper(rig).moving == {"gpu0"}
        assert await say(rig, "a") == "a"
        assert history(rig) == [("a", (), "done")]

    run(case, settings(backend(tmp_path, "a"), backend(tmp_path, "b")), backends=0)


def test_while_nobody_waits_what_may_be_asked_for_is_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.swapper.IDLE_S", 0.2)
    (tmp_path / "b.safetensors").write_bytes(bytes(100_000))
    asked = backend(tmp_path, "b")
    asked = replace(asked, swap=replace(asked.swap, command=(*asked.swap.command, str(tmp_path / "b.safetensors"))))
    made = settings(backend(tmp_path, "a"), asked)
    made = replace(made, devices=tuple(replace(device, ram_gb=64.0) for device in made.devices))

    async def case(rig: Rig) -> None:
        lodging = rig.app.plane.lodging
        lodging.arrived("b", rig.app.plane.now(), float("inf"))
        await until(lambda: lodging.lodgers["e-b"].place == "cache")
        assert not history(rig), "nothing was moved for it"
        assert not pids(tmp_path, "b")
        assert lodging.lodgers["e-a"].place == "disk", "nobody ever asked for that one"

    run(case, made, backends=0)
