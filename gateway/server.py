"""The data plane: what all exchanges of one process share. Shell; touched only by the event loop.

It owns the fleet, the line, the pools, the keyring and the counters, and lends them to exchanges. It knows no engine:
adapters are upkeep's.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random

from gateway import own_pages
from gateway.accounts import Account
from gateway.admission import PATIENCE_S, DrainRate, RetryBudget, WaitingLine
from gateway.api import LocalRoute, Refusal, unknown_model
from gateway.auth import Keyring
from gateway.books import Books
from gateway.config import BackendSpec, GatewayConfig
from gateway.deadlines import Deadlines
from gateway.desks import Desks
from gateway.dispatch import Dispatcher
from gateway.door import Door
from gateway.fleet import Fleet
from gateway.forward import Exchange
from gateway.homes import ResponseHomes
from gateway.hops import mark_of
from gateway.lodging import Lodging, Waiter
from gateway.logs import Logs
from gateway.placement import Placement
from gateway.pools import Pools
from gateway.relay.downstream import ClientConnection
from gateway.relay.memo import HeadStore
from gateway.relay.requests import RequestHead
from gateway.replica import Replica
from gateway.signals import RequestIds
from gateway.slo import ClassBook
from gateway.underway import Underway
from gateway.wall import Wall
from predictor.hosts import host_profiles


class _LineTick:
    """While somebody waits, each sweep offers places: a backend may have come up, or its overload may be over."""

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self.due_s = 0.0

    def on_due(self, now_s: float) -> None:
        self._plane.release_line()


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
        self.mark = mark_of(rng.getrandbits(48))
        self.wall = Wall(now)
        self.pools = Pools(config, now)
        self.keyring = Keyring(config.keys)
        self.dispatcher = Dispatcher(config.model, rng)
        self.line: WaitingLine[Placement] = WaitingLine(config.queue)
        self.desks = Desks(self, rng)
        self.lodging = Lodging(config, host_profiles)
        self.retry_budget = RetryBudget(config.retry)
        self.response_homes = ResponseHomes(config.limits.response_ids)
        self.books = Books(config, logs, loop.call_later)
        self.underway = Underway(self)
        self.lodging.offload.beside = self.underway.sent_before
        self.classes = ClassBook(config.classes)
        self.has_classes = bool(config.classes)
        self.request_heads: HeadStore[RequestHead] = HeadStore()
        self.door = Door(config, loop, logs, self._accept)
        self.recall: Callable[[Account], None] = _nothing  # upkeep's: its engine need not go on
        self.draining = False
        self.held_bytes = 0
        self.generation = 1
        self._rng = rng
        self._drain_rate = DrainRate()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tick = _LineTick(self)
        self._aliases = _aliases(config)

    def __repr__(self) -> str:
        return f"<DataPlane {self.connections} connections, {self.held} waiting, {self.fleet!r}>"

    # -- clients

    async def listen(self) -> None:
        """Open the data listener. Raises OSError."""
        await self.door.open(self.config.listen)
        self.deadlines.start()

    def _accept(self) -> ClientConnection:
        return ClientConnection(self, partial(Exchange, self))

    @property
    def port(self) -> int:
        """The data listener's."""
        return self.door.port

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self.door.clients)

    def joined(self, connection: ClientConnection) -> bool:
        """A client connected. False when there is no room."""
        return self.door.joined(connection)

    def left(self, connection: ClientConnection) -> None:
        """A client's connection is gone."""
        self.door.left(connection)

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
        if replica is not old:  # another engine: nothing that was found out of the old one holds for it
            self.desks.engines.forget(spec.name)
        self.pools.respecified(before, spec)
        return replica

    def remove_backend(self, name: str) -> None:
        """Forget a backend. Requests on it finish."""
        self.fleet.removed(name)
        self.desks.forget(name)
        self.books.forget(name)
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
            return own_pages.request_answer(name, self.underway.find(name, owner) or self.books.find(name, owner))
        return own_pages.answer(local, self.fleet, self._aliases, self.draining, self.mark)

    # -- what exchanges ask

    def charge_body(self, size: int, large: bool) -> bool:
        """Hold `size` more body bytes, if the total allows it. Large bodies leave an eighth of it to small ones."""
        if self.held_bytes + size > self.limits.bodies_bytes - (self.limits.bodies_bytes >> 3 if large else 0):
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
        self.books.over(account)
        if account.engine_id and account.end != "complete":
            self.recall(account)
        if account.attempts:
            if self.lodging.on:
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
        self.books.adopt(config)
        self._aliases = _aliases(config)
        self.pools.adopt(config)
        self.door.adopt(config)
        self.generation += 1

    async def drain(self, limit_s: float) -> None:
        """Stop accepting, let requests finish for `limit_s`, then give each that is left one error. Who was let in already,
        or holds a connection, may send one more request: its answer says that the connection ends."""
        self.draining = True
        await self.door.drain(limit_s)

    async def close(self) -> None:
        """End everything that is left; each request has its end in the log before this returns."""
        self.draining = True
        self.door.shut()
        await self.desks.close()
        await self.door.close()
        self.books.write()
        self.pools.close()
        self.deadlines.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self.timeouts.connect_s)


def _nothing(account: Account) -> None:
    """Nobody is to be told."""


def _aliases(config: GatewayConfig) -> dict[str, str]:
    return {alias: spec.name for spec in config.models for alias in spec.aliases}
