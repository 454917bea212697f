"""Moves that stop half way: what of the device's memory is taken then, who says so, and how it is put right. On STUBS.

What the stubs do is what the sources of vLLM 0.32 and SGLang 0.5.23 say: neither is run here with memory to free.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import pytest

from backends.base import ProbeFailedError, Reply
from backends.movers import mover_for
from backends.moves import MoveError
from tests.wire.kit import until
from tests.wire.mover_kit import Recorded, Script, control_of, spec, stub
from tests.wire.mover_stubs import Sglang, Vllm


def with_stub(script: Script, use: Callable[[str, Recorded], Awaitable[None]]) -> None:
    async def run() -> None:
        async with stub(script) as url, control_of(url) as http:
            await use(url, http)

    asyncio.run(run())


class Gone(Recorded):
    """Control requests to a server that may be `gone`."""

    def __init__(self, http: Recorded) -> None:
        self._http = http
        self.gone = False

    async def get(self, path: str) -> Reply:
        """GET."""
        if self.gone:
            raise ProbeFailedError("connection refused")
        return await self._http.get(path)

    async def post(self, path: str, body: dict[str, object]) -> Reply:
        """POST."""
        return await self._http.post(path, body)


@pytest.mark.parametrize(("level", "fails"), [(2, "reload"), (2, "kv_cache"), (1, "kv_cache")])
def test_vllm_that_wakes_up_half_way_is_put_back_to_sleep(level: int, fails: str) -> None:
    server = Vllm(kept=True)

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("sleep", url, level=level, keeps=True), http)
        await mover.out(keep=True)
        assert (server.mapped, mover.holds) == (set(), False)
        server.fails = {fails}
        with pytest.raises(MoveError, match="answered 500"):
            await mover.into(1.0)
        assert (await mover.where(), mover.holds) == (mover.home, True), "out, and its weights are there"
        assert "weights" in server.mapped
        await mover.out(keep=False)
        assert (server.mapped, mover.holds, server.dead) == (set(), False, False)
        await mover.into(1.0)
        assert (server.mapped, await mover.where(), mover.holds) == ({"weights", "kv_cache"}, "gpu", False)

    with_stub(server, use)


def test_vllm_whose_weights_came_half_way_says_so_until_it_has_woken_up() -> None:
    server = Vllm()

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("sleep", url), http)
        await mover.out(keep=False)
        server.fails = {"weights"}
        with pytest.raises(MoveError, match="answered 500"):
            await mover.into(1.0)
        for _ in range(2):
            with pytest.raises(MoveError, match="within the weights"):
                await mover.out(keep=False)
            assert (mover.holds, server.mapped) == (True, {"part of weights"})
        await mover.into(1.0)
        assert not mover.holds
        await mover.out(keep=False)
        assert (server.mapped, mover.holds) == (set(), False)

    with_stub(server, use)


@pytest.mark.parametrize("way", ["sleep", "memory"])
def test_one_that_is_let_go_in_the_middle_is_put_back(way: str) -> None:
    vllm, sglang = Vllm(), Sglang(enable_weights_cpu_backup=False)
    stopped = asyncio.Event()

    def server(method: str, path: str, body: dict[str, object]) -> tuple[int, object]:
        said = (vllm if way == "sleep" else sglang)(method, path, body)  # type: ignore[operator]
        if path in {"/collective_rpc", "/update_weights_from_disk"}:
            stopped.set()
            return 0, {}
        return said

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec(way, url, level=2), http)  # type: ignore[arg-type]
        await mover.out(keep=False)
        load = asyncio.create_task(mover.into(1.0))
        await stopped.wait()
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        assert mover.holds
        await mover.close()
        assert not mover.holds
        assert vllm.mapped == set() if way == "sleep" else (sglang.released and not sglang.dead)

    with_stub(server, use)


@pytest.mark.parametrize("way", ["sleep", "memory"])
def test_who_is_gone_holds_no_memory(way: str) -> None:
    vllm, sglang = Vllm(), Sglang()
    server = vllm if way == "sleep" else sglang

    async def use(url: str, http: Recorded) -> None:
        there = Gone(http)
        mover = mover_for(spec(way, url), there)  # type: ignore[arg-type]
        await mover.out(keep=False)
        vllm.fails, sglang.refuses = {"kv_cache"}, {"/continue_generation"}
        with pytest.raises(MoveError):
            await mover.into(1.0)
        await mover.where()
        assert mover.holds
        there.gone = True
        assert (await mover.where(), mover.holds) == (None, False)

    with_stub(server, use)  # type: ignore[arg-type]


def test_sglang_without_its_weights_is_never_let_go_on() -> None:
    server = Sglang(enable_weights_cpu_backup=False)

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("memory", url, level=2), http)
        await mover.out(keep=False)
        server.refuses = {"/update_weights_from_disk"}
        with pytest.raises(MoveError, match="/update_weights_from_disk answered 400"):
            await mover.into(1.0)
        assert (await mover.where(), mover.holds, server.released) == ("asleep2", True, False)
        server.refuses = {"/release_memory_occupation"}
        with pytest.raises(MoveError, match="/release_memory_occupation answered 400"):
            await mover.out(keep=False)
        assert (await mover.where(), mover.holds, server.dead) == ("asleep2", True, False)
        await mover.out(keep=False)
        assert (mover.holds, server.released, server.dead) == (False, True, False)
        await mover.into(1.0)
        assert (await mover.where(), server.dead) == ("gpu", False)

    with_stub(server, use)


@pytest.mark.parametrize("lost", ["/release_memory_occupation", "/resume_memory_occupation"])
def test_sglang_is_not_asked_twice_for_what_it_did_without_an_answer(lost: str) -> None:
    server = Sglang()
    server.mute = {lost}

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("memory", url, start_s=1.0, stop_s=1.0), http)
        if "resume" in lost:
            await mover.out(keep=False)
        for answered in (False, True):
            move = mover.into(1.0) if "resume" in lost else mover.out(keep=False)
            with nullcontext() if answered else pytest.raises(MoveError, match="not done within"):
                await move
            assert mover.holds != answered
        await mover.into(1.0)
        assert (await mover.where(), server.dead) == ("gpu", False)
        assert [post.split()[0] for post in http.posts].count(lost) == 1

    with_stub(server, use)


def test_sglang_that_was_started_anew_is_not_taken_for_released() -> None:
    server = Sglang()

    async def use(url: str, http: Recorded) -> None:
        there = Gone(http)
        mover = mover_for(spec("memory", url), there)
        await mover.out(keep=False)
        there.gone = True
        assert await mover.where() is None
        there.gone = False
        server.paused = server.released = False
        server.unhealthy = True  # as long as it starts
        with pytest.raises(MoveError, match="not healthy"):
            await mover.into(1.0)
        server.unhealthy = False
        assert await mover.where() == "gpu"
        await mover.into(1.0)
        await mover.out(keep=False)
        assert (server.released, server.dead) == (True, False)

    with_stub(server, use)


def test_a_load_that_nobody_waits_for_may_still_take_memory() -> None:
    loading = asyncio.Event()

    def llama(method: str, path: str, body: dict[str, object]) -> tuple[int, object]:
        if path == "/models/load":
            loading.set()
        value = "loading" if loading.is_set() else "unloaded"
        return 200, {"data": [{"id": "m", "status": {"value": value}}]}

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("llamacpp", url, start_s=0.3), http)
        assert not mover.holds
        with pytest.raises(MoveError, match="not done within"):
            await mover.into(1.0)
        await until(loading.is_set)
        assert (await mover.where(), mover.holds) == ("disk", True)

    with_stub(llama, use)
