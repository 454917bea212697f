"""Periodic effects: probing backends, the wedge rule, finishing drains, learning idle limits. Shell.

One task per backend, owned here and cancelled with it. Results go into the fleet as events; what the fleet did with
them is logged. Probe failures are never request failures.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial

from backends.base import Adapter, Identity, ProbeFailedError
from backends.control_http import BackendControl, ControlSession
from backends.registry import ADAPTERS, adapter_for
from gateway.config import BackendSpec
from gateway.endless import endless
from gateway.kvfeeds import KvFeeds
from gateway.recalls import Recalls
from gateway.relay.pool import any_address
from gateway.replica import NEVER, Replica
from gateway.server import DataPlane

IDENTIFY_EVERY = 10
FOLLOW_S = 10.0
REPORT_S = 5.0  # an engine's /metrics cost it about 5 ms
HOUSEKEEPING_S = 0.1
TOKEN_SHARE, TOKEN_MAX_S = 0.25, 60.0  # of the time without a token: so long is one waited for


class Upkeep:
    """See the module's words."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._free = ControlSession(any_address)
        self._guarded = ControlSession(plane.pools.guarded_address)
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self.feeds = KvFeeds(plane)
        self._housekeeper: asyncio.Task[None] | None = None
        self._removals: dict[str, Callable[[], None]] = {}
        self._each_round: Callable[[float], None] | None = None
        self._recalls = Recalls(plane, self._recall)
        plane.recall = self._recalls.unwanted
        self._unlisted: dict[str, tuple[str, ...]] = {}  # by backend: models that it is to serve and does not list

    def start(self) -> None:
        """Begin with what is in the fleet."""
        self._housekeeper = asyncio.create_task(endless(self._keep_house, "housekeeping"))
        for replica in self._plane.fleet:
            self.watch(replica.name)

    def watch(self, name: str) -> None:
        """Probe a backend from now on (again from the beginning if it was watched)."""
        self.unwatch(name)
        replica = self._plane.fleet.get(name)
        if replica is not None:
            self.feeds.watch(replica)
            self._tell_of_twins(replica)
        probing = endless(partial(self._watch, name), "probing")
        self._watchers[name] = asyncio.create_task(probing, name=f"probe-{name}")

    def _tell_of_twins(self, replica: Replica) -> None:
        """Two names for one server are a slip, mostly: each is believed to have all of it."""
        url, models = replica.spec.url, set(replica.spec.models)
        for name in self._watchers:
            other = self._plane.fleet.get(name)
            if other is not None and other.spec.url == url and not (models and models.isdisjoint(other.spec.models or models)):
                self._plane.logs.event("warning", "one server under two names", names=(name, replica.name), url=url)

    def unwatch(self, name: str) -> None:
        """Stop probing it."""
        self.feeds.unwatch(name)
        self._unlisted.pop(name, None)
        task = self._watchers.pop(name, None)
        if task is not None:
            task.cancel()

    def when_drained(self, name: str, then: Callable[[], None]) -> None:
        """Call `then` once the draining backend has nothing in flight, or its drain limit is over."""
        self._removals[name] = then

    def leaving(self, name: str) -> bool:
        """Whether something waits for the end of that backend's drain."""
        return name in self._removals

    def stay(self, name: str) -> None:
        """Nothing waits for it any more."""
        self._removals.pop(name, None)

    def each_round(self, call: Callable[[float], None]) -> None:
        """Call this with the time in every round of housekeeping."""
        self._each_round = call

    def control(self, spec: BackendSpec, timeout_s: float) -> BackendControl:
        """Control requests to one backend, under its address rule."""
        session = self._free if spec.declared else self._guarded
        return BackendControl(session, spec.url, spec.api_key, timeout_s)

    async def close(self) -> None:
        """Stop all of it."""
        tasks = [*self._watchers.values(), *([self._housekeeper] if self._housekeeper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._recalls.close()
        await self.feeds.close()
        await self._free.close()
        await self._guarded.close()

    async def _recall(self, backend: str, engine_id: str) -> None:
        replica = self._plane.fleet.get(backend)
        if replica is not None and replica.identity.recall:
            http = self.control(replica.spec, self._plane.config.health.timeout_s)
            await ADAPTERS[replica.identity.engine].recall(http, engine_id)

    # -- probing

    async def _watch(self, name: str) -> None:
        rounds = 0
        reported_s = followed_s = float("-inf")
        asked_s = NEVER  # since when a token is asked for
        adapter: Adapter | None = None
        while True:
            replica = self._plane.fleet.get(name)
            if replica is None:
                return
            health = self._plane.config.health
            if replica.state in ("asleep", "swapping"):
                await asyncio.sleep(health.interval_s)  # who moves it looks after it
                continue
            if self._plane.now() - followed_s >= FOLLOW_S:
                followed_s = self._plane.now()
                await self._plane.pools.of(name).follow(health.timeout_s)
            if not replica.wedged:
                asked_s = NEVER
            http = self.control(replica.spec, health.timeout_s)
            try:
                if adapter is None or rounds % IDENTIFY_EVERY == 0:
                    adapter = await adapter_for(replica.spec.engine, http)
                    found = await adapter.identify(http)
                    if found.instance == self._plane.mark.decode():
                        raise ProbeFailedError("it is this gateway itself")
                    identity = self._named(replica, found.completed(replica.identity) if rounds else found)
                else:
                    await adapter.check(http)
                    identity = replica.identity
                if replica.wedged and not self._plane.fleet.spoke(replica):
                    asked_s = min(asked_s, self._plane.now())
                    await self._try_revival(replica, adapter, self._plane.now() - asked_s)
                elif self._plane.fleet.doubted(replica):
                    await self._settle_doubt(replica, adapter)
                self._plane.fleet.probed(replica, identity, self._plane.now())
                self._plane.pools.of(name).marked(self._plane.mark if identity.instance else b"")
                rounds += 1
                if self._plane.now() - reported_s >= REPORT_S:
                    reported_s = self._plane.now()
                    await self._take_report(replica, adapter, http)
            except ProbeFailedError as error:
                rounds = 0
                self._plane.fleet.probe_failed(replica, str(error), self._plane.now())
            await asyncio.sleep(health.interval_s)

    async def _take_report(self, replica: Replica, adapter: Adapter, http: BackendControl) -> None:
        """What the engine says of itself, for predictions; that it says nothing is no failure."""
        try:
            report = await adapter.report(http)
        except ProbeFailedError:
            report = None
        if self._plane.fleet.get(replica.name) is not replica:
            return
        if report is None or report.requests < 0:
            self._plane.desks.engines.unreported(replica)
        if report is not None:
            self._plane.desks.engines.reported(replica, report, self._plane.now())

    def _named(self, replica: Replica, found: Identity) -> Identity:
        """Declared model names win over what the server lists; those that it does not list are told once."""
        declared, listed = replica.spec.models, found.models
        if not declared:
            return found
        unlisted = tuple(model for model in declared if listed and not replica.moves and model not in listed)
        if unlisted != self._unlisted.get(replica.name, ()):
            self._unlisted[replica.name] = unlisted
            if unlisted:
                self._plane.logs.event("warning", "models not listed", name=replica.name, models=unlisted, listed=listed[:20])
        return dataclasses.replace(found, models=declared)

    async def _try_revival(self, replica: Replica, adapter: Adapter, silent_s: float) -> None:
        """Health is fine but requests got nothing: only a token proves that it works again. It is waited for the longer the
        longer none came, since some engines need seconds for one."""
        if await self._generates(replica, adapter, min(TOKEN_MAX_S, TOKEN_SHARE * silent_s)):
            self._plane.fleet.revived(replica, self._plane.now())

    async def _settle_doubt(self, replica: Replica, adapter: Adapter) -> None:
        """Health is fine, but one request fails there again and again: a token tells that the request is the cause, and 5xx
        that it is not. A busy engine gives neither in time: that says nothing."""
        try:
            works = await self._generates(replica, adapter)
        except ProbeFailedError:
            return
        if works:
            self._plane.fleet.proven(replica)
        elif self._plane.fleet.doubted(replica):  # still: nobody was answered meanwhile
            self._plane.fleet.unproven(replica)

    async def _generates(self, replica: Replica, adapter: Adapter, within_s: float = 1.0) -> bool:
        model = replica.models[0] if replica.models else ""
        limit_s = max(1.0, within_s, self._plane.config.health.timeout_s)
        return await adapter.generates(self.control(replica.spec, limit_s), model)

    # -- housekeeping

    async def _keep_house(self) -> None:
        while True:
            now_s = self._plane.now()
            for pool in self._plane.pools:
                pool.sweep(now_s)
            self._plane.fleet.forget(now_s)
            self._find_wedged(now_s)
            self._finish_drains(now_s)
            if self._each_round is not None:
                self._each_round(now_s)
            for problem in self._plane.desks.engines.take_problems():
                self._plane.logs.event("warning", "profile", reason=problem)
            for move in self._plane.fleet.transitions():
                replica = self._plane.fleet.get(move.name)
                if move.after == "down" and replica is not None and replica.mirror is not None:
                    replica.mirror.restarted()  # what comes back has probably lost its cache
                level = "warning" if move.after == "down" else "info"
                self._plane.logs.event(
                    level, "backend", name=move.name, before=move.before, after=move.after, reason=move.reason
                )
            await asyncio.sleep(HOUSEKEEPING_S)

    def _find_wedged(self, now_s: float) -> None:
        limit_s = self._plane.config.health.wedge_s
        for replica in self._plane.fleet:
            unheard = replica.streams > replica.stalled and now_s - replica.last_byte_s > limit_s
            if replica.state == "ready" and unheard:
                self._plane.fleet.wedged(replica)

    def _finish_drains(self, now_s: float) -> None:
        for name in list(self._removals):
            replica = self._plane.fleet.get(name)
            over = replica is None or replica.in_flight == 0 or now_s >= (replica.drain_until_s or 0.0)
            if over:
                self._removals.pop(name)()
