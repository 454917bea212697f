"""A simulated vLLM server: an OpenAI-compatible HTTP server that runs an `Instance` on its event loop's clock.

No model answers: words come from a list, and only when they come is meant to be true. `MockEngine` is for embedding
(demos, tests; also in virtual time), `serve_mock` for a process of its own. The faces are in the `mock_*` modules;
this one builds and wires them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Middleware

from backends.mock_config import MockConfig
from backends.mock_control import ControlFace
from backends.mock_core import EngineCore
from backends.mock_http import errors_middleware, key_middleware
from backends.mock_messages import MessagesFace
from backends.mock_metrics import Metrics
from backends.mock_openai import OpenAiFace
from backends.mock_pooling import PoolingFace
from backends.mock_responses import ResponsesFace
from backends.mock_serving import SeenRequest, Serving
from backends.mock_source import InstanceSource
from predictor.instance import Instance
from predictor.listening import listen
from predictor.oracle import FixedPace, Oracle
from predictor.sidecar import Sidecar, SidecarConfig

__all__ = ["MockConfig", "MockEngine", "SeenRequest", "serve_mock"]

_CLOSE_TIMEOUT_S = 0.001  # aiohttp reads 0 as no limit at all


class MockEngine:
    """One simulated engine. `start` it inside the loop whose clock it shall follow; `close` cuts what still runs."""

    def __init__(self, config: MockConfig) -> None:
        self.config = config
        self.url = ""
        self.instance = Instance(config.profile, config.limits)
        self._core: EngineCore | None = None
        self._serving: Serving | None = None
        self._responses: ResponsesFace | None = None
        self._runner: web.AppRunner | None = None
        self.sidecar: Sidecar | None = None

    def __repr__(self) -> str:
        return f"<MockEngine {self.config.name} {self.url or 'not started'} {self.instance!r}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> str:
        """Listen, and return the base URL. OSError if the address is taken."""
        assert self._runner is None, "started twice"
        self._runner, self.url = await listen(
            self._build(), self.config.host, self.config.port, handler_cancellation=True, shutdown_timeout=_CLOSE_TIMEOUT_S
        )
        if self.config.sidecar is not None:
            self.sidecar = self._beside(self.config.sidecar)
            await self.sidecar.start()
        return self.url

    def _beside(self, config: SidecarConfig) -> Sidecar:
        assert self._core is not None
        source = InstanceSource(self._core, f"mock {self.config.engine_version}", self.config.enable_prefix_caching)
        return Sidecar(source, Oracle(FixedPace(self.config.profile)), config, self._core.now_s)

    async def close(self) -> None:
        """Stop at once, as a killed process would: answers under way break off unfinished, connections close."""
        if self.sidecar is not None:
            await self.sidecar.close()
        if self._responses is not None:
            await self._responses.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._core is not None:
            self._core.stop()

    @property
    def serving(self) -> Serving:
        """Counters and recent requests; only once started."""
        assert self._serving is not None, "not started"
        return self._serving

    @property
    def requests_seen(self) -> int:
        """Well-formed inference requests, refused ones included."""
        return self.serving.requests_seen

    @property
    def seen_asleep(self) -> int:
        """Of these, requests that came while it slept or was paused."""
        return self.serving.seen_asleep

    @property
    def refused(self) -> int:
        """Requests answered 503 because the queue was full."""
        return self.serving.refused

    @property
    def finished(self) -> int:
        """Requests that produced all their tokens."""
        return self.serving.finished

    @property
    def aborted(self) -> int:
        """Requests cut short: the client went away, or an abort, pause or sleep ended them."""
        return self.serving.aborted

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.serving.in_flight

    @property
    def recent(self) -> deque[SeenRequest]:
        """The latest requests, oldest first, bounded."""
        return self.serving.recent

    def _build(self) -> web.Application:
        config = self.config
        metrics = Metrics(config)
        core = EngineCore(self.instance, metrics, asyncio.get_running_loop())
        metrics.bind(core)
        serving = Serving(config, core)
        self._core, self._serving = core, serving
        middlewares: list[Middleware] = [errors_middleware]
        if config.api_key is not None:
            middlewares.append(key_middleware(config.api_key))
        app = web.Application(middlewares=middlewares, client_max_size=config.request_bytes_max)
        app.add_routes(ControlFace(config, core, serving, metrics).routes())
        if config.pooling:
            app.add_routes(PoolingFace(serving).routes())
        else:
            self._responses = ResponsesFace(serving)
            for face in (OpenAiFace(serving), MessagesFace(serving), self._responses):
                app.add_routes(face.routes())
        return app


async def serve_mock(
    config: MockConfig, on_ready: Callable[[str], None] | None = None, on_sidecar: Callable[[str], None] | None = None
) -> None:
    """Serve until cancelled; `on_ready` is told the base URL once the engine listens, `on_sidecar` its sidecar's."""
    async with MockEngine(config) as engine:
        if on_ready is not None:
            on_ready(engine.url)
        if on_sidecar is not None and engine.sidecar is not None:
            on_sidecar(engine.sidecar.url)
        await asyncio.get_running_loop().create_future()
