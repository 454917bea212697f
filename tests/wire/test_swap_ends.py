"""The gateway's end, however it comes, in the middle of a swap or after it; and processes of ours that hang. Real time."""

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.wire.kit import Rig, chat, run, until
from tests.wire.process_kit import alive, backend, pids, say, settings
from tests.wire.served import served
from tests.wire.swap_kit import history, states

STOP_S = 0.5


def toml(folder: Path, **environment: str) -> str:
    """One model, with a process of ours that has this environment."""
    spec = backend(folder, "a")
    command = json.dumps(spec.swap.command)
    env = ", ".join(f'{name} = "{value}"' for name, value in environment.items())
    swap = f'device = "gpu0", way = "process", command = {command}, env = {{ {env} }}, start_s = 60, stop_s = {STOP_S}'
    return f"""
[swaps]
plan_s = 0.1
[[devices]]
name = "gpu0"
memory_gb = 20
[models.a]
footprint = {{ weight_gb = 16 }}
[tagger]
mode = "off"
[[backends]]
name = "e-a"
url = "{spec.url}"
engine = "openai"
models = ["a"]
swap = {{ {swap} }}
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("when", ["LOADING", "LOADED"])
def test_nothing_outlives_the_gateway_whatever_it_heeds(tmp_path: Path, how: signal.Signals, when: str) -> None:
    async def main() -> None:
        stubborn = {"STUBBORN": "1"} if how == signal.SIGTERM else {}
        async with served(tmp_path, toml(tmp_path, **stubborn, **{when: "1"})) as gateway:
            peer = await gateway.connect()
            peer.ask({**chat(), "model": "a"}, "/v1/chat/completions", "POST", {"content-type": "application/json"})
            if when == "LOADED":
                assert (await peer.answer()).status == 200
            await until(lambda: bool(pids(tmp_path, "a")), 60.0)
            (pid,) = pids(tmp_path, "a")
            assert alive(pid)
            os.kill(gateway.pid, how)
            if how == signal.SIGTERM and when == "LOADING":
                await gateway.event("draining")
                gateway.terminate()  # else it waits for the request
            code = await gateway.ended()
            gateway.sent.ids.clear()
            assert code == (0 if how == signal.SIGTERM else -signal.SIGKILL)
            await until(lambda: not alive(pid))
            peer.close()

    asyncio.run(main())


def test_a_process_that_answers_nobody_any_more_is_ended_and_comes_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.swapper.DOWN_S", 0.3)
    made = settings(backend(tmp_path, "a"))
    made = replace(made, health=replace(made.health, interval_s=0.1, timeout_s=1.0, failures=2))

    async def case(rig: Rig) -> None:
        assert await say(rig, "a") == "a"
        (pid,) = pids(tmp_path, "a")
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: states(rig)["e-a"] == "down", 60.0)
        await until(lambda: not alive(pid), 60.0)
        await until(lambda: len(history(rig)) == 2)
        assert history(rig)[-1] == ("", ("a",), "done")
        assert await say(rig, "a") == "a"

    spec = made.backends[0]
    quick = replace(spec, swap=replace(spec.swap, stop_s=0.3))
    run(case, replace(made, backends=(quick,)), backends=0)
