"""`gateway sidecar`: an oracle over HTTP beside one engine. Shell: it chooses the clock and wires source and sidecar."""

import time
from collections.abc import Callable
from pathlib import Path

from backends.registry import snapshot_source
from predictor.calibrate import StepCorrection
from predictor.oracle import Oracle
from predictor.profile import preset
from predictor.sidecar import Sidecar, SidecarConfig, serve_sidecar

_CLOCKS: dict[str, Callable[[], float]] = {"monotonic": time.monotonic, "wall": time.time}  # noqa: TID251 - SGLang's stamps


def make_sidecar(engine: str, state: str, profile: str, overhead_ms: float, config: SidecarConfig) -> Sidecar:
    """The sidecar of the engine that publishes at `state`. Raises ValueError when engine or profile is not known."""
    source, clock = snapshot_source(engine, state)
    pace = StepCorrection(preset(profile).profile)
    return Sidecar(source, Oracle(pace, overhead_ms / 1000), config, _CLOCKS[clock])


def read_token(token: str, token_file: str) -> str:
    """The token itself, or what the file holds. Raises OSError."""
    return token or (Path(token_file).read_text().strip() if token_file else "")


async def serve(sidecar: Sidecar) -> None:
    """Serve until cancelled."""
    await serve_sidecar(sidecar, lambda url: print(f"sidecar at {url}", flush=True))
