"""How a model comes onto its device and leaves it: what every mover offers, and what it is made from. Pure.

One mover belongs to one backend. It acts when told and verifies what it did; when to move, whom to cut off first, what to
try again and what to undo is for its caller. No two calls of one mover may run at once, but for `where` and `died`.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from predictor.cost import Place

Way = Literal["none", "sleep", "memory", "ollama", "llamacpp", "process"]


class MoveError(Exception):
    """A move did not happen, or can't be verified. The text is for an operator, never for a client."""


@dataclass(frozen=True, slots=True)
class SwapSpec:
    """How a backend's model comes onto its device and leaves it, where it shares one; as configured. `device` is for
    planners. `way` is what moves it: vLLM's sleep ("sleep") or SGLang's memory saver ("memory"), of a `level` (1: the weights
    stay in memory, 2: they are discarded), the loads of Ollama or llama.cpp's server, or a process of ours ("process"):
    `command` with ${PORT}, ${LAYERS} and ${MODEL}, `env` added to ours, the `folder` it runs in and the `log` file its output
    is appended to ("" each: ours, one without a name). Coming in may take `start_s`, leaving `stop_s`; with `keeps` requests
    may stay in an engine that is paused for others."""

    device: str = ""
    way: Way = "none"
    level: int = 1
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    folder: str = ""
    log: str = ""
    start_s: float = 600.0
    stop_s: float = 30.0
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class MoverSpec:
    """What a mover is made from: how it moves, the backend's URL without a path, its model's name in the engine, and how many
    `layers` that has, where a part of them may be put on the device."""

    swap: SwapSpec
    url: str
    model: str
    layers: int = 1


class Mover(Protocol):
    """Moves one model of one backend."""

    @property
    def home(self) -> Place:
        """Where the weights lie while the model is out: asleep1, asleep2, disk, or cache (a process that ran before)."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether `out(keep=True)` leaves its requests in the engine, to go on after `into`."""
        ...

    @property
    def holds(self) -> bool:
        """Whether memory of the device may be taken though the model is out: a move of ours stopped half way. `out` puts that
        right where it can be put right."""
        ...

    @property
    def parts(self) -> bool:
        """Whether `into` can put a part of the layers on the device."""
        ...

    async def where(self) -> Place | None:
        """`gpu`, or where the model lies; None when that can't be asked (no process, no answer). Never raises."""
        ...

    async def out(self, keep: bool) -> None:
        """Leave the device, verified. Raises MoveError. The caller has cut it off and, unless its requests are to be kept,
        waited until none is in flight; `keep` only where `keeps`. Does nothing if it is out already."""
        ...

    async def into(self, fraction: float) -> None:
        """Come onto the device with that part of its layers, verified to be ready for requests. Raises MoveError.
        Below 1 only where `parts`. Does nothing if it is there just so."""
        ...

    async def prefetch(self) -> None:
        """Bring the weights nearer, where there is a way to; else nothing. Raises MoveError."""
        ...

    async def close(self) -> None:
        """Let go of it for good: a process of ours ends, a server of somebody else's stays as it is. Never raises."""
        ...

    def died(self) -> str:
        """Why the engine is gone without having been told to go (exit code, the last lines of its log); "" if it is not."""
        ...
