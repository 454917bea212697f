"""Engine names to adapters and to sources of their state, and the detection behind `engine = "auto"`. Shell."""

from collections.abc import Mapping
from typing import Literal

from backends.base import Adapter, ControlHttp, ProbeFailedError
from backends.openai import OpenAIAdapter, listed_models, ok
from backends.sglang import SglangAdapter
from backends.sglang_sizes import rank_sizes
from backends.vllm import VllmAdapter, is_vllm
from predictor.sighting import SnapshotSource

ADAPTERS: dict[str, Adapter] = {"vllm": VllmAdapter(), "sglang": SglangAdapter(), "openai": OpenAIAdapter()}


async def adapter_for(engine: str, http: ControlHttp) -> Adapter:
    """The adapter of a configured engine; for `auto`, by what /v1/models says of its owner, then by /version.

    Raises ProbeFailedError when the server can't be asked.
    """
    if engine != "auto":
        return ADAPTERS[engine]
    _, _, owner = listed_models(ok(await http.get("/v1/models"), "/v1/models"))
    if owner in ("vllm", "sglang"):
        return ADAPTERS[owner]
    return ADAPTERS["vllm"] if await is_vllm(http) else ADAPTERS["openai"]


async def snapshot_sizes(engine: str, http: ControlHttp) -> dict[str, int]:
    """The sizes that `snapshot_source` wants and the engine's server tells. Raises ValueError for an engine that has none to
    tell, ProbeFailedError when the server can't be asked."""
    if engine != "sglang":
        raise ValueError(f"engine {engine!r} says its sizes itself")
    found = rank_sizes(ok(await http.get("/server_info"), "/server_info").json())
    if not found:
        raise ProbeFailedError("/server_info tells no size")
    return found


def snapshot_source(
    engine: str, path: str, sizes: Mapping[str, int] = {}
) -> tuple[SnapshotSource, Literal["monotonic", "wall"]]:
    """Where the state of an engine on this machine is read, and the clock of its stamps: `vllm` by its SnapshotScheduler's
    file, `sglang` by its load snapshot. "" is the engine's usual place. `sizes` are what SGLang's does not say
    (SglangSizes). Raises ValueError for other engines and sizes.
    """
    if engine != "sglang" and sizes:
        raise ValueError(f"engine {engine!r} says its sizes itself")
    if engine == "vllm":
        from backends.shared_source import DEFAULT_PATH, SharedRecordSource  # not for the gateway, which needs none of it

        return SharedRecordSource(path or DEFAULT_PATH), "monotonic"
    if engine == "sglang":
        from backends.sglang_load import SglangLoadSource, sizes_of

        return SglangLoadSource(path, sizes=sizes_of(sizes)), "wall"
    raise ValueError(f"engine {engine!r} publishes no state; known: vllm, sglang")
