"""Moves a model by starting and stopping a process of ours from a command template. Shell.

Out, nothing of it is left; in, /health answers well (where the server has it) and /v1/models lists the model. A load that
fails or is cancelled leaves no process behind. ${LAYERS} is the part asked for of `layers`, which counts as the engine
does: llama.cpp counts the output layer as one more. A crash is told by `died`; starting anew, and how often, is the caller's.
"""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from backends.base import ControlHttp, ProbeFailedError
from backends.child import Child
from backends.command_template import WEIGHT_SUFFIXES, check, filled, names_layers, paths_in, port_of
from backends.move_http import until
from backends.moves import MoveError, MoverSpec
from backends.openai import listed_models
from predictor.cost import Place

ASK_S = 2.0
GAP_S = 0.1
NAME_MAX = 255
READ_BYTES = 8 * 1024 * 1024


class ManagedProcess:
    """See backends.moves.Mover. `inherited` is the environment that the spec's is added to. ValueError for a spec without
    a usable command."""

    keeps = False

    def __init__(self, spec: MoverSpec, http: ControlHttp, inherited: Mapping[str, str]) -> None:
        check(spec.swap.command)
        port_of(spec.url)
        self._spec = spec
        self._http = http
        self._environment = {**inherited, **dict(spec.swap.env)}
        self._child = Child(Path(spec.swap.log) if spec.swap.log else None)
        self._layers: int | None = None  # of the process that is ready; None: none is
        self._near = False
        self.parts = spec.layers > 1 and names_layers(spec.swap.command)

    @property
    def holds(self) -> bool:
        """A process that is there and not ready: one that should be gone, and hangs in a driver."""
        return self._child.running and self._layers is None

    @property
    def home(self) -> Place:
        """The disk, or the page cache once the weights were read."""
        return "cache" if self._near else "disk"

    async def where(self) -> Place | None:
        """On the device while the process is there and ready, out while there is none; in between it can't be told."""
        if not self._child.running:
            return self.home
        return "gpu" if await self._is_ready() else None

    async def out(self, keep: bool) -> None:
        """SIGTERM, after `stop_s` SIGKILL."""
        await self._stop(self._spec.swap.stop_s)

    async def into(self, fraction: float) -> None:
        """Start it and wait until it is ready; one that runs with other layers is ended first."""
        layers = round(fraction * self._spec.layers)
        if self._child.running:
            if self._layers == layers and await self._is_ready():
                return
            await self._stop(self._spec.swap.stop_s)
        await self._until_free()
        try:
            await self._start(layers)
        except BaseException:
            with suppress(MoveError):  # then `holds` says so
                await self._stop(0.0)
            raise
        self._layers, self._near = layers, True

    async def prefetch(self) -> None:
        """Read the files of weights that the command names, so that they lie in the page cache."""
        folder, enough = Path(self._spec.swap.folder or "."), threading.Event()
        try:
            read = await asyncio.to_thread(_read, [folder / word for word in paths_in(self._command(0))], enough)
        except OSError as error:
            raise MoveError(f"cannot read weights: {error.strerror or error}") from None
        finally:
            enough.set()
        self._near = self._near or read

    async def close(self) -> None:
        """End it."""
        await self._child.stop(self._spec.swap.stop_s)
        self._layers = None
        self._child.forget()

    def died(self) -> str:
        """Its exit code and the end of its log, if it ended though it was ready."""
        return "" if self._layers is None or self._child.running else self._last_words("ended")

    def _command(self, layers: int) -> tuple[str, ...]:
        return filled(self._spec.swap.command, self._spec.url, self._spec.model, layers)

    async def _start(self, layers: int) -> None:
        folder = Path(self._spec.swap.folder) if self._spec.swap.folder else None
        try:
            await self._child.start(self._command(layers), self._environment, folder)
        except OSError as error:
            raise MoveError(f"cannot start {self._spec.swap.command[0]}: {error.strerror} {error.filename or ''}") from None
        problem = ""
        try:
            async with asyncio.timeout(self._spec.swap.start_s):
                while problem := await self._problem():
                    if await self._child.ends_within(GAP_S):
                        raise MoveError(self._last_words("ended before it was ready"))
        except TimeoutError:
            raise MoveError(self._last_words(f"was not ready within {self._spec.swap.start_s:g} s ({problem})")) from None
        if not self._child.running:  # it was somebody else who answered there
            raise MoveError(self._last_words("ended, while something else answers at its address"))

    async def _stop(self, grace_s: float) -> None:
        self._layers = None
        if not await self._child.stop(grace_s):
            raise MoveError(f"{self._child!r} of {self._spec.model} does not end though it was killed")

    async def _is_ready(self) -> bool:
        try:
            return self._layers is not None and await self._problem() == ""
        except MoveError:
            return False

    async def _problem(self) -> str:
        """Why it is not ready yet, "" if it is. Raises MoveError if it will never be."""
        try:
            async with asyncio.timeout(ASK_S):
                health = await self._http.get("/health")
                if health.status not in {200, 404}:
                    return f"/health answered {health.status}"
                models = await self._http.get("/v1/models")
                if models.status != 200:
                    return f"/v1/models answered {models.status}"
                served = listed_models(models)[0]
                if self._spec.model in served:
                    return ""
        except TimeoutError:
            return f"no answer within {ASK_S:g} s"
        except ProbeFailedError as error:
            return str(error)
        raise MoveError(f"the process serves {', '.join(served) or 'nothing'}, not {self._spec.model}")

    async def _until_free(self) -> None:
        """What a gateway before us started may take as long as ours to end. Raises MoveError."""
        try:
            async with asyncio.timeout(max(self._spec.swap.stop_s, ASK_S)):
                await until(self._is_silent)
        except TimeoutError:
            raise MoveError(f"{self._spec.url} is taken: something answers there that was not started here") from None

    async def _is_silent(self) -> bool:
        try:
            await self._http.get("/health")
        except ProbeFailedError:
            return True
        return False

    def _last_words(self, what: str) -> str:
        code = "" if self._child.code is None else f" with {self._child.code}"
        tail = self._child.tail().strip()
        end = f"; the end of {self._spec.swap.log or 'its output'}:\n{tail}" if tail else ""
        return f"the process of {self._spec.model} {what}{code}{end}"


def _weights(paths: list[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if max(map(len, path.parts), default=0) <= NAME_MAX:  # else it is a word of the command, not a path
            files += sorted(path.iterdir()) if path.is_dir() else [path]
    return [path for path in files if path.suffix in WEIGHT_SUFFIXES and path.is_file()]


def _read(paths: list[Path], enough: threading.Event) -> bool:
    """Read the files of weights among these, a thread's work, until it is `enough`; whether there were any. In pieces, so
    that a read that nobody wants any more ends soon."""
    buffer, files = bytearray(READ_BYTES), _weights(paths)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while not enough.is_set() and file.readinto(buffer):
                pass
    return bool(files)
