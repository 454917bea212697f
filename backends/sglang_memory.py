"""Moves a model by SGLang's memory saver: the process stays, weights and KV cache leave the device. Shell.

Tested on a running server of 0.5.23, whose memory saver was a stand-in. A release asserts that nothing runs, a resume that
something was released, and the scheduler dies of either. So generation is always paused first, with mode=retract: what runs
goes back into the queue and is computed anew after continue_generation, what comes waits; and what was resumed is remembered.
/ready is 200 only while not paused, /ping also then. Weights stay in memory with --enable-weights-cpu-backup (level 1); else
they are gone and are read from the disk again (level 2), and the server then lists its model by their path. /health generates
a token: out of the device it takes long and fails.
"""

import asyncio
from contextlib import suppress

from backends.base import ControlHttp, ProbeFailedError
from backends.move_http import tell, until, within
from backends.moves import MoveError, MoverSpec
from backends.openai import ok
from predictor.cost import Place

ASK_S = 5.0
TAGS: dict[str, object] = {"tags": ["kv_cache", "weights"]}


class SglangMemory:
    """See backends.moves.Mover."""

    parts = False

    def __init__(self, spec: MoverSpec, http: ControlHttp) -> None:
        if spec.swap.level not in {1, 2}:
            raise ValueError(f"weights stay in memory at level 1 and go at level 2; there is no level {spec.swap.level}")
        self._spec = spec
        self._http = http
        self._released: bool | None = None  # None: by whoever was here before, if at all
        self.holds = False
        self.home: Place = "asleep1" if spec.swap.level == 1 else "asleep2"
        self.keeps = spec.swap.keeps

    async def where(self) -> Place | None:
        """By what was done here, else by whether it is paused: nobody but a mover pauses it. Who is gone holds nothing."""
        try:
            async with asyncio.timeout(ASK_S):
                if await self._says("/ready"):
                    return "gpu"
                return self.home if self._released or await self._says("/ping") else None
        except ProbeFailedError:
            self._released, self.holds = None, False
            return None
        except (MoveError, TimeoutError):
            return None

    async def out(self, keep: bool) -> None:
        """Pause and release. Whether requests are kept is the caller's doing: here they would be in either case."""
        async with within(self._spec.swap.stop_s, "SGLang's release"):
            held, self.holds = self.holds, True  # as long as it does not answer
            ready = await self._says("/ready")
            if ready:
                self._released = False
            elif await self._is_released():
                if held:  # nobody saw the end of the release: the scheduler's next answer comes after it
                    await self._check_that_release_frees()
                self.holds = False
                return
            await self._check_that_release_frees()
            await self._release(ready)

    async def _release(self, ready: bool) -> None:
        await tell(self._http, "/pause_generation", {"mode": "retract"})
        self._released = True
        try:
            await tell(self._http, "/release_memory_occupation", TAGS)
        except MoveError:
            self._released = False
            if ready:  # else its weights may not be there
                await tell(self._http, "/continue_generation")
            raise
        if await self._says("/ready"):
            raise MoveError("memory was released, but /ready still says yes")
        self.holds = False

    async def into(self, fraction: float) -> None:
        """Resume, read the weights again at level 2, and go on; /health then proves a token."""
        async with within(self._spec.swap.start_s, "SGLang's resume"):
            if await self._says("/ready"):
                self._released = self.holds = False
                return
            released = await self._is_released()
            self.holds = True
            if released:
                await self._resume()
            if self._spec.swap.level == 2:
                path = ok(await self._http.get("/model_info"), "/model_info").json().get("model_path")
                await tell(self._http, "/update_weights_from_disk", {"model_path": path})
            await tell(self._http, "/continue_generation")
            await until(lambda: self._says("/health"))
            if not await self._says("/ready"):
                raise MoveError("generation was continued, but /ready still says no")
            self.holds = False

    async def _resume(self) -> None:
        self._released = False
        try:
            await tell(self._http, "/resume_memory_occupation", TAGS)
        except MoveError:
            self._released = True
            raise

    async def prefetch(self) -> None:
        """Nothing: its files are the server's affair."""

    async def close(self) -> None:
        """The server is somebody else's, and stays as it is, but not half way."""
        if self.holds:
            with suppress(MoveError):
                await self.out(keep=True)

    def died(self) -> str:
        """Never known here."""
        return ""

    async def _says(self, path: str) -> bool:
        reply = await self._http.get(path)
        if reply.status not in {200, 503}:
            raise MoveError(f"{path} answered {reply.status}: this takes SGLang 0.5.23 or later")
        return reply.status == 200

    async def _is_released(self) -> bool:
        """Of a server that is not ready."""
        if self._released is None and not await self._says("/ping"):
            raise MoveError("SGLang is not healthy, and whether its memory was released is not known")
        return self._released is not False

    async def _check_that_release_frees(self) -> None:
        """Without the memory saver a release frees nothing, without the backup it loses the weights."""
        info = ok(await self._http.get("/server_info"), "/server_info").json()
        if info.get("enable_memory_saver") is False:
            raise MoveError("SGLang was started without --enable-memory-saver: a release would free nothing")
        if self._spec.swap.level == 1 and info.get("enable_weights_cpu_backup") is False:
            raise MoveError("level 1 needs SGLang's --enable-weights-cpu-backup; without it use level 2")
