"""Moves a model by vLLM's sleep mode: the process stays, the weights go to memory (level 1) or away (level 2). Shell.

The routes exist with VLLM_SERVER_DEV_MODE=1; memory is freed only by a server started with --enable-sleep-mode. From the
source of 0.32: asleep, new requests wait in the engine; with mode=keep those that run stop where they are, lose their KV
and are computed anew after wake_up, which lets the scheduler go on once weights and KV cache are both back.
"""

import asyncio

from backends.base import ControlHttp, ProbeFailedError
from backends.move_http import tell, within
from backends.moves import MoveError, MoverSpec
from backends.openai import ok, told
from predictor.cost import Place

ASK_S = 5.0


class VllmSleep:
    """See backends.moves.Mover."""

    parts = False

    def __init__(self, spec: MoverSpec, http: ControlHttp) -> None:
        if spec.level not in {1, 2}:
            raise ValueError(f"vLLM sleeps at level 1 or 2, not {spec.level}")
        self._spec = spec
        self._http = http
        self.home: Place = "asleep1" if spec.level == 1 else "asleep2"
        self.keeps = spec.keeps

    async def where(self) -> Place | None:
        """By /is_sleeping, which also says yes of one that is only paused."""
        try:
            async with asyncio.timeout(ASK_S):
                return self.home if await self._asleep() else "gpu"
        except (ProbeFailedError, MoveError, TimeoutError):
            return None

    async def out(self, keep: bool) -> None:
        """Sleep. An engine that is asleep already stays so."""
        async with within(self._spec.stop_s, "vLLM's sleep"):
            if await self._asleep():
                return
            await self._check_that_sleep_frees()
            mode = "keep" if keep else "wait"
            await tell(self._http, f"/sleep?level={self._spec.level}&mode={mode}")
            if not await self._asleep():
                raise MoveError("/sleep was answered well, but /is_sleeping says no")

    async def into(self, fraction: float) -> None:
        """Wake up; at level 2 the weights are read again in between."""
        async with within(self._spec.start_s, "vLLM's wake-up"):
            if await self._asleep():
                await self._wake()
            if await self._asleep():
                raise MoveError("/wake_up was answered well, but /is_sleeping still says yes")
            ok(await self._http.get("/health"), "/health")

    async def prefetch(self) -> None:
        """Nothing: its files are the server's affair."""

    async def close(self) -> None:
        """Nothing: the server is somebody else's."""

    def died(self) -> str:
        """Never known here."""
        return ""

    async def _wake(self) -> None:
        if self._spec.level == 1:
            await tell(self._http, "/wake_up")
            return
        await tell(self._http, "/wake_up?tags=weights")
        await tell(self._http, "/collective_rpc", {"method": "reload_weights"})
        await tell(self._http, "/wake_up?tags=kv_cache")

    async def _asleep(self) -> bool:
        reply = await self._http.get("/is_sleeping")
        if reply.status == 404:
            raise MoveError("/is_sleeping is not there: start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode")
        return bool(ok(reply, "/is_sleeping").json().get("is_sleeping"))

    async def _check_that_sleep_frees(self) -> None:
        """A server without --enable-sleep-mode would sleep and keep its memory (on a CPU there is nothing to free)."""
        config = (await told(self._http, "/server_info?config_format=json")).get("vllm_config")
        model, device = (_part(config, name) for name in ("model_config", "device_config"))
        if model.get("enable_sleep_mode") is False and "cpu" not in str(device):
            raise MoveError("vLLM was started without --enable-sleep-mode: it would sleep and keep its memory")


def _part(config: object, name: str) -> dict[str, object]:
    part = config.get(name) if isinstance(config, dict) else None
    return part if isinstance(part, dict) else {}
