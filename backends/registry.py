"""Engine names to adapters, and the detection behind `engine = "auto"`. Shell."""

from backends.base import Adapter, ControlHttp
from backends.openai import OpenAIAdapter, listed_models, ok
from backends.sglang import SglangAdapter
from backends.vllm import VllmAdapter, is_vllm

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
