"""The data plane: what all exchanges of one process share, and its listener. Shell; touched only by the event loop.

It owns the fleet, the line, the pools, the keyring and the counters, and lends them to exchanges. It knows no engine:
adapters are upkeep's.
"""

import asyncio
import math
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from random import Random
from socket import socket
from typing import Protocol, cast

from gateway import own_pages
from gateway.accounts import Account
from gateway.admission import PATIENCE_S, DrainRate, RetryBudget, WaitingLine
from gateway.api import LocalRoute, Refusal, unknown_model
from gateway.auth import Keyring
from gateway.config import BackendSpec, GatewayConfig, Listen, split_address
from gateway.deadlines import Deadlines
from gateway.descriptors import affordable_clients
from gateway.desks import Desks
from gateway.dispatch import Dispatcher
from gateway.fleet import Fleet
from gateway.forward import Exchange
from gateway.homes import ResponseHomes
from gateway.lodging import Lodging, Waiter
from gateway.logs import Logs
from gateway.metrics import RequestMetrics
from gateway.placement import Placement
from gateway.pools import Pools
from gateway.promise_metrics import PromiseMetrics
from gateway.records import Records
from gateway.relay.downstream import ClientConnection
from gateway.relay.memo import HeadStore
from gateway.relay.requests import RequestHead
from gateway.replica import Replica
from gateway.signals import RequestIds
from gateway.slo import ClassBook
from gateway.underway import Underway
from predictor.hosts import host_profiles

FLUSH_S = 1.0


class _LineTick:
    """While somebody waits, each sweep offers places: a backend may have come up, or its overload may be over."""

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self.due_s = 0.0

    def on_due(self, now_s: float) -> None:
        self._plane.release_line()


class Listening(Protocol):
    """A server with its sockets: a list of them with uvloop, a tuple without."""

    @property
    def sockets(self) -> Sequence[socket]: ...


class DataPlane:
    """See the module's words. `now` must tell the loop's time, at whatever resolution."""

    def __init__(
        self, config: GatewayConfig, logs: Logs, rng: Random, loop: asyncio.AbstractEventLoop, now: Callable[[], float]
    ) -> None:
        self.config = config
        self.limits = config.limits
        self.timeouts = config.timeouts
        self.loop = loop
        self.now = now
        self.logs = logs
        self.deadlines = Deadlines(loop)
        self.ids = RequestIds(f"{rng.getrandbits(48):012x}")
        self.fleet = Fleet(config.health)
        self.pools = Pools(config, now)
        self.keyring = Keyring(config.keys)
        self.dispatcher = Dispatcher(config.model, rng)
        self.line: WaitingLine[Placement] = WaitingLine(config.queue)
        self.desks = Desks(self, rng)
        self.lodging = Lodging(config, host_profiles)
        self.retry_budget = RetryBudget(config.retry)
        self.response_homes = ResponseHomes(config.limits.response_ids)
        self.metrics = RequestMetrics(config.limits.model_labels)
        self.promises = PromiseMetrics()
        self.records = Records(config.slo.records)
        self.underway = Underway(self)
        self.lodging.offload.beside = self.underway.sent_before
        self.classes = ClassBook(config.classes)
        self.has_classes = bool(config.classes)
        self.request_heads: HeadStore[RequestHead] = HeadStore()
        self.draining = False
        self.held_bytes = 0
        self.affordable = affordable_clients()
        self.generation = 1
        self._rng = rng
        self._drain_rate = DrainRate()
        self._clients: set[ClientConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._tick = _LineTick(self)
        self._aliases = _aliases(config)
        self._idle = asyncio.Event()
        self._tls: tuple[ssl.SSLContext, Listen] | None = None

    def __repr__(self) -> str:
        return f"<DataPlane {len(self._clients)} connections, {self.held} waiting, {self.fleet!r}>"

    # -- listener

    async def listen(self) -> None:
        """Open the data listener. Raises OSError."""
        listen = self.config.listen
        host, port = split_address(listen.data)
        if listen.tls_cert_file:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), listen
            self._read_certificate(*self._tls)
        server = await self.loop.create_server(
            cast("Callable[[], asyncio.Protocol]", self._accept),
            host,
            port,
            backlog=listen.backlog,
            reuse_port=listen.reuse_port or None,
            ssl=self._tls[0] if self._tls is not None else None,
        )
        self._servers.append(server)
        self.deadlines.start()

    @staticmethod
    def _read_certificate(context: ssl.SSLContext, listen: Listen) -> None:
        """The listener's certificate, as its files are now. Raises OSError; then the old one stays whole."""
        for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):  # a certificate without its key would stay in it
            one.load_cert_chain(listen.tls_cert_file, listen.tls_key_file or None)

    def _renew_certificate(self) -> None:
        try:
            if self._tls is not None:
                self._read_certificate(*self._tls)
        except OSError as error:
            self.logs.event("error", "certificate not read again", reason=error.strerror or type(error).__name__)

    def _accept(self) -> ClientConnection:
        return ClientConnection(self, partial(Exchange, self))

    @property
    def port(self) -> int:
        """The data listener's port (of the first socket)."""
        listening = cast("Listening", self._servers[0])
        return int(listening.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._clients)

    @property
    def busy(self) -> int:
        """Connections with a request on them."""
        return sum(not client.idle for client in self._clients)

    def joined(self, connection: ClientConnection) -> bool:
        """A client connected. False when there are too many."""
        self._clients.add(connection)
        return len(self._clients) <= min(self.limits.connections, self.affordable)

    def left(self, connection: ClientConnection) -> None:
        """A client's connection is gone."""
        self._clients.discard(connection)
        if self.draining and not self._clients:
            self._idle.set()

    # -- backends

    def add_backend(self, spec: BackendSpec) -> Replica:
        """Take a backend into the table and open its pool."""
        replica = self.fleet.added(spec)
        self.pools.open(spec)
        return replica

    def respecify_backend(self, spec: BackendSpec) -> Replica:
        """Replace a backend's settings."""
        old = self.fleet.get(spec.name)
        assert old is not None
        before = old.spec
        replica = self.fleet.respecified(spec.name, spec)
        self.pools.respecified(before, spec)
        return replica

    def remove_backend(self, name: str) -> None:
        """Forget a backend. Requests on it finish."""
        self.fleet.removed(name)
        self.desks.forget(name)
        self.metrics.forget(name)
        self.pools.remove(name)

    # -- models

    def resolve(self, name: str) -> str | None:
        """A requested name to the name that backends serve; None when nobody does. "" means the only model there is."""
        return own_pages.resolve(self.fleet, self._aliases, name)

    def resolved(self, name: str) -> str:
        """The same. Raises Refusal (404)."""
        model = self.resolve(name)
        if model is None:
            raise unknown_model(name, self.known_models())
        return model

    def known_models(self) -> tuple[str, ...]:
        """Served models and their aliases."""
        return own_pages.known_models(self.fleet, self._aliases)

    def home(self, response_id: str, owner: str) -> Replica:
        """The replica that holds a stored response of this owner. Raises Refusal."""
        name = self.response_homes.find(response_id, owner)
        if name is None:
            raise Refusal(404, "response_not_found", f"No response {response_id[:100]!r} is known here.")
        replica = self.fleet.get(name)
        if replica is None or replica.state not in ("ready", "draining"):
            raise Refusal(503, "backend_unavailable", "The backend that holds this response is not available.", retry_after_s=2)
        return replica

    def local_answer(self, local: LocalRoute, owner: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """(status, headers, body) of a route that the gateway answers itself, to a key with that hash."""
        if local.what == "request":
            name = local.argument
            return own_pages.request_answer(name, self.underway.find(name, owner) or self.records.find(name, owner))
        return own_pages.answer(local, self.fleet, self._aliases, self.draining)

    # -- what exchanges ask

    def charge_body(self, size: int) -> bool:
        """Hold `size` more body bytes, if the total allows it."""
        if self.held_bytes + size > self.limits.bodies_bytes:
            return False
        self.held_bytes += size
        return True

    def release_body(self, size: int) -> None:
        """Hold them no longer."""
        self.held_bytes -= size
        assert self.held_bytes >= 0

    def enqueue(self, model: str, placement: Placement, deadline_s: float) -> None:
        """Join the line. Raises Refusal (429) when it is full."""
        if self.line.full or self.held >= self.config.queue.size:
            raise self._queue_full(model)
        self.line.push(model, placement, min(deadline_s, self.now() + PATIENCE_S))
        self.deadlines.add(self._tick)
        self.lodging.nudge()

    def hold(self, model: str) -> None:
        """Somebody waits at a desk from now on. Raises Refusal (429) when the line is full without him."""
        if self.held > self.config.queue.size:
            raise self._queue_full(model)
        self.deadlines.add(self._tick)
        self.lodging.nudge()

    def _queue_full(self, model: str) -> Refusal:
        return Refusal(429, "queue_full", "The waiting line is full.", retry_after_s=self.drain_wait_s(model))

    @property
    def held(self) -> int:
        """Requests that wait for a replica to open."""
        return len(self.line) + self.desks.held

    def release_line(self) -> None:
        """Offer places to whoever waits."""
        for model in self.line.models():
            self.line.release(model, Placement.offered)
        self.desks.tick()
        if not self.held:
            self.deadlines.discard(self._tick)

    def drain_wait_s(self, model: str, ahead: int = -1) -> int:
        """What a refusal's Retry-After says: until the line, or so many in it, has drained at the present rate."""
        now_s = self.now()
        ahead = ahead if ahead >= 0 else self.line.waiting(model) + self.desks.waiting_for(model)
        wait_s = self._drain_rate.retry_after_s(ahead, now_s)
        if self.lodging.on and (expected_s := self.lodging.expected_s(model, now_s)):
            wait_s = max(wait_s, math.ceil(expected_s))
        return wait_s

    def waiters(self) -> list[Waiter]:
        """Requests that wait for a replica."""
        found = [placement.waiter() for placement in (*self.line, *self.desks.placements())]
        return [waiter for waiter in found if waiter is not None]

    def probe_wait_s(self) -> int:
        """Retry-After when no backend is up: two probe periods."""
        return max(1, round(2 * self.config.health.interval_s))

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a short task that this plane owns."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.call_exception_handler({"message": "a task of the data plane failed", "exception": error})

    def settled(self, account: Account) -> None:
        """A request has its end."""
        if account.dispatched_s < 0 and self.lodging.on:
            account.swap_s = self.lodging.waited_s(account.model, account.accepted_s, account.finished_s)
        self.metrics.record(account)
        self.logs.access(account)
        if account.model:
            self.records.keep(account)
        if account.promise is not None:
            self.promises.record(account)
        if account.attempts:
            self.lodging.over(account)
            self._drain_rate.left(account.finished_s)
            if len(self.line):
                self.release_line()

    # -- configuration and end

    def adopt(self, config: GatewayConfig) -> None:
        """Swap in a validated configuration; listeners and backends are the caller's."""
        keyring = Keyring(config.keys)
        self.keyring.adopted_by(keyring)
        self.keyring = keyring
        self.config, self.limits, self.timeouts = config, config.limits, config.timeouts
        self.dispatcher = Dispatcher(config.model, self._rng)
        self.desks.adopt()
        self.lodging.adopt(config)
        self.classes, self.has_classes = ClassBook(config.classes), bool(config.classes)
        self.records.resize(config.slo.records)
        self._aliases = _aliases(config)
        self.pools.adopt(config)
        self._renew_certificate()
        self.generation += 1

    async def drain(self, limit_s: float) -> None:
        """Stop accepting, let requests finish for `limit_s`, then give each that is left one error."""
        self.draining = True
        for server in self._servers:
            server.close()
        for client in [c for c in self._clients if c.idle]:
            client.close()
        if self._clients:
            try:
                await asyncio.wait_for(self._idle.wait(), limit_s)
            except TimeoutError:
                for client in list(self._clients):
                    client.drain_cut()
                await self._flushed()

    async def _flushed(self) -> None:
        """The last errors are on their way; a client that does not read is not waited for."""
        try:
            await asyncio.wait_for(self._idle.wait(), FLUSH_S)
        except TimeoutError:
            return

    async def close(self) -> None:
        """End everything that is left; each request has its end in the log before this returns."""
        self.draining = True
        for server in self._servers:
            server.close()
        await self.desks.close()
        for client in list(self._clients):
            client.abort()
        if self._clients:
            await self._flushed()
        self.pools.close()
        self.deadlines.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.timeouts.connect_s)


def _aliases(config: GatewayConfig) -> dict[str, str]:
    return {alias: spec.name for spec in config.models for alias in spec.aliases}
