"""The HTTP face of an oracle, beside one engine: /predict, /reserve, /correct, /snapshot, /healthz, /metrics. Shell.

Handed a source of sightings, so it knows no engine; docs/wire.md describes what it speaks. It never answers from a
state that it could not read: a dead, silent or foreign engine is a 503 with the cause, and the gateway then decides
without a prediction. Listens on loopback unless told otherwise, and elsewhere only with a token.
"""

import asyncio
import gc
import ipaddress
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Self

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from predictor.listening import listen
from predictor.oracle import Oracle
from predictor.reservations import LIFE_S
from predictor.sighting import NoSightError, Sighting, SnapshotSource
from predictor.wire import (
    TOOK_HEADER,
    WIRE_VERSION,
    Ask,
    Question,
    WireError,
    encode_reply,
    encode_snapshot,
    parse_ask,
    parse_correction,
    parse_question,
)

BODY_BYTES_MAX = 256 * 1024
WATCH_S = 0.05
_CLOSE_TIMEOUT_S = 0.001  # aiohttp reads 0 as no limit at all
_KEEP_ALIVE_S = 3600.0


class SidecarConfigError(ValueError):
    """It may not be served like this; the text says why."""


@dataclass(frozen=True, slots=True)
class SidecarConfig:
    """Where it listens (port 0: any free one) and the token that requests must carry ("": none).

    Raises SidecarConfigError when it would listen beyond this machine without a token.
    """

    host: str = "127.0.0.1"
    port: int = 8100
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.token and not _is_loopback(self.host):
            raise SidecarConfigError(f"{self.host} is not loopback: give the sidecar a token")
        if not (self.token.isascii() and (self.token.isprintable() and " " not in self.token)):
            raise SidecarConfigError("a token may only hold visible ASCII characters")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Metrics:
    """Counts in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.answers = self._counter("requests", "Answers, by route and status.", ("route", "status"))
        self.unsighted = self._counter("unsighted", "Looks at the engine that showed nothing, by cause.", ("cause",))
        self.age_s = self._gauge("snapshot_age_seconds", "Age of the engine's state at the last prediction.")
        self.running = self._gauge("running", "Requests in the engine's batch.")
        self.waiting = self._gauge("waiting", "Requests in the engine's queue.")
        self.reserved = self._gauge("reserved", "Reservations that the engine's state does not show yet.")
        self.step_error = self._gauge("step_error", "Recent mean relative error of foretold steps.")
        self.stretch = self._gauge("stretch", "Seen over foretold seconds per token of the last answers.")
        self.kv_tokens = self._gauge("kv_tokens", "Tokens in the engine's KV cache, by its own events.")
        self.kv_joined = self._gauge("kv_joined", "Prompts matched with its KV blocks.")
        self.steps = self._counter("states", "States read.", ())

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"leeway_sidecar_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"leeway_sidecar_{name}", text, registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Sidecar:
    """One engine's sidecar. `now` is the clock of the source's states."""

    def __init__(
        self,
        source: SnapshotSource,
        oracle: Oracle,
        config: SidecarConfig,
        now: Callable[[], float],
        beside: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """`beside` runs for as long as the sidecar does: a reader of the engine's KV events."""
        self.config = config
        self.url = ""
        self._source = source
        self._oracle = oracle
        self._now = now
        self._metrics = _Metrics()
        self._last: Sighting | None = None
        self._watch: asyncio.Task[None] | None = None
        self._beside = beside
        self._reader: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._expected = f"Bearer {config.token}".encode()

    def __repr__(self) -> str:
        return f"<Sidecar {self.url or 'not started'} {self._source!r}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> str:
        """Listen, and return the base URL. OSError if the address is taken."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._counting()])
        app.add_routes(
            [
                web.post("/predict", self.predict),
                web.post("/reserve", self.reserve),
                web.post("/correct", self.correct),
                web.get("/snapshot", self.snapshot),
                web.get("/healthz", self.healthz),
                web.get("/metrics", self.metrics),
            ]
        )
        limits = {"shutdown_timeout": _CLOSE_TIMEOUT_S, "keepalive_timeout": _KEEP_ALIVE_S}
        self._runner, self.url = await listen(app, self.config.host, self.config.port, **limits)
        self._watch = asyncio.create_task(self._keep_watch())
        if self._beside is not None:
            self._reader = asyncio.create_task(self._beside())
        return self.url

    async def close(self) -> None:
        """Stop listening and let go of the source."""
        for task in (self._watch, self._reader):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        self._source.close()

    # -- routes

    async def predict(self, http: web.Request) -> web.Response:
        """POST /predict. What the question brings is taken also where it cannot be answered, and the answer says so."""
        question = parse_question(await http.read())
        took = self._take(question)
        try:
            response = self._foretell(question.ask)
        except NoSightError as error:
            response = _error(503, error.cause, str(error))
        response.headers[TOOK_HEADER] = str(took)
        return response

    def _take(self, question: Question) -> int:
        """How many reservations and corrections there were."""
        now_s = self._now()
        for one in question.reserved:
            self._oracle.reserve(one, now_s)
        for correction in question.corrected:
            self._oracle.correct(correction)
        return len(question.reserved) + len(question.corrected)

    def _foretell(self, ask: Ask) -> web.Response:
        self._look()
        reply = self._oracle.reply(ask, self._now())
        self._metrics.age_s.set(reply.snapshot_age_s)
        return _answer(encode_reply(reply))

    async def reserve(self, http: web.Request) -> web.Response:
        """POST /reserve."""
        ask = parse_ask(await http.read())
        now_s = self._now()
        ends_s = self._oracle.reserve(ask, now_s)
        expires_in_ms = round(1000 * min(LIFE_S, ends_s - now_s))
        return _answer(orjson.dumps({"v": WIRE_VERSION, "id": ask.id, "expires_in_ms": expires_in_ms}))

    async def correct(self, http: web.Request) -> web.Response:
        """POST /correct."""
        correction = parse_correction(await http.read())
        known = self._oracle.correct(correction)
        return _answer(orjson.dumps({"v": WIRE_VERSION, "id": correction.id, "known": known}))

    async def snapshot(self, http: web.Request) -> web.Response:
        """GET /snapshot."""
        seen = self._look()
        age_s = max(0.0, self._now() - seen.snapshot.taken_s)
        return _answer(encode_snapshot(seen.snapshot, seen.engine, age_s, len(self._oracle.reservations)))

    async def healthz(self, http: web.Request) -> web.Response:
        """GET /healthz: 200 while the engine's state can be read."""
        seen = self._look()
        return _answer(orjson.dumps({"status": "ok", "engine": seen.engine, "number": seen.number}))

    async def metrics(self, http: web.Request) -> web.Response:
        """GET /metrics."""
        if self._last is not None:
            self._metrics.running.set(len(self._last.snapshot.running))
            self._metrics.waiting.set(len(self._last.snapshot.waiting))
        self._metrics.reserved.set(len(self._oracle.reservations))
        self._metrics.step_error.set(self._oracle.step_error)
        self._metrics.stretch.set(self._oracle.outcomes.stretch)
        if self._oracle.kv is not None:
            self._metrics.kv_tokens.set(self._oracle.kv.tokens)
            self._metrics.kv_joined.set(self._oracle.kv.joined)
        return web.Response(body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    # -- inside

    def _look(self) -> Sighting:
        """The newest state, taken in. Raises NoSightError."""
        try:
            found = self._source.look(self._now())
        except NoSightError as error:
            self._last = None
            self._metrics.unsighted.labels(error.cause).inc()
            raise
        if found is not self._last:
            self._last = found
            self._metrics.steps.inc()
            self._oracle.saw(found)
        return found

    async def _keep_watch(self) -> None:
        """Look now and then without being asked: what is reserved must be seen arriving, and steps teach the pace."""
        while True:
            try:
                self._look()
            except NoSightError:
                self._last = None
            await asyncio.sleep(WATCH_S)

    def _counting(self) -> Middleware:
        """The token, and errors as bodies, counted once."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = await self._guarded(request, handler)
            resource = request.match_info.route.resource
            self._metrics.answers.labels(resource.canonical if resource else "other", response.status).inc()
            return response

        return check

    async def _guarded(self, http: web.Request, handler: Handler) -> web.StreamResponse:
        if self.config.token and http.path != "/healthz":
            given = http.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not compare_digest(given, self._expected):
                return _error(401, "unauthorized", "This sidecar wants its token as a Bearer token.")
        try:
            return await handler(http)
        except WireError as error:
            return _error(400, error.code, str(error))
        except NoSightError as error:
            return _error(503, error.cause, str(error))
        except web.HTTPException as error:  # the router's and the size limit's: 404, 405, 413
            return _error(error.status, "refused", error.reason)


def _answer(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _error(status: int, code: str, message: str) -> web.Response:
    return _answer(orjson.dumps({"error": {"code": code, "message": message}}), status)


async def serve_sidecar(sidecar: Sidecar, on_ready: Callable[[str], None]) -> None:
    """Serve until cancelled; `on_ready` is told the base URL once it listens."""
    async with sidecar:
        on_ready(sidecar.url)
        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked through again
        await asyncio.get_running_loop().create_future()
