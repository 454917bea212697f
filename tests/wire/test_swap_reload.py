"""Reloads while models lie on devices: what changes of a process waits for its requests, and disturbs nobody else."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import GatewayConfig, Queue
from tests.tools.programs import free_port
from tests.wire.kit import Rig, chat, run, until
from tests.wire.peer import Answer
from tests.wire.process_kit import SWAPS, alive, backend, pids, say, settings
from tests.wire.swap_kit import history, states


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again after some seconds is here after some tenths."""
    monkeypatch.setattr("gateway.lodging.BAR_FIRST_S", 0.3)


def test_a_reload_ends_what_it_drops_and_nothing_else(tmp_path: Path) -> None:
    made = settings(backend(tmp_path, "a"), backend(tmp_path, "b"))
    a, b = made.backends
    config = [made]

    async def case(rig: Rig) -> None:
        waits = asyncio.create_task(rig.ask({**chat(), "model": "a", "user": "wait"}))
        await until(lambda: rig.app.plane.fleet.get("e-a").in_flight == 1)
        config[0] = replace(made, backends=(replace(a, weight=2.0), b))
        await rig.app.operations.reload()
        assert rig.app.plane.fleet.get("e-a").weight == 2.0
        other = replace(a, swap=replace(a.swap, env=(("FAILS", "0"), ("MORE", "1"))))
        config[0] = replace(made, backends=(other, b))
        await rig.app.operations.reload()
        (first,) = pids(tmp_path, "a")
        assert alive(first), "not before its requests are over"
        (tmp_path / "go").touch()
        assert (await waits).json["choices"][0]["message"]["content"] == "a"
        await until(lambda: not alive(first))
        assert await say(rig, "a") == "a"
        _, second = pids(tmp_path, "a")
        config[0] = replace(made, backends=(b,), models=made.models[1:])
        await rig.app.operations.reload()
        await until(lambda: not alive(second))
        assert (await rig.ask({**chat(), "model": "a"})).status == 404
        assert await say(rig, "b") == "b"
        config[0] = replace(made, backends=(), models=(), devices=())
        await rig.app.operations.reload()
        await until(lambda: not any(alive(pid) for pid in pids(tmp_path, "b")))

    run(case, made, backends=0, load=lambda: config[0])


def test_a_reload_in_the_middle_of_a_load(tmp_path: Path) -> None:
    """What was dropped meanwhile is ended, however its load goes."""
    made = settings(backend(tmp_path, "a", fails=1))
    config = [made]

    async def case(rig: Rig) -> None:
        waits = asyncio.create_task(rig.ask({**chat(), "model": "a"}))
        await until(lambda: bool(pids(tmp_path, "a")))
        config[0] = replace(made, backends=(), models=())
        await rig.app.operations.reload()
        assert (await waits).status in (200, 404, 503)
        await until(lambda: rig.app.plane.fleet.get("e-a") is None and not rig.app.plane.lodging.lodgers)
        await until(lambda: not any(alive(pid) for pid in pids(tmp_path, "a")))

    run(case, made, backends=0, load=lambda: config[0])


async def busy(rig: Rig, model: str = "a") -> "asyncio.Task[Answer]":
    """A request of a model that does not end before there is a file `go`."""
    waits = asyncio.create_task(rig.ask({**chat(), "model": model, "user": "wait"}))
    await until(lambda: rig.app.plane.fleet.get(f"e-{model}").in_flight == 1)
    return waits


def said(answer: Answer) -> object:
    """What a model said."""
    assert answer.status == 200, answer
    return answer.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize("what", ["url", "model", "command", "engine"])
def test_what_changes_of_a_process_waits_for_its_requests(tmp_path: Path, what: str) -> None:
    made = settings(backend(tmp_path, "a"))
    (a,) = made.backends
    other = {
        "url": replace(a, url=f"http://127.0.0.1:{free_port()}"),
        "model": replace(a, models=("c",)),
        "command": replace(a, swap=replace(a.swap, command=(*a.swap.command, "more"))),
        "engine": replace(a, engine="auto"),
    }[what]
    (model,) = other.models
    config = [made]

    async def case(rig: Rig) -> None:
        waits = await busy(rig)
        (first,) = pids(tmp_path, "a")
        rules = tuple(replace(rule, name=model) for rule in made.models)
        config[0] = replace(made, backends=(other,), models=rules)
        await rig.app.operations.reload()
        late = asyncio.create_task(say(rig, model))
        await until(lambda: states(rig)["e-a"] != "ready")
        assert alive(first), "not before its requests are over"
        assert not late.done(), "who comes now waits for the new one"
        (tmp_path / "go").touch()
        assert said(await waits) == "a"
        assert await late == model
        await until(lambda: not alive(first))
        assert alive(pids(tmp_path, model)[-1])
        assert rig.app.plane.fleet.get("e-a").spec == other
        assert {outcome for *_, outcome in history(rig)} == {"done"}

    run(case, made, backends=0, load=lambda: config[0])


def test_requests_that_do_not_end_are_cut_off_at_the_limit(tmp_path: Path) -> None:
    made = settings(backend(tmp_path, "a"), swaps=replace(SWAPS, drain_s=0.5))
    (a,) = made.backends
    config = [made]

    async def case(rig: Rig) -> None:
        waits = await busy(rig)
        (first,) = pids(tmp_path, "a")
        config[0] = replace(made, backends=(replace(a, url=f"http://127.0.0.1:{free_port()}"),))
        await rig.app.operations.reload()
        assert (await waits).status == 502
        await until(lambda: not alive(first))
        assert await say(rig, "a") == "a"

    run(case, made, backends=0, load=lambda: config[0])


def test_a_process_that_is_not_ours_any_more_is_used_once_ours_is_gone(tmp_path: Path) -> None:
    made = settings(backend(tmp_path, "a"))
    (a,) = made.backends
    config = [made]

    async def case(rig: Rig) -> None:
        waits = await busy(rig)
        (first,) = pids(tmp_path, "a")
        stays = replace(a, models=("c",), swap=replace(a.swap, way="none"))
        config[0] = replace(made, backends=(stays,), models=(), queue=Queue(timeout_s=1.0))
        await rig.app.operations.reload()
        refused = await rig.ask({**chat(), "model": "c"})
        assert refused.status in (429, 503), "it would go to a process that is about to end"
        (tmp_path / "go").touch()
        assert said(await waits) == "a"
        await until(lambda: not alive(first))
        await until(lambda: states(rig)["e-a"] == "down")

    run(case, made, backends=0, load=lambda: config[0])


def test_a_device_that_is_renamed_hinders_no_other(tmp_path: Path) -> None:
    made = settings(backend(tmp_path, "a"), backend(tmp_path, "b"))
    a, b = made.backends
    config = [made]

    async def case(rig: Rig) -> None:
        waits = await busy(rig)
        (device,) = made.devices
        moved = [replace(one, swap=replace(one.swap, device=name)) for one, name in ((a, "gpu1"), (b, "gpu2"))]
        devices = tuple(replace(device, name=name) for name in ("gpu1", "gpu2"))
        config[0] = replace(made, backends=tuple(moved), devices=devices)
        await rig.app.operations.reload()
        assert await say(rig, "b") == "b", "planned while the other still leaves a device that is gone"
        assert not waits.done()
        (tmp_path / "go").touch()
        assert said(await waits) == "a"
        assert await say(rig, "a") == "a"
        assert len(pids(tmp_path, "a")) == 2

    run(case, made, backends=0, load=lambda: config[0])


def test_a_backend_that_was_dropped_and_is_back_before_it_is_gone(tmp_path: Path) -> None:
    made = settings(backend(tmp_path, "a"))
    config: list[GatewayConfig] = [made]

    async def case(rig: Rig) -> None:
        assert await say(rig, "a") == "a"
        waits = await busy(rig)
        for backends in ((), made.backends):
            config[0] = replace(made, backends=backends)
            await rig.app.operations.reload()
        (tmp_path / "go").touch()
        assert said(await waits) == "a"
        assert await say(rig, "a") == "a"
        assert len(pids(tmp_path, "a")) == 1

    run(case, made, backends=0, load=lambda: config[0])
