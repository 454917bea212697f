"""The mover of vLLM's sleep mode, against the simulated engine's dev routes; and what movers of all servers share."""

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from backends.mock import MockConfig, MockEngine
from backends.movers import mover_for
from backends.moves import MoveError
from predictor.profile import preset
from tests.wire.kit import until
from tests.wire.mover_kit import Recorded, Script, control_of, spec, stub, there_and_back

DEV = MockConfig(models=("m",), dev_mode=True, profile=preset("instant").profile, limits=preset("instant").limits)
SLOW = MockConfig(models=("m",), dev_mode=True)


def with_vllm(use: Callable[[MockEngine, Recorded], Awaitable[None]], config: MockConfig = DEV) -> None:
    async def run() -> None:
        async with MockEngine(config) as engine, control_of(engine.url) as http:
            await use(engine, http)

    asyncio.run(run())


def with_stub(script: Script, use: Callable[[str, Recorded], Awaitable[None]]) -> None:
    async def run() -> None:
        async with stub(script) as url, control_of(url) as http:
            await use(url, http)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("level", "home", "posts"),
    [
        (1, "asleep1", ["/sleep?level=1&mode=wait", "/wake_up?tags=weights", "/wake_up?tags=kv_cache"]),
        (
            2,
            "asleep2",
            [
                "/sleep?level=2&mode=wait",
                "/wake_up?tags=weights",
                '/collective_rpc {"method": "reload_weights"}',
                "/wake_up?tags=kv_cache",
            ],
        ),
    ],
)
def test_vllm_sleeps_and_wakes(level: int, home: str, posts: list[str]) -> None:
    async def use(engine: MockEngine, http: Recorded) -> None:
        mover = mover_for(spec("sleep", engine.url, level=level), http)
        assert (mover.home, mover.keeps, mover.parts, await mover.where()) == (home, False, False, "gpu")
        await there_and_back(mover)
        assert http.posts == posts

    with_vllm(use)


def test_vllm_keeps_requests_over_a_sleep() -> None:
    async def use(engine: MockEngine, http: Recorded) -> None:
        mover = mover_for(spec("sleep", engine.url, keeps=True), http)
        body = {"model": "m", "prompt": "one two three", "max_tokens": 5, "ignore_eos": True}
        async with aiohttp.ClientSession(engine.url) as client:
            asked = asyncio.create_task(client.post("/v1/completions", json=body))
            await until(lambda: engine.in_flight == 1)
            await mover.out(keep=True)
            assert not asked.done()
            await mover.into(1.0)
            async with await asked as response:
                assert (await response.json())["usage"]["completion_tokens"] == 5

    with_vllm(use, SLOW)


def test_vllm_that_is_only_paused_is_let_go_on() -> None:
    async def use(engine: MockEngine, http: Recorded) -> None:
        await http.post("/pause?mode=wait", {})
        mover = mover_for(spec("sleep", engine.url), http)
        assert await mover.where() == "asleep1"
        await mover.into(1.0)
        assert await mover.where() == "gpu"

    with_vllm(use)


def test_vllm_that_cannot_sleep_says_why() -> None:
    async def without_dev_mode(engine: MockEngine, http: Recorded) -> None:
        mover = mover_for(spec("sleep", engine.url), http)
        assert await mover.where() is None
        with pytest.raises(MoveError, match="VLLM_SERVER_DEV_MODE"):
            await mover.out(keep=False)

    with_vllm(without_dev_mode, MockConfig(models=("m",), dev_mode=False))


@pytest.mark.parametrize(
    ("model", "device", "told"),
    [(False, "cuda", "--enable-sleep-mode"), (False, "cpu", "says no"), (True, "cuda", "says no"), (None, "", "says no")],
)
def test_vllm_is_asked_whether_its_sleep_frees_anything(model: bool | None, device: str, told: str) -> None:
    config = {"model_config": {"enable_sleep_mode": model}, "device_config": {"device_type": device}}

    def vllm(method: str, path: str, body: dict[str, object]) -> tuple[int, object]:
        """Answers /sleep well and does not sleep."""
        return {"/is_sleeping": (200, {"is_sleeping": False}), "/server_info": (200, {"vllm_config": config})}.get(
            path, (200, {})
        )

    async def use(url: str, http: Recorded) -> None:
        with pytest.raises(MoveError, match=told):
            await mover_for(spec("sleep", url), http).out(keep=False)

    with_stub(vllm, use)


def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    def silent(method: str, path: str, body: dict[str, object]) -> tuple[int, object]:
        return (200, {"is_sleeping": True}) if path == "/is_sleeping" else (0, {})

    async def use(url: str, http: Recorded) -> None:
        with pytest.raises(MoveError, match=r"wake-up: not done within 0\.1 s"):
            await mover_for(spec("sleep", url, start_s=0.1), http).into(1.0)

    with_stub(silent, use)


def test_a_server_that_is_not_there_is_nowhere() -> None:
    async def run() -> None:
        async with control_of("http://127.0.0.1:9") as http:
            for way in ("sleep", "memory", "ollama", "llamacpp"):
                mover = mover_for(spec(way, "http://127.0.0.1:9"), http)  # type: ignore[arg-type]
                assert await mover.where() is None
                with pytest.raises(MoveError, match="Connect call failed"):
                    await mover.into(1.0)
                with pytest.raises(MoveError, match="Connect call failed"):
                    await mover.out(keep=False)
                await mover.prefetch()
                await mover.close()
                assert mover.died() == ""

    asyncio.run(run())


@pytest.mark.parametrize(
    "fields", [{"way": "none"}, {"way": "sleep", "level": 3}, {"way": "memory", "level": 0}, {"way": "process"}]
)
def test_a_spec_that_cannot_work_is_refused(fields: dict[str, object]) -> None:
    async def run() -> None:
        async with control_of("http://127.0.0.1:9") as http:
            with pytest.raises(ValueError, match=r"level|way|command"):
                mover_for(spec(url="http://127.0.0.1:9", **fields), http)  # type: ignore[arg-type]

    asyncio.run(run())
