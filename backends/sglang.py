"""SGLang's HTTP server (0.5.23): /health, /model_info (older: /get_model_info), /server_info. Shell.

Known from the wheel's source and a stub made of its request models; not run on an engine here.
"""

from backends.base import ControlHttp, Kind, Reply
from backends.openai import OpenAIAdapter, ok


class SglangAdapter(OpenAIAdapter):
    """The kind comes from `is_generation`, the version from /server_info."""

    engine = "sglang"

    async def version(self, http: ControlHttp) -> str:
        """From /server_info; a server without it is still usable."""
        reply = await _first(http, "/server_info", "/get_server_info")
        return str(reply.json().get("version") or "")[:64] if reply.status == 200 else ""

    async def kind(self, http: ControlHttp) -> Kind:
        """From /model_info."""
        reply = await _first(http, "/model_info", "/get_model_info")
        if reply.status != 200:
            return "unknown"
        generation = reply.json().get("is_generation")
        if generation is None:
            return "unknown"
        return "generate" if generation else "pooling"

    async def check(self, http: ControlHttp) -> None:
        """GET /health."""
        ok(await http.get("/health"), "/health")


async def _first(http: ControlHttp, path: str, older: str) -> Reply:
    reply = await http.get(path)
    return reply if reply.status != 404 else await http.get(older)
