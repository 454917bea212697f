"""`gateway sidecar`: an oracle over HTTP beside one engine. Shell: it chooses the clock and wires source and sidecar."""

import time
from collections.abc import Callable
from pathlib import Path

from backends.base import ProbeFailedError
from backends.control_http import BackendControl, ControlSession
from backends.kv_feed import KvFeed
from backends.registry import snapshot_sizes, snapshot_source
from predictor.calibrate import StepCorrection
from predictor.catalog import engine_profile
from predictor.oracle import Oracle
from predictor.sidecar import Sidecar, SidecarConfig, serve_sidecar

ASK_S = 10.0
_CLOCKS: dict[str, Callable[[], float]] = {"monotonic": time.monotonic, "wall": time.time}  # noqa: TID251 - SGLang's stamps


def make_sidecar(
    engine: str, state: str, profile: str, sizes: list[str], config: SidecarConfig, kv_events: str = "", kv_replay: str = ""
) -> Sidecar:
    """The sidecar of the engine that publishes at `state`. Raises ValueError when engine, profile or a size is not known,
    or an endpoint is none."""
    source, clock = snapshot_source(engine, state, dict(_size(text) for text in sizes))
    found = engine_profile(profile)
    oracle = Oracle(StepCorrection(found.step), found.overhead_s)
    feed = KvFeed(kv_events, kv_replay, oracle.follow_kv()) if kv_events else None
    return Sidecar(source, oracle, config, _CLOCKS[clock], feed.run if feed is not None else None)


async def told_sizes(engine: str, url: str, key: str) -> list[str]:
    """As `sizes` of make_sidecar, from the engine's own server. Raises ValueError when there are none to ask for, or it cannot
    be asked."""
    session = ControlSession(lambda address: True)
    try:
        found = await snapshot_sizes(engine, BackendControl(session, url.rstrip("/"), key, ASK_S))
    except ProbeFailedError as error:
        raise ValueError(f"{url}: {error}") from None
    finally:
        await session.close()
    return [f"{name}={value}" for name, value in found.items()]


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdecimal():
        raise ValueError(f"--size {text}: expected NAME=N")
    return name, int(number)


def read_token(token: str, token_file: str) -> str:
    """The token itself, or what the file holds. Raises OSError."""
    return token or (Path(token_file).read_text().strip() if token_file else "")


async def serve(sidecar: Sidecar) -> None:
    """Serve until cancelled."""
    await serve_sidecar(sidecar, lambda url: print(f"sidecar at {url}", flush=True))
