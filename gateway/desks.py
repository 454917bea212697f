"""The desks of a process, one for each model whose policy predicts, and what they need: mirrors, lengths, probes, time.

Shell around pure decisions: it tells desks what happened, carries out their actions at once and in order, and calls
them when they are due. Nothing here may fail or delay a request: what cannot be predicted goes down the ladder.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from gateway.accounts import Account
from gateway.desk import Action, Desk
from gateway.engines import Engines
from gateway.jobs import Dispatch, Job
from gateway.policies.table import COUNTING
from gateway.probing import ProbeClient
from gateway.prompt import prefix_hashes, prompt_tokens
from gateway.relay.splice import BodyFields
from gateway.replica import Replica
from gateway.tagging import Tagging
from predictor.lengths import capped
from predictor.request import LengthEstimate
from predictor.snapshot import ProbeReply

if TYPE_CHECKING:
    from gateway.placement import Placement
    from gateway.server import DataPlane

MODELS_MAX = 4096
NEVER = float("inf")
TICK_MIN_S = 0.001
TPOT_MU = 0.03  # ModelSpec.mu where a class is promised the pace of its answers and the model says nothing of it
_NOT_GENERATING = frozenset(("count_tokens",))


class Station:
    """A desk, the probes it asks with, and the timer for its next due time."""

    __slots__ = ("client", "desk", "due_s", "model", "timer", "views")

    def __init__(self, model: str, desk: Desk) -> None:
        self.model = model
        self.desk = desk
        self.client: ProbeClient | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.due_s = NEVER
        self.views: Sequence[Replica] = ()


class Desks:
    """See the module's words. Touched only by the event loop."""

    def __init__(self, plane: "DataPlane", rng: Random) -> None:
        self.engines = Engines()
        self.tagging = Tagging(plane)
        self.hit_tokens = 0
        self.prompt_tokens = 0
        self._plane = plane
        self._rng = rng
        self._stations: dict[str, Station] = {}
        self._retired: list[Station] = []  # of an earlier configuration, while somebody waits there
        self._without: set[str] = set()
        self._version = -1  # of the fleet, that `_without` holds for
        self._placements: dict[str, Placement] = {}
        self._count = 0
        self._notes_lost = 0  # of clients that are no more

    def __iter__(self) -> Iterator[tuple[str, Desk]]:
        return iter([(station.model, station.desk) for station in (*self._stations.values(), *self._retired)])

    @property
    def waiting(self) -> int:
        """Jobs that no replica has yet."""
        return sum(desk.waiting for _, desk in self)

    @property
    def held(self) -> int:
        """Jobs that wait for a replica to open. Asked for each request that waits for a sidecar, too."""
        count = 0
        for station in self._stations.values():
            count += station.desk.held
        for station in self._retired:
            count += station.desk.held
        return count

    @property
    def notes_lost(self) -> int:
        """Reservations and corrections that no sidecar could be told."""
        clients = [station.client for station in (*self._stations.values(), *self._retired)]
        return self._notes_lost + sum(client.notes_lost for client in clients if client is not None)

    def placements(self) -> Iterator["Placement"]:
        """Of all jobs, those in engines included."""
        return iter(self._placements.values())

    def waiting_for(self, model: str) -> int:
        """... of one model."""
        return sum(desk.waiting for name, desk in self if name == model)

    # -- jobs

    def station(self, model: str, route: str) -> Station | None:
        """Where requests of that route for that model are placed; None if they need no desk."""
        if route in _NOT_GENERATING:
            return None
        version = self._plane.fleet.version
        if version != self._version:
            self._version = version
            self._without.clear()
        if model in self._without:
            return None
        found = self._stations.get(model) or self._opened(model)
        if found is None:
            if len(self._without) >= MODELS_MAX:
                self._without.clear()
            self._without.add(model)
        return found

    def _opened(self, model: str) -> Station | None:
        config = self._plane.config
        rule = config.model(model)
        if rule.policy == "auto":
            served = sum([model in replica.models for replica in self._plane.fleet])
            if served < 2 and not config.classes:
                return None  # nobody to choose among, and no promise to wait for
            rule = replace(rule, policy="plan")
        if rule.policy in COUNTING or len(self._stations) >= MODELS_MAX:
            return None
        if not config.queue.size:
            rule = replace(rule, binding="early")  # nobody may wait
        if not rule.mu and any(each.tpot_ms for each in config.classes):
            rule = replace(rule, mu=TPOT_MU)
        station = self._stations[model] = Station(model, Desk(rule, self._rng, reserves=True))
        return station

    def job(self, model: str, session: str, account: Account, body: bytes, fields: BodyFields) -> Job:
        """A request as a desk sees it."""
        self._count += 1
        lengths = self.tagging.quick(model, account.route).tag.estimate
        promise = account.promise
        return Job(
            str(self._count),
            model,
            prompt_tokens(len(body)),
            capped(lengths, fields.max_tokens) if 0 < fields.max_tokens < lengths.q90 else lengths,
            account.accepted_s,
            prefix_hashes(body, fields.parts),
            session,
            request_id=account.request_id,
            streams=fields.stream,
            deadline_s=account.deadline_s,
            class_name=promise.class_name if promise is not None else "",
            tenant=account.tenant or (account.key if account.owner else ""),
            tenant_weight=account.weight,
            tpot_s=promise.tpot_s if promise is not None else NEVER,
        )

    def join(self, placement: "Placement", station: Station, job: Job, views: Sequence[Replica], avoid: frozenset[str]) -> None:
        """The job arrives. It is at a replica afterwards, being probed for, or in the line."""
        self._placements[job.id] = placement
        self._sync(station, views)
        self._carry_out(station, station.desk.arrived(job, self._plane.now(), avoid))

    def insist(self, station: Station, job: Job) -> None:
        """The job has waited for as long as it may: now or never."""
        self._refresh(station)
        self._carry_out(station, station.desk.insist(job.id, self._plane.now()))

    def revise(self, station: Station, job: Job, lengths: LengthEstimate) -> bool:
        """It turned out how long the answer of a job may be. False when it is in no line or engine where that counts."""
        self._refresh(station)
        placement = self._placements.get(job.id)
        sent_to = placement.replica if placement is not None else None
        actions = station.desk.revise(job.id, lengths, self._plane.now())
        if actions is not None and sent_to is not None and sent_to.sidecar and station.client is not None:
            station.client.correct(sent_to.name, job)
        if actions:
            self._carry_out(station, actions)
        return actions is not None

    def first_token(self, station: Station, job: Job) -> None:
        """The job's first token came."""
        if station.desk.waiting:
            self._refresh(station)
        if self.engines.views:
            self.engines.computed(job)
        actions = station.desk.first_token(job.id, self._plane.now())
        if self.engines.fresh:
            self.engines.teach()
        if actions or station.desk.waiting:
            self._carry_out(station, actions)

    def ended(self, station: Station, job: Job, complete: bool, account: Account | None = None) -> None:
        """The job's answer is complete, or the job is gone. `account`: of one that was sent."""
        self._placements.pop(job.id, None)
        if self.engines.views:
            self.engines.ended(job)
        desk, now_s = station.desk, self._plane.now()
        if desk.waiting:
            self._refresh(station)
        tokens, begun = (-1, True) if account is None else (account.produced_tokens, account.begun)
        actions = desk.finished(job.id, tokens, now_s) if complete else desk.lost(job.id, now_s, tokens, begun)
        if self.engines.fresh:
            self.engines.teach()
        if actions or desk.waiting or station.timer is not None:
            self._carry_out(station, actions)

    # -- replicas and time

    def tick(self) -> None:
        """Replicas may have come, gone or recovered."""
        for station in [*self._stations.values(), *self._retired]:
            if station.desk.waiting:
                self._refresh(station)
                self._carry_out(station, station.desk.tick(self._plane.now()))
                if not station.views:
                    for placement in [one for one in self._placements.values() if one.station is station]:
                        placement.give_up_without_hope()
        self._retired = [station for station in self._retired if station.desk.waiting]

    def forget(self, name: str) -> None:
        """A backend was removed."""
        self.engines.forget(name)
        for station in (*self._stations.values(), *self._retired):
            station.desk.removed(name)
            if station.client is not None:
                station.client.removed(name)

    def adopt(self) -> None:
        """The configuration changed: new jobs meet new rules, those who wait leave by the old ones."""
        self.tagging.adopt()
        self._retired += [station for station in self._stations.values() if station.desk.waiting]
        for station in self._stations.values():
            if station.client is not None and not station.desk.waiting:
                self._notes_lost += station.client.notes_lost
                self._plane.spawn(station.client.close())
        self._stations = {}
        self._without.clear()

    async def close(self) -> None:
        """Give up timers, probes and the tagger."""
        self.tagging.close()
        for station in [*self._stations.values(), *self._retired]:
            self._disarm(station)
            if station.client is not None:
                await station.client.close()

    def _refresh(self, station: Station) -> None:
        self._sync(station, self._plane.fleet.routable(station.model, "generate"))

    def _sync(self, station: Station, views: Sequence[Replica]) -> None:
        if views is station.views:
            return
        station.views = views
        for view in views:
            self.engines.mirror(view)
            view.sidecar = bool(view.spec.sidecar)
            if view.sidecar:
                self._probe_client(station, view)
        station.desk.sync(views)

    def _probe_client(self, station: Station, view: Replica) -> None:
        if station.client is None:
            station.client = ProbeClient(
                station.desk.rule.probe_s, self._plane.now, self._plane.wall.unix_ms, self._plane.pools.guarded_address
            )
        station.client.added(view.name, view.spec.sidecar, view.spec.sidecar_token, guarded=not view.spec.declared)

    # -- actions

    def _carry_out(self, station: Station, actions: Sequence[Action]) -> None:
        fleet = self._plane.fleet
        for action in actions:
            placement = self._placements[action.job.id]
            if isinstance(action, Dispatch):
                replica = fleet.get(action.name)
                assert replica is not None, action.name
                self.prompt_tokens += action.job.prompt_tokens
                self.hit_tokens += action.hit_tokens
                if self.engines.views:
                    self.engines.sent(action.name, action.job)
                if replica.sidecar and station.client is not None:
                    station.client.reserve(action.name, action.job, action.tier)
                placement.sent_by_desk(replica, action)
            else:
                assert station.client is not None
                placement.account.probe_s -= self._plane.now()
                station.client.ask(action.names, action.job, partial(self._probed, station, action.job), action.tier)
        if station.desk.waiting or station.timer is not None:
            self._arm(station)

    def _probed(self, station: Station, job: Job, replies: Mapping[str, ProbeReply | None]) -> None:
        placement = self._placements.get(job.id)
        if placement is not None:
            placement.account.probe_s += self._plane.now()
            self._refresh(station)
            self._carry_out(station, station.desk.probed(job.id, replies, self._plane.now()))

    def _arm(self, station: Station) -> None:
        due_s = station.desk.due_s if station.desk.waiting else NEVER
        if due_s >= station.due_s - TICK_MIN_S and station.timer is not None and due_s != NEVER:
            return  # called early enough anyway
        self._disarm(station)
        if due_s != NEVER:
            station.due_s = due_s
            wait_s = max(TICK_MIN_S, due_s - self._plane.now())
            station.timer = self._plane.loop.call_later(wait_s, self._due, station)

    @staticmethod
    def _disarm(station: Station) -> None:
        if station.timer is not None:
            station.timer.cancel()
            station.timer = None
        station.due_s = NEVER

    def _due(self, station: Station) -> None:
        station.timer, station.due_s = None, NEVER
        self._refresh(station)
        self._carry_out(station, station.desk.tick(self._plane.now()))
