"""Moves a model of an Ollama server: loads by a generate request without a prompt, unloads by keep_alive 0. Shell.

/api/ps says who is loaded, and by `size_vram` of `size` how much of it lies on the GPU. `options.num_gpu` is the number of
layers there (the output layer counts as one more); requests that do not name it leave a loaded model as it is. A request
also sets anew how long the model stays (`keep_alive`, five minutes by default) and loads it if it is out: run the server
with OLLAMA_KEEP_ALIVE=-1 and let nobody else use it.
"""

import asyncio

from backends.base import ControlHttp, ProbeFailedError
from backends.move_http import tell, until, within
from backends.moves import MoveError, MoverSpec
from backends.openai import ok
from predictor.cost import Place

ASK_S = 5.0
FOREVER = -1
SHARE_ERROR = 0.1  # by which the bytes on the GPU may differ from the layers there: embeddings are no layer


class OllamaModel:
    """See backends.moves.Mover."""

    keeps = False

    def __init__(self, spec: MoverSpec, http: ControlHttp) -> None:
        self._spec = spec
        self._http = http
        self._fraction: float | None = None  # as loaded here
        self.home: Place = "disk"
        self.holds = False
        self.parts = spec.layers > 1

    async def where(self) -> Place | None:
        """By /api/ps."""
        try:
            async with asyncio.timeout(ASK_S):
                return self.home if await self._share() is None else "gpu"
        except ProbeFailedError:
            self.holds = False
            return None
        except TimeoutError:
            return None

    async def out(self, keep: bool) -> None:
        """Unload, and see it gone."""
        async with within(self._spec.swap.stop_s, "Ollama's unload"):
            self.holds = True
            await self._unload()
            self.holds = False

    async def into(self, fraction: float) -> None:
        """Load, with that part of the layers on the GPU; what is loaded otherwise is unloaded first."""
        async with within(self._spec.swap.start_s, "Ollama's load"):
            share = await self._share()
            if share is not None:
                if self._is_just_so(share, fraction):
                    return
                await self._unload()
            self.holds = True  # a load that nobody waits for any more goes on
            await tell(self._http, "/api/generate", self._load_body(fraction))
            self._fraction, self.home, self.holds = fraction, "cache", False
            share = await self._share()
            if share is None:
                raise MoveError(f"Ollama has loaded {self._spec.model}, but /api/ps does not show it")
            if fraction >= 1 and 0 < share < 1:  # 0: there is no GPU
                await self._unload()  # else it would pass for what was asked for
                raise MoveError(f"only {share:.0%} of {self._spec.model} fits on the GPU")

    async def prefetch(self) -> None:
        """Nothing: its files are the server's affair."""

    async def close(self) -> None:
        """Nothing: the server is somebody else's."""

    def died(self) -> str:
        """Never known here."""
        return ""

    def _is_just_so(self, share: float, fraction: float) -> bool:
        """Whether what is loaded is what is wanted; of somebody else's load only the bytes are known."""
        return self._fraction == fraction if self._fraction is not None else abs(share - fraction) <= SHARE_ERROR

    def _load_body(self, fraction: float) -> dict[str, object]:
        body: dict[str, object] = {"model": self._spec.model, "keep_alive": FOREVER, "stream": False}
        return body if fraction >= 1 else {**body, "options": {"num_gpu": round(fraction * self._spec.layers)}}

    async def _unload(self) -> None:
        self._fraction = None
        await tell(self._http, "/api/generate", {"model": self._spec.model, "keep_alive": 0, "stream": False})
        await until(self._is_out)

    async def _is_out(self) -> bool:
        return await self._share() is None

    async def _share(self) -> float | None:
        """Of the loaded model's bytes, those on the GPU; None if it is not loaded."""
        models = ok(await self._http.get("/api/ps"), "/api/ps").json().get("models")
        names = {self._spec.model, f"{self._spec.model}:latest"}
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and model.get("name") in names:
                size, on_gpu = model.get("size"), model.get("size_vram")
                return on_gpu / size if isinstance(size, int) and isinstance(on_gpu, int) and size > 0 else 0.0
        return None
