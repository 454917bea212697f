"""vLLM's OpenAI server (0.32): /health, /version, and one process that either generates or pools. Shell."""

from backends.base import ControlHttp, EngineReport, Kind, ProbeFailedError
from backends.metrics_text import histogram, labels_of, samples
from backends.openai import OpenAIAdapter, ok, told
from backends.priorities import vllm_scheduling


class VllmAdapter(OpenAIAdapter):
    """Which routes exist tells the kind, from the server's own route list."""

    engine = "vllm"

    async def version(self, http: ControlHttp) -> str:
        """From /version; a server without it is still usable."""
        reply = await http.get("/version")
        if reply.status != 200:
            return ""
        return str(reply.json().get("version") or "")[:64]

    async def kind(self, http: ControlHttp) -> Kind:
        """By whether a pooling-only route exists. Not from /openapi.json: making it holds vLLM's loop for a second."""
        return "generate" if (await http.get("/pooling")).status == 404 else "pooling"

    async def scheduling(self, http: ControlHttp) -> str:
        """From /server_info, which only a server in dev mode has."""
        return vllm_scheduling(await told(http, "/server_info?config_format=json"))

    async def check(self, http: ControlHttp) -> None:
        """GET /health."""
        ok(await http.get("/health"), "/health")

    async def report(self, http: ControlHttp) -> EngineReport | None:
        """From /metrics: about 5 ms of the server's time, so not often. Several engines behind one server are summed."""
        reply = await http.get("/metrics")
        return vllm_report(reply.body) if reply.status == 200 else None


async def is_vllm(http: ControlHttp) -> bool:
    """Whether /version looks like vLLM's."""
    try:
        reply = await http.get("/version")
        return reply.status == 200 and isinstance(reply.json().get("version"), str)
    except ProbeFailedError:
        return False


def vllm_report(text: bytes) -> EngineReport | None:
    """The report of vLLM's metrics; None if they are not vLLM's."""
    running, waiting = samples(text, "vllm:num_requests_running"), samples(text, "vllm:num_requests_waiting")
    if not running:
        return None
    usage = samples(text, "vllm:kv_cache_usage_perc") or samples(text, "vllm:gpu_cache_usage_perc")
    sizes = [labels_of(text, "vllm:cache_config_info", name) for name in ("num_gpu_blocks", "block_size")]
    blocks, block_size = (int(size) if size.isdigit() else 0 for size in sizes)
    steps = histogram(text, "vllm:iteration_tokens_total")
    queued = int(sum(waiting))
    return EngineReport(int(sum(running)) + queued, max(usage, default=-1.0), blocks, block_size, steps, queued)
