"""Finding a replica and a connection for one request; a second one only if the first attempt provably did not run.

Shell by its connecting; the choice is dispatch's. It counts the request as in flight at a replica from the moment of
the choice, before any await, and lets go exactly once. Retry boundary: no connection came about, or the
backend's documented not-started answer (429, 503, a gateway's 508), within the retry budget and the request's remaining wait.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from backends.base import Kind
from gateway import refusals
from gateway.accounts import Account
from gateway.answer import Answer
from gateway.api import Refusal
from gateway.desks import Station
from gateway.dispatch import Ask, Hold
from gateway.fitting import needed_tokens, too_small
from gateway.fleet import Failure
from gateway.jobs import Dispatch, Job
from gateway.lodging import Waiter
from gateway.promises import in_vain
from gateway.prospects import check_hope, to_avoid
from gateway.relay.pool import BackendPool, ConnectFailedError
from gateway.relay.splice import BodyFields
from gateway.relay.upstream import UpstreamConnection
from gateway.replica import Replica
from gateway.tagging import Prompt, Watched
from predictor.request import LengthEstimate

if TYPE_CHECKING:
    from gateway.server import DataPlane

NEVER = float("inf")
NOWHERE = (-1, 1, 0.0)
NOT_STARTED = (429, 503, 508)
NONE: frozenset[str] = frozenset()  # one for all: a default is made anew for each instance where modules are compiled


class Seeker(Protocol):
    """The request that looks for a place."""

    account: Account

    def on_waiting(self, due_s: float) -> None: ...
    def on_connecting(self) -> None: ...
    def on_placed(self, pool: BackendPool, connection: UpstreamConnection) -> None: ...
    def refuse(self, refusal: Refusal) -> None: ...


class Placement:
    """See the module's words. `replica` is where the request counts as in flight now."""

    replica: Replica | None = None
    admit_now = False  # refuse it rather than let it wait
    station: Station | None = None
    watched: Watched | None = None
    joins = False
    _job: Job | None = None
    _counted = False  # where the request is, a desk counts it
    _max_tokens = -1
    _pool: BackendPool | None = None
    _over = False
    _waiting = False
    _stalled = False
    _tried: frozenset[str] = NONE
    _last_refusal: Refusal | None = None

    def __init__(self, plane: "DataPlane", seeker: Seeker, ask: Ask | None, kind: Kind, stream: bool, due_s: float) -> None:
        self._plane = plane
        self._seeker = seeker
        self._ask = ask
        self._kind, self._stream = kind, stream
        self._due_s = due_s
        plane.underway.begun(seeker.account.request_id, self)

    @property
    def account(self) -> Account:
        """The request's."""
        return self._seeker.account

    def whereabouts(self, now_s: float) -> tuple[str, tuple[int, int, float]]:
        """Where the request is (tag, queue, probe, connect, engine), and its standing in the line (see Line)."""
        station, job = self.station, self._job
        if self.replica is not None:
            return "engine" if self.account.begun else "connect", NOWHERE
        if station is None or job is None:
            return "queue", NOWHERE
        stage = "probe" if station.desk.asks(job.id) else "queue" if self._waiting else "tag"
        return stage, station.desk.line.standing(job.id, now_s)

    def avoid_droppers(self, body_hash: int) -> None:
        """Not to backends that this body made drop a connection. Raises Refusal when it broke too many."""
        assert self._ask is not None
        self._tried = to_avoid(self._plane, self._ask.model, self._kind, body_hash)

    def begin(self, body: bytes, fields: BodyFields) -> None:
        """Look for a place for the first time. Raises Refusal."""
        plane, ask, account = self._plane, self._ask, self._seeker.account
        assert ask is not None
        if plane.lodging.on:
            plane.lodging.arrived(ask.model, account.accepted_s, account.deadline_s)
        if plane.fleet.uneven:
            tokens = needed_tokens(body, fields.max_tokens)
            self._tried |= too_small(plane.fleet.routable(ask.model, self._kind), tokens)
        if self._kind == "generate":
            station = self.station = plane.desks.station(ask.model, account.route)
            if station is not None:
                self._begin_at_desk(station, body, fields)
                return
        self.start()

    def _begin_at_desk(self, station: Station, body: bytes, fields: BodyFields) -> None:
        plane, ask, account = self._plane, self._ask, self._seeker.account
        assert ask is not None
        self._max_tokens = fields.max_tokens
        job = self._job = plane.desks.job(ask.model, ask.session, account, body, fields)
        if account.promise is not None and account.promise.e2e_s < NEVER:
            decode_s = station.desk.decode_s(job.lengths.q50)
            job = self._job = replace(job, deadline_s=account.first_token_due_s(decode_s))
        tagging, views = plane.desks.tagging, plane.fleet.routable(ask.model, self._kind)
        self.watched = tagging.quick(ask.model, account.route)
        if not tagging.on:
            self.start()
            return
        prompt = Prompt(body, fields.parts, fields.max_tokens, self._due_s - account.accepted_s)
        lengths = tagging.before(self, station.desk.rule, job, prompt, views)
        if lengths is None:
            self._seeker.on_waiting(self._due_s)  # until it is tagged
            return
        if lengths is not job.lengths:
            self._job = replace(job, lengths=lengths)
        self.start()
        tagging.after(self, job, prompt, waiting=self._waiting)

    def tagged(self, lengths: LengthEstimate, plain: LengthEstimate | None) -> None:
        """How long the answer may be, for one that waited to know."""
        if self._over or self._job is None:
            return
        account = self._seeker.account
        account.tag_s = self._plane.now() - account.accepted_s
        self._job = replace(self._job, lengths=lengths, plain=plain)
        try:
            self.start()
        except Refusal as refusal:
            self._seeker.refuse(refusal)

    def revised(self, lengths: LengthEstimate) -> bool:
        """... for one that may be in the line, or in an engine. False when it is in neither."""
        if not (self._waiting or self._counted) or self._job is None or self.station is None:
            return False
        self._job = replace(self._job, lengths=lengths)
        return self._plane.desks.revise(self.station, self._job, lengths)

    def start(self) -> None:
        """Go to a replica, or into the line. Raises Refusal."""
        plane, ask = self._plane, self._ask
        assert ask is not None
        if self.station is not None and self._job is not None:
            self._start_at_desk(ask, self.station, self._job)
            return
        if self._try():
            return
        if self._last_refusal is not None:
            raise self._last_refusal
        if self.admit_now:
            raise refusals.would_wait(plane.drain_wait_s(ask.model))
        plane.enqueue(ask.model, self, self._seeker.account.deadline_s)
        self._waiting = True
        self._seeker.on_waiting(self._due_s)

    def _start_at_desk(self, ask: Ask, station: Station, job: Job) -> None:
        plane, tried = self._plane, self._tried
        views = plane.fleet.routable(ask.model, self._kind)
        if self._last_refusal is None:
            if not views:
                check_hope(plane, ask.model, self._kind, self._due_s)
        elif not any(replica.name not in tried for replica in views):
            raise self._last_refusal
        plane.desks.join(self, station, job, views, tried)
        if self.replica is None and not self._over:
            try:
                plane.hold(ask.model)
                if self.admit_now and not station.desk.asks(job.id):
                    raise refusals.would_wait(plane.drain_wait_s(ask.model))
            except Refusal:
                plane.desks.ended(station, job, complete=False)
                raise
            self._waiting = True
            self._seeker.on_waiting(self._due_s if not self.admit_now else plane.now() + station.desk.rule.probe_s)

    def waiter(self) -> Waiter | None:
        """Itself as one who waits; None when it does not, or not for a model."""
        if not self._waiting or self._ask is None:
            return None
        account = self._seeker.account
        return Waiter(self._ask.model, account.accepted_s, account.deadline_s)

    def give_up_without_hope(self) -> None:
        """For one that waits at a desk where no replica is left."""
        try:
            if self._waiting and self._ask is not None:
                check_hope(self._plane, self._ask.model, self._kind, self._due_s)
        except Refusal as refusal:
            self._seeker.refuse(refusal)

    def insist(self) -> bool:
        """The longest wait is over: to any replica that is open. False when there is none."""
        promise = self._seeker.account.promise
        if promise is not None and promise.strict and self._plane.now() >= self._seeker.account.deadline_s:
            return False
        if self._waiting and self.station is not None and self._job is not None:
            self._plane.desks.insist(self.station, self._job)
        return self.replica is not None

    def sent_by_desk(self, replica: Replica, dispatch: Dispatch) -> None:
        """The desk found a place, and counts the request there."""
        account = self._seeker.account
        account.predicted_s, account.hit_tokens = dispatch.estimate_s, dispatch.hit_tokens
        self._counted = True
        self._take(replica)
        if account.promise is not None or replica.scheduling:
            account.placed(dispatch, replica.mirror)
            if in_vain(account, replica, dispatch.estimate_s):
                self._plane.loop.call_soon(self._seeker.refuse, refusals.out_of_budget(dispatch.estimate_s))
                return
        self._bring(replica)

    def answering(self, answer: Answer) -> None:
        """The backend's answer has begun."""
        if self._counted and answer.counts_tokens and self.station is not None and self._job is not None:
            self.station.desk.started(self._job.id, answer)

    def first_token(self) -> None:
        """The first byte of the answer's body came: on streams, its first token."""
        if self._counted and self._stream and self.station is not None and self._job is not None:
            self._plane.desks.first_token(self.station, self._job)

    def _try(self) -> bool:
        plane, ask = self._plane, self._ask
        assert ask is not None
        chosen = plane.dispatcher.choose(ask, plane.fleet.routable(ask.model, self._kind), plane.now(), self._tried)
        if not isinstance(chosen, Hold):
            self.go(chosen)
            return True
        if self._last_refusal is None and chosen.reason == "none ready":
            check_hope(plane, ask.model, self._kind, self._due_s)
        return False

    def offered(self) -> bool:
        """The head of the line is offered a place. True when it has left the line."""
        try:
            return self._over or self._try()
        except Refusal as refusal:
            self._seeker.refuse(refusal)
            return True

    def go(self, replica: Replica) -> None:
        """Count the request there, and bring it a connection."""
        self._take(replica)
        self._bring(replica)

    def _take(self, replica: Replica) -> None:
        plane, account = self._plane, self._seeker.account
        now_s = account.dispatched_s = plane.now()
        if plane.lodging.on:
            account.swap_s = plane.lodging.waited_s(account.model, account.accepted_s, now_s)
        account.backend = replica.spec.name
        account.attempts += 1
        self.replica = replica
        self._waiting = False
        if self._counted:
            plane.fleet.carries(replica, self._stream)
        else:
            plane.fleet.dispatched(replica, now_s, self._stream)
        plane.retry_budget.request()

    def _bring(self, replica: Replica) -> None:
        plane = self._plane
        pool = self._pool = plane.pools.of(replica.spec.name)
        connection = pool.take(plane.now())
        if connection is not None:
            self._seeker.on_placed(pool, connection)
            return
        self._seeker.on_connecting()
        plane.spawn(self._connect(replica, pool))

    async def _connect(self, replica: Replica, pool: BackendPool) -> None:
        plane = self._plane
        try:
            connection = await pool.connect(plane.timeouts.connect_s)
        except ConnectFailedError as error:
            kind: Failure = "timeout" if error.timed_out else "connect"
            if error.ours:
                plane.logs.event("error", "cannot connect", reason=str(error))
            else:
                plane.fleet.failed(replica, kind, str(error), None, plane.now(), self._seeker.account.dispatched_s)
            if not self._over:
                self._not_run(refusals.connect_failed())
            return
        if self._over:
            pool.returned(connection)
        else:
            self._seeker.on_placed(pool, connection)

    def repeat(self, method: bytes, connection: UpstreamConnection) -> bool:
        """After a connection broke without an answer: a GET on one that had been kept idle goes once more, to the same
        replica on a fresh one. That the peer closed it just then says nothing about the peer."""
        pool, replica = self._pool, self.replica
        if method != b"GET" or connection.used < 2 or pool is None or replica is None:
            return False
        self._seeker.account.attempts += 1
        self._seeker.on_connecting()
        self._plane.spawn(self._connect(replica, pool))
        return True

    def retry_elsewhere(self) -> bool:
        """After a documented not-started answer: one other backend is asked, if one is open and the budget has it. Its
        place is taken at once, so that the answer in hand is given up only for a real second attempt; that begins on a
        clean stack, not inside the parser's callback."""
        plane, ask, replica = self._plane, self._ask, self.replica
        if ask is None or replica is None or self._seeker.account.attempts >= plane.config.retry.attempts:
            return False
        now_s = plane.now()
        tried = self._tried | {replica.name}
        chosen = plane.dispatcher.choose(ask, plane.fleet.routable(ask.model, self._kind), now_s, tried)
        if now_s >= self._due_s or isinstance(chosen, Hold) or _in_vain(self._seeker.account, now_s):
            return False
        if not plane.retry_budget.spend():
            return False
        self._seeker.account.attempted()
        self._leave()
        self.station = None  # its second place is found without the desk
        self._tried = tried
        self._take(chosen)
        plane.loop.call_soon(self._retry, chosen)
        return True

    def _retry(self, replica: Replica) -> None:
        if not self._over:
            self._bring(replica)

    def _not_run(self, refusal: Refusal) -> None:
        """The attempt provably did not run: try another replica, else refuse."""
        replica = self.replica
        assert replica is not None
        self._seeker.account.attempted()
        self._leave()
        self._last_refusal = refusal
        self._tried |= {replica.name}
        try:
            if self._ask is None or self._plane.now() >= self._due_s:
                raise refusal
            self.start()
        except Refusal as final:
            self._seeker.refuse(final)

    def stalled(self, stalled: bool) -> None:
        """The client of a stream does not read, or reads again: meanwhile the backend's silence is not its own."""
        if self._stream and self.replica is not None and stalled != self._stalled:
            self._stalled = stalled
            self._plane.fleet.stalled(self.replica, stalled, self._plane.now())

    def _leave(self, complete: bool = False) -> None:
        self.stalled(False)
        replica, self.replica = self.replica, None
        if replica is None:
            return
        if not self._counted:
            self._plane.fleet.released(replica, self._stream, self._seeker.account.dispatched_s)
            return
        assert self.station is not None
        assert self._job is not None
        self._counted = False
        self._plane.fleet.carried(replica, self._stream, self._seeker.account.dispatched_s)
        self._plane.desks.ended(self.station, self._job, complete, self._seeker.account)

    def stop(self, complete: bool) -> None:
        """The request is over: out of the line, out of the replica's count."""
        plane, account = self._plane, self._seeker.account
        self._over = True
        plane.underway.over(account.request_id, self)
        if self._waiting:
            assert self._ask is not None
            self._waiting = False
            if self.station is not None and self._job is not None:
                plane.desks.ended(self.station, self._job, complete=False)
            else:
                plane.line.remove(self._ask.model, self)
        if self._counted and self.watched is not None:
            plane.desks.tagging.over(self.watched, account, complete, self._max_tokens)
        self._leave(complete)


def _in_vain(account: Account, now_s: float) -> bool:
    """Whether a request that is strict cannot be in time any more if it is begun now, by what computing it takes alone."""
    promise = account.promise
    return promise is not None and promise.strict and now_s + max(0.0, account.work_s) > account.deadline_s
