"""Everything of the simulated engine that is not inference: health, models, metrics, tokens, vLLM's dev routes.

The dev routes exist only with `dev_mode`, as vLLM has them only with VLLM_SERVER_DEV_MODE=1. Asleep or paused, the
engine holds new requests until it is woken or resumed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from aiohttp import web

from backends.mock_ask import content_texts
from backends.mock_body import Body
from backends.mock_config import MockConfig
from backends.mock_core import EngineCore
from backends.mock_http import bad_field, bad_request, json_answer, read_json
from backends.mock_metrics import Metrics
from backends.mock_openai import models_json
from backends.mock_serving import Serving
from backends.mock_text import TOKENS_PER_MESSAGE, detokenize, tokenize

_MODES = ("abort", "wait", "keep")
_SLEEPERS = frozenset(("weights", "kv_cache"))


class ControlFace:
    """Handlers of the control routes."""

    def __init__(self, config: MockConfig, core: EngineCore, serving: Serving, metrics: Metrics) -> None:
        self._config = config
        self._core = core
        self._serving = serving
        self._metrics = metrics
        self._created_s = int(time.time())
        self._asleep: frozenset[str] = frozenset()

    def routes(self) -> list[web.RouteDef]:
        """What every server has, then what one in dev mode has."""
        always = [
            web.get("/health", self.health),
            web.get("/ping", self.health),
            web.post("/ping", self.health),
            web.get("/version", _fixed({"version": self._config.engine_version})),
            web.get("/load", self.load),
            web.get("/metrics", self.metrics),
            web.get("/v1/models", _fixed(models_json(self._config, self._created_s))),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
        ]
        return [*always, *self._dev_routes()] if self._config.dev_mode else always

    def _dev_routes(self) -> list[web.RouteDef]:
        return [
            web.post("/sleep", self.sleep),
            web.post("/wake_up", self.wake_up),
            web.get("/is_sleeping", self.is_sleeping),
            web.post("/collective_rpc", self.collective_rpc),
            web.post("/pause", self.pause),
            web.post("/resume", self.resume),
            web.get("/is_paused", self.is_paused),
            web.post("/abort_requests", self.abort_requests),
            web.post("/reset_prefix_cache", self.reset_prefix_cache),
            web.get("/server_info", self.server_info),
        ]

    async def health(self, http: web.Request) -> web.Response:
        """GET /health, GET and POST /ping: an empty 200, or 503 once the engine has stopped."""
        return web.Response(status=503 if self._core.stopped else 200)

    async def load(self, http: web.Request) -> web.Response:
        """GET /load: requests in flight."""
        return json_answer({"server_load": self._serving.in_flight})

    async def metrics(self, http: web.Request) -> web.Response:
        """GET /metrics."""
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=self._metrics.text(), headers={"Content-Type": content_type})

    async def tokenize(self, http: web.Request) -> web.Response:
        """POST /tokenize: of a prompt or of messages, counted as the inference routes do."""
        body = Body(await read_json(http))
        self._serving.check_model(body.text("model"))
        if "messages" in body:
            messages = body.children("messages")
            text = "".join(part for message in messages for part in content_texts(message.raw("content")))
            tokens = (tokenize(text) or [0]) + [0] * (TOKENS_PER_MESSAGE * len(messages))
        else:
            tokens = tokenize(body.required_text("prompt")) or [0]
        strings = [detokenize([token]) for token in tokens] if body.flag("return_token_strs") else None
        limit = self._config.limits.max_model_len
        return json_answer({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": strings})

    async def detokenize(self, http: web.Request) -> web.Response:
        """POST /detokenize."""
        body = Body(await read_json(http))
        self._serving.check_model(body.text("model"))
        tokens = body.array("tokens")
        if tokens is None:
            raise body.missing("tokens")
        ids = [token for token in tokens if isinstance(token, int)]
        if len(ids) != len(tokens):
            raise bad_field("tokens must be integers", "tokens")
        return json_answer({"prompt": detokenize(ids)})

    async def sleep(self, http: web.Request) -> web.Response:
        """POST /sleep?level=&mode=: pause, and at level 1 or 2 give up memory as well."""
        level = _query_integer(http, "level", 1)
        await self._core.pause(_query_mode(http))
        self._asleep = _SLEEPERS if level > 0 else frozenset()
        await asyncio.sleep(self._config.sleep_s)
        return json_answer({"status": "sleeping", "level": level})

    async def wake_up(self, http: web.Request) -> web.Response:
        """POST /wake_up?tags=: run again once weights and KV cache are both back; no tags means both."""
        tags = http.query.getall("tags", [])
        if not tags or "weights" in tags:
            await asyncio.sleep(self._config.wake_s)
        self._asleep -= frozenset(tags) or _SLEEPERS
        if not self._asleep:
            self._core.resume()
        return json_answer({"status": "sleeping" if self._asleep else "awake", "tags": tags or None})

    async def is_sleeping(self, http: web.Request) -> web.Response:
        """GET /is_sleeping: yes of one that is only paused as well."""
        return json_answer({"is_sleeping": bool(self._asleep) or self._core.paused})

    async def collective_rpc(self, http: web.Request) -> web.Response:
        """POST /collective_rpc {method}: of the workers' methods, reload_weights alone, which has nothing to do here."""
        method = Body(await read_json(http)).required_text("method")
        if method != "reload_weights":
            raise web.HTTPInternalServerError(text=f"no worker has a method {method}")
        return json_answer({"results": [None]})

    async def pause(self, http: web.Request) -> web.Response:
        """POST /pause?mode=."""
        await self._core.pause(_query_mode(http))
        return json_answer({"status": "paused"})

    async def resume(self, http: web.Request) -> web.Response:
        """POST /resume."""
        self._core.resume()
        return json_answer({"status": "resumed"})

    async def is_paused(self, http: web.Request) -> web.Response:
        """GET /is_paused."""
        return json_answer({"is_paused": self._core.paused})

    async def abort_requests(self, http: web.Request) -> web.Response:
        """POST /abort_requests {request_ids}: those named, or all if none is. Ids with or without their prefix."""
        names = Body(await read_json(http)).array("request_ids") or []
        self._serving.abort({str(name).removeprefix("chatcmpl-").removeprefix("cmpl-") for name in names})
        return web.Response()

    async def reset_prefix_cache(self, http: web.Request) -> web.Response:
        """POST /reset_prefix_cache: whether it worked; it does not while sequences hold blocks."""
        return json_answer({"success": self._core.reset_prefix_cache()})

    async def server_info(self, http: web.Request) -> web.Response:
        """GET /server_info: the settings, without the key."""
        limits = self._config.limits
        model = {
            "model": self._config.models[0],
            "served_model_name": list(self._config.models),
            "max_model_len": limits.max_model_len,
            "runner_type": "pooling" if self._config.pooling else "generate",
        }
        scheduler = {
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "policy": "fcfs",
        }
        cache = {
            "block_size": limits.block_size,
            "num_gpu_blocks": limits.kv_blocks,
            "enable_prefix_caching": self._config.enable_prefix_caching,
        }
        config = {"model_config": model, "scheduler_config": scheduler, "cache_config": cache}
        return json_answer({"vllm_config": config, "step_profile": asdict(self._config.profile)})


def _fixed(body: object) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler that always answers the same."""

    async def answer(http: web.Request) -> web.Response:
        return json_answer(body)

    return answer


def _query_mode(http: web.Request) -> str:
    mode = http.query.get("mode", "abort")
    if mode not in _MODES:
        raise bad_request(f"mode must be one of {', '.join(_MODES)}", "mode")
    return mode


def _query_integer(http: web.Request, name: str, default: int) -> int:
    text = http.query.get(name, str(default))
    if not text.isdigit():
        raise bad_request(f"{name} must be a number", name)
    return int(text)
