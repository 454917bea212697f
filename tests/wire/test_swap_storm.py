"""Swaps under control requests that are refused, or done without an answer, at random; what must hold all the time.

Never are two models on a device that holds one, whatever half of a move was done; no stream is broken; no request reaches an
engine that is not there; and once nothing fails any more, every request is served.
"""

import asyncio
from dataclasses import replace
from random import Random

import looptime
import pytest

from backends import vllm_sleep
from backends.base import ControlHttp, ProbeFailedError, Reply
from backends.control_http import BackendControl
from backends.moves import MoveError
from gateway.config import BackendSpec, Queue
from gateway.swap_config import Swaps
from tests.wire.kit import Rig, run, virtual_pause
from tests.wire.peer import Answer
from tests.wire.swap_kit import ask, config, engines, history, sleep, sleeper, states, swapper, when, whole

MODELS = ("a", "b", "c")
TOKENS = 6
STORM_S = 120.0
SWAPS = Swaps(plan_s=0.2, dwell_s=0.5, starve_s=30.0, drain_s=20.0)


class Storm:
    """Makes control requests fail as long as it lasts. `there` are the engines, by URL, whose weights are on the device, and
    `most` of them were there at once."""

    def __init__(self, rng: Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rng = rng
        self._plain = vllm_sleep.tell
        self.there: set[str] = set()
        self.lasts = True
        self.failed = self.most = 0
        monkeypatch.setattr(vllm_sleep, "tell", self._tell)

    async def _tell(self, http: ControlHttp, path: str, body: dict[str, object] | None = None) -> Reply:
        how = self._rng.choice(["well"] * 5 + ["refused", "done unheard", "gone"]) if self.lasts else "well"
        self.failed += how != "well"
        if how == "refused":
            raise MoveError(f"{path} answered 500")
        if how == "gone":
            raise ProbeFailedError("connection reset")
        assert isinstance(http, BackendControl)
        if "tags=weights" in path:
            self.there.add(http._url)
            self.most = max(self.most, len(self.there))
        reply = await self._plain(http, path, body)
        if path.startswith("/sleep"):
            self.there.discard(http._url)
        if how == "done unheard":
            raise ProbeFailedError("connection reset")
        return reply


def deep(spec: BackendSpec) -> BackendSpec:
    """Its backend, whose weights are read again when it wakes up."""
    found = sleeper(spec)
    return replace(found, swap=replace(found.swap, level=2))


async def asked(rig: Rig, rng: Random) -> "list[asyncio.Task[Answer]]":
    """Requests for all models, as long as the storm lasts."""
    tasks = []
    end_s = asyncio.get_running_loop().time() + STORM_S
    while asyncio.get_running_loop().time() < end_s:
        tasks.append(ask(rig, rng.choice(MODELS)))
        await virtual_pause(rng.expovariate(0.5))
    return tasks


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_failing_moves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)

    async def case(rig: Rig) -> None:
        await sleep(rig, "e-b", "e-c")
        storm = Storm(rng, monkeypatch)
        storm.there = {rig.engines[0].url}
        tasks = await asked(rig, rng)
        storm.lasts = False
        answers = await asyncio.gather(*tasks)
        assert {answer.status for answer in answers} <= {200, 503}
        assert all(answer.whole for answer in answers)
        assert storm.failed >= 5
        assert storm.most == 1
        lodgers = rig.app.plane.lodging.lodgers.values()
        await when(lambda: not any(one.stuck or one.phase in ("coming", "leaving") for one in lodgers), 400.0, lambda: lodgers)
        for model in MODELS:
            await when(lambda m=model: rig.app.plane.lodging.barred_s(m, "gpu0", rig.app.plane.now()) <= 0, 400.0)
            if (await ask(rig, model)).status != 200:  # refused at once, since it failed thrice, and brought all the same
                await when(lambda m=model: states(rig)[f"e-{m}"] == "ready", 60.0)
                assert whole(await ask(rig, model), TOKENS), (history(rig), states(rig))
        assert len(storm.there) == 1
        assert not [engine.seen_asleep for engine in rig.engines if engine.seen_asleep]
        assert len(swapper(rig).history) >= 5

    made = engines(*MODELS, tokens=TOKENS, token_s=0.1, sleep_s=0.5, wake_s=1.0)
    settings = replace(config(*MODELS, swaps=SWAPS), queue=Queue(timeout_s=200.0))
    run(case, settings, backends=0, engines=made, spec=deep, on=looptime.new_event_loop, limit_s=5000.0)
