"""SGLang's HTTP server (0.5.23): /ready, /health, /model_info (older: /get_model_info), /server_info. Shell.

Tested on a running server, on a CPU.
"""

from backends.base import ControlHttp, EngineReport, Identity, Kind, ProbeFailedError, Reply
from backends.metrics_text import samples
from backends.openai import OpenAIAdapter, listed_models, ok, told
from backends.priorities import sglang_scheduling
from backends.sglang_sizes import server_sizes


class SglangAdapter(OpenAIAdapter):
    """The kind comes from `is_generation`; version, order and sizes from /server_info."""

    engine = "sglang"

    async def identify(self, http: ControlHttp) -> Identity:
        """One look at /server_info for all that stands there: its schedulers are asked for it. One that is late with it,
        or has none, is still usable. It lists its models while it warms up and while it is paused, too, so it is asked
        whether it is ready as well. Raises ProbeFailedError."""
        await self.check(http)
        models, length, _ = listed_models(ok(await http.get("/v1/models"), "/v1/models"))
        kind = await self.kind(http)
        info = await told(http, "/server_info") or await told(http, "/get_server_info")
        version = str(info.get("version") or "")[:64]
        # with that option it would keep what belongs to a session until the session is closed
        named = info.get("enable_session_radix_cache") is False
        sizes, order = server_sizes(info), sglang_scheduling(info)
        return Identity(self.engine, version, models, kind, length, order, sizes, named, recall="rid")

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
        """GET /ready, which answers at once; where that says no or is missing, GET /health, unless it is merely paused.

        /health computes a token, looks for it once a second, and hangs while generation is paused: it answers after a second at
        the earliest and not within any limit of ours while the engine is at a long prefill. What is up but computes nothing is
        found by requests.
        """
        reply = await http.get("/ready")
        if reply.status == 503 and (await http.get("/ping")).status == 200:
            raise ProbeFailedError("generation is paused")
        if reply.status != 200:
            ok(await http.get("/health"), "/health")

    async def recall(self, http: ControlHttp, engine_id: str) -> None:
        """POST /abort_request. It drops every request whose id begins so, and knows none by an id that it has not read yet;
        without this it looks for a client that left every 4 s (plain), or 2 s after it has seen that (streamed)."""
        await http.post("/abort_request", {"rid": engine_id})

    async def report(self, http: ControlHttp) -> EngineReport | None:
        """From /metrics, where the server was started with them; its size in tokens counts as blocks of one."""
        reply = await http.get("/metrics")
        return sglang_report(reply.body) if reply.status == 200 else None


async def _first(http: ControlHttp, path: str, older: str) -> Reply:
    reply = await http.get(path)
    return reply if reply.status != 404 else await http.get(older)


def sglang_report(text: bytes) -> EngineReport | None:
    """The report of SGLang's metrics; None if they are not SGLang's."""
    running, waiting = samples(text, "sglang:num_running_reqs"), samples(text, "sglang:num_queue_reqs")
    if not running:
        return None
    usage, tokens = samples(text, "sglang:token_usage"), samples(text, "sglang:max_total_num_tokens")
    size = int(max(tokens, default=0.0))
    queued = int(sum(waiting))
    return EngineReport(int(sum(running)) + queued, max(usage, default=-1.0), size, 1 if size else 0, waiting=queued)
