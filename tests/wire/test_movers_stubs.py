"""Movers of SGLang, Ollama and llama.cpp against STUBS: no such server runs here.

Each stub keeps the state that the real server's source or documents tell of, and refuses, or dies of, what would break the
real one. They show that the mover asks for the right things in the right order; not that the real ones free memory.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from backends.movers import mover_for
from backends.moves import MoveError
from tests.wire.mover_kit import Recorded, Script, control_of, spec, stub, there_and_back
from tests.wire.mover_stubs import Asked, Said, Sglang


def with_stub(script: Script, use: Callable[[str, Recorded], Awaitable[None]]) -> None:
    async def run() -> None:
        async with stub(script) as url, control_of(url) as http:
            await use(url, http)

    asyncio.run(run())


@pytest.mark.parametrize(("level", "home"), [(1, "asleep1"), (2, "asleep2")])
def test_sglang_releases_and_resumes(level: int, home: str) -> None:
    server = Sglang(enable_weights_cpu_backup=level == 1)

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("memory", url, level=level, keeps=True), http)
        assert (mover.home, mover.keeps, mover.parts, await mover.where()) == (home, True, False, "gpu")
        await there_and_back(mover)
        assert [post.split(" ")[0] for post in http.posts] == [
            "/pause_generation",
            "/release_memory_occupation",
            "/resume_memory_occupation",
            *(["/update_weights_from_disk"] if level == 2 else []),
            "/continue_generation",
        ]
        assert not server.dead

    with_stub(server, use)


def test_sglang_released_by_an_earlier_gateway_is_found_and_resumed() -> None:
    server = Sglang()
    server.paused = server.released = True

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("memory", url), http)
        assert await mover.where() == "asleep1"
        await mover.out(keep=False)
        assert http.posts == []
        await mover.into(1.0)
        assert await mover.where() == "gpu"
        assert not server.dead

    with_stub(server, use)


def test_sglang_that_refuses_goes_on_and_can_be_asked_again() -> None:
    server = Sglang(enable_weights_cpu_backup=False)
    server.refuses = {"/release_memory_occupation"}

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("memory", url, level=2), http)
        with pytest.raises(MoveError, match="/release_memory_occupation answered 400"):
            await mover.out(keep=False)
        assert (await mover.where(), server.paused) == ("gpu", False)
        await mover.out(keep=False)
        server.unhealthy = True  # as a health check leaves it that got no token
        assert await mover.where() == "asleep2"
        server.refuses = {"/update_weights_from_disk"}
        with pytest.raises(MoveError, match="/update_weights_from_disk answered 400"):
            await mover.into(1.0)
        await mover.into(1.0)  # memory is back already: asked once more, its scheduler would die
        assert await mover.where() == "gpu"
        assert not server.dead

    with_stub(server, use)


@pytest.mark.parametrize(
    ("info", "told"),
    [({"enable_memory_saver": False}, "--enable-memory-saver"), ({"enable_weights_cpu_backup": False}, "level = 2|level 2")],
)
def test_sglang_that_would_free_nothing_or_lose_its_weights_is_left_alone(info: dict[str, object], told: str) -> None:
    async def use(url: str, http: Recorded) -> None:
        with pytest.raises(MoveError, match=told):
            await mover_for(spec("memory", url), http).out(keep=False)
        assert http.posts == []

    with_stub(Sglang(**info), use)


def test_sglang_of_unknown_state_is_not_touched() -> None:
    server = Sglang()
    server.unhealthy = True

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("memory", url), http)
        assert await mover.where() is None
        for move in (mover.into(1.0), mover.out(keep=False)):
            with pytest.raises(MoveError, match="not healthy"):
                await move
        assert http.posts == []

    with_stub(server, use)


class Ollama:
    """One model of `layers` layers, of which `room` fit on the GPU; it is seen for two more looks after its unload."""

    def __init__(self, layers: int = 10, room: int = 10) -> None:
        self.layers, self.room = layers, room
        self.on_gpu: int | None = None
        self.leaving = 0

    def __call__(self, method: str, path: str, body: Asked) -> Said:
        if path == "/api/ps":
            return 200, {"models": self._listed()}
        if body["model"] != "m":
            return 404, {"error": f"model '{body['model']}' not found"}
        if body["keep_alive"] == 0:
            self.leaving, self.on_gpu = (2 if self.on_gpu is not None else 0), None
            return 200, {"done": True, "done_reason": "unload"}
        options = body.get("options", {})
        assert isinstance(options, dict)
        assert not self.leaving
        if self.on_gpu is None:  # else requests that name no layers leave it as it is
            self.on_gpu = min(options.get("num_gpu", self.layers), self.room)
        return 200, {"done": True, "done_reason": "load"}

    def _listed(self) -> list[object]:
        if self.on_gpu is None and not self.leaving:
            return []
        self.leaving = max(self.leaving - 1, 0)
        return [{"name": "m:latest", "size": 1000 * self.layers, "size_vram": 1000 * (self.on_gpu or 0)}]


def test_ollama_loads_and_unloads() -> None:
    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("ollama", url), http)
        assert (mover.home, mover.keeps, mover.parts, await mover.where()) == ("disk", False, False, "disk")
        await mover.into(1.0)
        assert mover.home == "cache"
        await there_and_back(mover)
        assert http.posts[0] == '/api/generate {"model": "m", "keep_alive": -1, "stream": false}'

    with_stub(Ollama(), use)


def test_ollama_takes_a_part_of_the_layers() -> None:
    server = Ollama()

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("ollama", url, layers=10), http)
        assert mover.parts
        for fraction, layers in ((0.3, 3), (1.0, 10), (0.0, 0), (0.55, 6)):
            await mover.into(fraction)
            asked = len(http.posts)
            await mover.into(fraction)
            assert (server.on_gpu, len(http.posts)) == (layers, asked)
        restarted = mover_for(spec("ollama", url, layers=10), http)
        await restarted.into(0.6)  # six of ten are there
        assert len(http.posts) == asked
        await restarted.into(0.9)
        assert server.on_gpu == 9

    with_stub(server, use)


def test_ollama_tells_what_does_not_fit_and_what_is_not_there() -> None:
    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("ollama", url, layers=10), http)
        for _ in range(2):
            with pytest.raises(MoveError, match="only 70% of m fits"):
                await mover.into(1.0)
            assert await mover.where() == "cache"
        with pytest.raises(MoveError, match=r"answered 404: .*model 'x' not found"):
            await mover_for(spec("ollama", url, "x"), http).into(1.0)

    with_stub(Ollama(room=7), use)


class LlamaCpp:
    """Router mode: loads and unloads take two looks; `exit_code` is what a load fails with."""

    def __init__(self, exit_code: int = 0, value: str = "unloaded") -> None:
        self.exit_code, self.value, self.looks = exit_code, value, 0
        self.after: dict[str, object] = {"value": value}

    def __call__(self, method: str, path: str, body: Asked) -> Said:
        if path == "/models":
            self.looks = max(self.looks - 1, 0)
            status = {"value": self.value} if self.looks else self.after
            return 200, {"data": [{"id": "other", "status": {"value": "loaded"}}, {"id": "m", "status": status}]}
        running = self.after["value"] != "unloaded"
        if running == (path == "/models/load"):
            return 400, {"error": {"code": 400, "message": "model is already running" if running else "model is not running"}}
        self.looks = 2
        if path == "/models/unload":
            self.value, self.after = "loaded", {"value": "unloaded"}
        else:
            failed = {"value": "unloaded", "failed": True, "exit_code": self.exit_code}
            self.value, self.after = "loading", failed if self.exit_code else {"value": "loaded"}
        return 200, {"success": True}


def test_llamacpp_loads_and_unloads() -> None:
    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("llamacpp", url), http)
        assert (mover.home, mover.keeps, mover.parts, await mover.where()) == ("disk", False, False, "disk")
        await mover.into(1.0)
        assert mover.home == "cache"
        await there_and_back(mover)
        assert http.posts == [f'/models/{what} {{"model": "m"}}' for what in ("load", "unload", "load")]

    with_stub(LlamaCpp(), use)


def test_llamacpp_that_sleeps_is_started_anew() -> None:
    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("llamacpp", url), http)
        assert await mover.where() == "disk"
        await mover.into(1.0)
        assert await mover.where() == "gpu"

    with_stub(LlamaCpp(value="sleeping"), use)


def test_llamacpp_tells_why_a_model_did_not_load() -> None:
    server = LlamaCpp(exit_code=134)

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("llamacpp", url), http)
        with pytest.raises(MoveError, match="its process ended with 134"):
            await mover.into(1.0)
        server.exit_code = 0
        await mover.into(1.0)
        with pytest.raises(MoveError, match="no model x"):
            await mover_for(spec("llamacpp", url, "x"), http).into(1.0)

    with_stub(server, use)


def test_llamacpp_with_one_model_is_no_router() -> None:
    def single(method: str, path: str, body: Asked) -> Said:
        return 200, {"data": [{"id": "m", "object": "model"}]}

    async def use(url: str, http: Recorded) -> None:
        mover = mover_for(spec("llamacpp", url), http)
        assert await mover.where() is None
        with pytest.raises(MoveError, match="not in router mode"):
            await mover.out(keep=False)

    with_stub(single, use)
