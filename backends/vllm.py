"""vLLM's OpenAI server (0.32): /health, /version, and one process that either generates or pools. Shell."""

from backends.base import ControlHttp, Kind, ProbeFailedError
from backends.openai import OpenAIAdapter, ok


class VllmAdapter(OpenAIAdapter):
    """See engines.md 3: which routes exist tells the kind, from the server's own route list."""

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

    async def check(self, http: ControlHttp) -> None:
        """GET /health."""
        ok(await http.get("/health"), "/health")


async def is_vllm(http: ControlHttp) -> bool:
    """Whether /version looks like vLLM's."""
    try:
        reply = await http.get("/version")
        return reply.status == 200 and isinstance(reply.json().get("version"), str)
    except ProbeFailedError:
        return False
