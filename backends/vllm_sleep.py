"""Moves a model by vLLM's sleep mode: the process stays, the weights go to memory (level 1) or away (level 2). Shell.

The routes exist with VLLM_SERVER_DEV_MODE=1; memory is freed only by a server started with --enable-sleep-mode. From the
source of 0.32: asleep, new requests wait in the engine; with mode=keep those that run stop where they are, lose their KV
and are computed anew after wake_up, which lets the scheduler go on once weights and KV cache are both back. They come one
after the other: with the weights back, /sleep takes all away again; a wake-up that failed within the weights is not undone,
since vLLM holds the sleep for complete. /is_sleeping says yes in between, whatever of the memory is there.
"""

import asyncio
from contextlib import suppress

from backends.base import ControlHttp, ProbeFailedError, Reply
from backends.move_http import tell, within
from backends.moves import MoveError, MoverSpec
from backends.openai import ok, told
from predictor.cost import Place

ASK_S = 5.0


class VllmSleep:
    """See backends.moves.Mover."""

    parts = False

    def __init__(self, spec: MoverSpec, http: ControlHttp) -> None:
        if spec.swap.level not in {1, 2}:
            raise ValueError(f"vLLM sleeps at level 1 or 2, not {spec.swap.level}")
        self._spec = spec
        self._http = http
        self.home: Place = "asleep1" if spec.swap.level == 1 else "asleep2"
        self.keeps = spec.swap.keeps
        self.holds = False
        self._torn = False  # the last wake-up failed within the weights

    async def where(self) -> Place | None:
        """By /is_sleeping, which also says yes of one that is only paused. Who is gone holds no memory."""
        try:
            async with asyncio.timeout(ASK_S):
                reply = await self._http.get("/is_sleeping")
        except TimeoutError:
            return None
        except ProbeFailedError:
            self.holds = self._torn = False
            return None
        try:
            return self.home if _says_yes(reply) else "gpu"
        except (ProbeFailedError, MoveError):
            return None

    async def out(self, keep: bool) -> None:
        """Sleep. An engine that is asleep already stays so; one that stopped half way is put back, its requests kept in any
        case: their KV is gone, so it must not go on with them."""
        async with within(self._spec.swap.stop_s, "vLLM's sleep"):
            held, self.holds = self.holds, True  # as long as it does not answer
            asleep = await self._asleep()
            if asleep and not held:
                self.holds = False
                return
            if not asleep:
                await self._check_that_sleep_frees()
                self._torn = False
            mode = "keep" if keep or asleep else "wait"
            await tell(self._http, f"/sleep?level={self._spec.swap.level}&mode={mode}")
            if not await self._asleep():
                raise MoveError("/sleep was answered well, but /is_sleeping says no")
            if self._torn:
                raise MoveError("a wake-up failed within the weights: vLLM frees them when it has woken up, or is started anew")
            self.holds = False

    async def into(self, fraction: float) -> None:
        """Wake up; at level 2 the weights are read again in between."""
        async with within(self._spec.swap.start_s, "vLLM's wake-up"):
            if await self._asleep():
                await self._wake()
            if await self._asleep():
                raise MoveError("/wake_up was answered well, but /is_sleeping still says yes")
            self.holds = False
            ok(await self._http.get("/health"), "/health")

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

    async def _wake(self) -> None:
        self.holds = True
        try:
            await tell(self._http, "/wake_up?tags=weights")
        except MoveError:
            self._torn = True
            raise
        self._torn = False
        if self._spec.swap.level == 2:
            await tell(self._http, "/collective_rpc", {"method": "reload_weights"})
        await tell(self._http, "/wake_up?tags=kv_cache")

    async def _asleep(self) -> bool:
        return _says_yes(await self._http.get("/is_sleeping"))

    async def _check_that_sleep_frees(self) -> None:
        """A server without --enable-sleep-mode would sleep and keep its memory (on a CPU there is nothing to free)."""
        config = (await told(self._http, "/server_info?config_format=json")).get("vllm_config")
        model, device = (_part(config, name) for name in ("model_config", "device_config"))
        if model.get("enable_sleep_mode") is False and "cpu" not in str(device):
            raise MoveError("vLLM was started without --enable-sleep-mode: it would sleep and keep its memory")


def _says_yes(reply: Reply) -> bool:
    if reply.status == 404:
        raise MoveError("/is_sleeping is not there: start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode")
    return bool(ok(reply, "/is_sleeping").json().get("is_sleeping"))


def _part(config: object, name: str) -> dict[str, object]:
    part = config.get(name) if isinstance(config, dict) else None
    return part if isinstance(part, dict) else {}
