"""The engines of E15: simulated vLLM servers with a sidecar each, in one process, in real time.

    python stack_mocks.py COUNT PROFILE.toml

Prints one JSON line once all listen: pairs of URLs, an engine's and its sidecar's. SIGTERM ends it, and then it prints
another: how late its timers ran, and for each request when it came and when its first token was due, by the machine's
monotonic clock, which a step booked late does not move.
"""

import asyncio
import gc
import json
import signal
import sys
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from backends.mock import MockConfig, MockEngine
from backends.mock_core import EngineCore, Track
from predictor.catalog import engine_profile
from predictor.sidecar import SidecarConfig
from tests.bench.live_mocks import Lateness
from tests.bench.live_trace import answer_tokens
from tests.bench.process import first_in_line

MODEL = "m"


def engine(number: int, profile: str) -> MockEngine:
    """One of them. It reuses no prefixes: the trace has none."""
    known = engine_profile(profile)
    return MockEngine(
        MockConfig(
            f"mock{number}",
            (MODEL,),
            profile=known.step,
            limits=known.limits,
            output_tokens=answer_tokens,
            enable_prefix_caching=False,
            dev_mode=False,
            sidecar=SidecarConfig(port=0),
        )
    )


def tell(line: str) -> None:
    """To whoever started this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def noted(core: EngineCore, tracks: list[Track]) -> None:
    """Keep what this engine is given."""
    submit = core.submit

    def note(track: Track) -> None:
        tracks.append(track)
        submit(track)

    core.submit = note  # type: ignore[method-assign]


async def serve(count: int, profile: str) -> None:
    """Until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    engines = [engine(i, profile) for i in range(count)]
    tracks: list[list[Track]] = [[] for _ in engines]
    for one, its in zip(engines, tracks, strict=True):
        await one.start()
        noted(one.serving.core, its)
    gc.collect()
    gc.freeze()
    lateness = Lateness()
    lateness.start()
    tell(json.dumps([(one.url, one.sidecar.url if one.sidecar is not None else "") for one in engines]))
    await ended.wait()
    rows = [(track.request.id.rpartition("-")[0], track.request.arrival_s, track.first_token_s) for track in chain(*tracks)]
    tell(json.dumps({"late_p99_ms": lateness.quantile_s(0.99) * 1e3, "rows": rows}))
    for one in engines:
        await one.close()


if __name__ == "__main__":
    first_in_line()
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
