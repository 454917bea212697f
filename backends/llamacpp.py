"""Moves a model of llama.cpp's server in router mode, which runs each model in a process of its own. Shell.

GET /models tells each model's `status.value` (unloaded, loading, loaded, sleeping; `failed` with an `exit_code`), POST
/models/load starts a load and answers at once, POST /models/unload ends it. A request loads a model that is out, unless the
server was started with --no-models-autoload; do that. How many layers go to the GPU is said when the server starts, so a
part of a model takes a managed process (backends.managed).
"""

import asyncio

from backends.base import ControlHttp, ProbeFailedError
from backends.move_http import tell, until, within
from backends.moves import MoveError, MoverSpec
from backends.openai import ok
from predictor.cost import Place

ASK_S = 5.0


class LlamaCppModel:
    """See backends.moves.Mover."""

    keeps = False
    parts = False

    def __init__(self, spec: MoverSpec, http: ControlHttp) -> None:
        self._spec = spec
        self._http = http
        self.home: Place = "disk"
        self.holds = False

    async def where(self) -> Place | None:
        """By /models; one that is on its way counts as out."""
        try:
            async with asyncio.timeout(ASK_S):
                return "gpu" if (await self._status()).get("value") == "loaded" else self.home
        except ProbeFailedError:
            self.holds = False
            return None
        except (MoveError, TimeoutError):
            return None

    async def out(self, keep: bool) -> None:
        """Unload, and see it gone."""
        async with within(self._spec.swap.stop_s, "llama.cpp's unload"):
            self.holds = True
            await self._unload()
            self.holds = False

    async def into(self, fraction: float) -> None:
        """Load, and see it loaded. One that sleeps for want of requests is started anew."""
        async with within(self._spec.swap.start_s, "llama.cpp's load"):
            if (await self._status()).get("value") == "sleeping":
                await self._unload()
            self.holds = True  # a load that nobody waits for any more goes on
            if (await self._status()).get("value") == "unloaded":
                await tell(self._http, "/models/load", {"model": self._spec.model})
            await until(self._is_in)
            self.home, self.holds = "cache", False

    async def prefetch(self) -> None:
        """Nothing: its files are the server's affair."""

    async def close(self) -> None:
        """Nothing: the server is somebody else's."""

    def died(self) -> str:
        """Never known here."""
        return ""

    async def _unload(self) -> None:
        if (await self._status()).get("value") != "unloaded":
            await tell(self._http, "/models/unload", {"model": self._spec.model})
        await until(self._is_out)

    async def _is_out(self) -> bool:
        return (await self._status()).get("value") == "unloaded"

    async def _is_in(self) -> bool:
        status = await self._status()
        if status.get("failed"):
            self.holds = False
            raise MoveError(f"{self._spec.model} did not load: its process ended with {status.get('exit_code')}")
        return status.get("value") == "loaded"

    async def _status(self) -> dict[str, object]:
        listed = ok(await self._http.get("/models"), "/models").json().get("data")
        for model in listed if isinstance(listed, list) else []:
            if isinstance(model, dict) and model.get("id") == self._spec.model:
                status = model.get("status")
                if isinstance(status, dict):
                    return status
                raise MoveError("llama.cpp's server is not in router mode: start it without a model")
        raise MoveError(f"llama.cpp's server has no model {self._spec.model}")
