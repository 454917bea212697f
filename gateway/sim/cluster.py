"""A whole fleet in simulated time: a heap of instants around engines (the truth) and desks (the decisions).

Nothing here decides: arrivals go to a desk, its actions are carried out, what engines do is told back, each after the
delays of the scenario. Ties are broken by a counter. Pure: one run is a function of scenario, policy, requests, seed.
"""

import heapq
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Row
from random import Random
from typing import Any

from gateway.desk import Action
from gateway.jobs import Dispatch, Job, Probe
from gateway.sim.decoders import Sequence
from gateway.sim.front import NEVER_S, Front
from gateway.sim.migration import MovableEngine, Move, plan_move
from gateway.sim.outcome import Outcome, Sent, Track
from gateway.sim.probing import Sidecars
from gateway.sim.scenario import MODEL, FailureSpec, PolicySpec, Scenario
from gateway.sim.stalls import Clock
from gateway.sim.truth import Engine, Relayed, StepSight, make_engine
from gateway.sim.workload import SimRequest
from predictor.request import Event, Finished, FirstToken, LengthEstimate, Preempted, Request
from predictor.seats import Progress

PROBES_REMEMBERED = 200
TICK_MIN_S = 0.001  # as gateway.desks
SWEEP_S = 0.05  # as gateway.deadlines: how often whoever waits is looked at in any case


class Cluster:
    """One run. `progress` is called now and then with the share of requests that ended. `relayed` makes of a request's
    progress in its engine what a gateway sees of it."""

    relayed: Callable[[Progress], Progress] = Relayed

    def __init__(
        self,
        scenario: Scenario,
        policy: PolicySpec,
        requests: Row[SimRequest],
        seed: int,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.clock = Clock()
        self.engines: list[Engine] = []
        self._up: list[bool] = []
        self._scenario = scenario
        self._policy = policy
        self._requests = requests
        self._seed = seed
        self._report = progress
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._pushed = 0
        self._tracks: dict[str, Track] = {}
        self._done: list[Track] = []
        self._sent: list[Sent] = []
        self._over = 0
        self._lost = 0
        self._lives = 0
        self._preemptions_gone = 0
        self.migrations = 0
        self._probed: deque[int] = deque(maxlen=PROBES_REMEMBERED)
        self._kinds = [kind for kind in scenario.replicas for _ in range(kind.count)]
        self._prefixes = any(request.prefix for request in requests)
        self._names = [f"r{i}" for i in range(len(self._kinds))]
        self._index = {name: i for i, name in enumerate(self._names)}
        for i in range(len(self._kinds)):
            self.engines.append(self._engine(i))
            self._up.append(True)
        self._movers = [engine for engine in self.engines if isinstance(engine, MovableEngine)]
        self.sidecars = Sidecars(scenario, policy, self.engines, self.clock, Random(f"probes {seed}"))
        self.fronts = [self._front(g) for g in range(scenario.view.gateways)]

    # ---- making ----

    def _engine(self, index: int) -> Engine:
        rng = Random(f"engine {self._seed} {index} {self._lives}")
        movable = self._scenario.migration is not None
        truth = self._scenario.truth
        return make_engine(self._kinds[index], truth, self.clock, rng, prefixes=self._prefixes, movable=movable)

    def _front(self, gateway: int) -> Front:
        front = Front(self._policy, self._scenario.view, Random(f"gateway {self._seed} {gateway}"))
        for i, name in enumerate(self._names):
            front.meets(name, self._kinds[i], StepSight(self.engines[i]))
        return front

    # ---- running ----

    def run(self) -> Outcome:
        """Until every request has ended."""
        for request in self._requests:
            self._at(request.arrival_s, self._arrives, request)
        for failure in self._scenario.failures:
            self._at(failure.at_s, self._fails, failure)
        if self.sidecars.period_s:
            for i in range(len(self.engines)):
                self._at(self.sidecars.offset_s(i), self._publishes, i)
        self._at(SWEEP_S, self._sweeps, 1)
        if self._movers:
            self._at(0.0, self._migrates, None)
        if self._scenario.view.report_s:
            self._at(self._scenario.view.report_s, self._reports, None)
        heap, clock, total = self._heap, self.clock, len(self._requests)
        while self._over < total:
            assert heap, f"{total - self._over} requests never end: {self.engines!r}"
            at_s, _, act, what = heapq.heappop(heap)
            clock.now_s = at_s
            act(what)
        return self._outcome()

    def _at(self, at_s: float, act: Callable[[Any], None], what: object) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at_s, self._pushed, act, what))

    def _arrives(self, request: SimRequest) -> None:
        front = self.fronts[len(self._tracks) % len(self.fronts)]
        lengths = request.lengths
        if self._policy.oracle:
            lengths = LengthEstimate(request.output_tokens, request.output_tokens, request.output_tokens, "oracle")
        job = Job(
            request.id,
            MODEL,
            request.seen_tokens or request.prompt_tokens,
            lengths,
            request.arrival_s,
            request.seen_prefix,
            request.session,
            self._kinds[0].limits.block_size,
            deadline_s=request.deadline_s,
        )
        self._tracks[request.id] = Track(request, job, front)
        self.sidecars.expects(job)
        self._carry_out(front, front.desk.arrived(job, self.clock.now_s))

    def _carry_out(self, front: Front, actions: Row[Action]) -> None:
        """What the desk asked for, in order; then see when it wants to be called."""
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatch(action)
            else:
                self._probe(front, action)
        self._arm(front)

    def _arm(self, front: Front) -> None:
        """When the desk is called if nothing happens before: with the live gateway's own slack."""
        due_s = front.desk.due_s if front.desk.waiting else NEVER_S
        if due_s == front.due_s or (NEVER_S not in (due_s, front.due_s) and due_s >= front.due_s - TICK_MIN_S):
            return  # called early enough anyway
        front.due_s, front.alarm = due_s, self._pushed
        if due_s != NEVER_S:
            self._at(max(due_s, self.clock.now_s + TICK_MIN_S), self._ticks, (front, front.alarm))

    def _ticks(self, what: tuple[Front, int]) -> None:
        front, alarm = what
        if front.alarm == alarm:  # else it was set anew
            front.due_s, front.alarm = NEVER_S, -1
            self._carry_out(front, front.desk.tick(self.clock.now_s))

    def _sweeps(self, count: int) -> None:
        for front in self.fronts:
            if front.desk.waiting:
                self._carry_out(front, front.desk.tick(self.clock.now_s))
        self._at((count + 1) * SWEEP_S, self._sweeps, count + 1)

    def _probe(self, front: Front, probe: Probe) -> None:
        indices = [self._index[name] for name in probe.names]
        replies = {
            name: self.sidecars.reply(i, probe.job) if self._up[i] else None
            for name, i in zip(probe.names, indices, strict=True)
        }
        self._probed.append(sum(self.engines[i].preemptions for i in indices))
        self._at(self.clock.now_s + self._policy.probe_s, self._answered, (front, probe.job.id, replies))

    def _answered(self, what: tuple[Front, str, Any]) -> None:
        front, job_id, replies = what
        self._carry_out(front, front.desk.probed(job_id, replies, self.clock.now_s))

    def _dispatch(self, dispatch: Dispatch) -> None:
        track = self._tracks[dispatch.job.id]
        track.sent = Sent(self.clock.now_s, dispatch.job.id, self._index[dispatch.name], dispatch.hit_tokens)
        self._sent.append(track.sent)
        delay_s = self._scenario.view.dispatch_s
        if delay_s:
            self._at(self.clock.now_s + delay_s, self._reaches, track)
        else:
            self._reaches(track)

    def _reaches(self, track: Track) -> None:
        """The request is at its engine; one that is down refuses it, so it is placed anew."""
        assert track.sent is not None
        index, request, now_s = track.sent.replica, track.request, self.clock.now_s
        if not self._up[index]:
            actions = track.front.desk.lost(request.id, now_s)
            again = track.front.desk.arrived(track.job, now_s, frozenset((self._names[index],)))
            self._carry_out(track.front, [*actions, *again])
            return
        engine = self.engines[index]
        track.dispatched_s = now_s
        engine.submit(
            Request(request.id, request.prompt_tokens, request.output_tokens, request.arrival_s, request.prefix), now_s
        )
        progress = engine.progress(request.id)
        if self._scenario.view.sight:
            track.front.desk.started(request.id, progress)
        else:
            track.progress = self.relayed(progress)
        self._await(index)

    def _await(self, index: int) -> None:
        ends_at_s = self.engines[index].step_ends_at_s
        if ends_at_s is not None:
            self._at(ends_at_s, self._steps, index)

    def _steps(self, index: int) -> None:
        """A step's end, unless it has moved since this was noted."""
        engine, now_s = self.engines[index], self.clock.now_s
        if engine.step_ends_at_s != now_s:
            return
        events = engine.finish_step(now_s)
        self._await(index)
        heard = []
        for event in events:
            if isinstance(event, FirstToken | Finished):
                self._stamp(event)
                heard.append(event)
            elif isinstance(event, Preempted):
                self._tracks[event.request_id].preemptions += 1
        if not heard:
            return
        delay_s = self._scenario.view.feedback_s
        if delay_s:
            self._at(now_s + delay_s, self._hears, heard)
        else:
            self._hears(heard)

    def _stamp(self, event: FirstToken | Finished) -> None:
        track = self._tracks[event.request_id]
        if isinstance(event, FirstToken):
            track.first_token_s = event.at_s
            return
        track.finished_s = event.at_s
        self._over += 1
        if self._report is not None and not self._over % 100:
            self._report(self._over / len(self._requests))

    def _hears(self, events: Row[Event]) -> None:
        """The gateway learns of first tokens and ends."""
        now_s = self.clock.now_s
        for event in events:
            if isinstance(event, FirstToken | Finished):
                track = self._tracks[event.request_id]
                front = track.front
                if isinstance(event, Finished):
                    self._ends(track)
                    actions = front.desk.finished(event.request_id, track.request.output_tokens, now_s)
                else:
                    if track.progress is not None:
                        front.desk.started(event.request_id, track.progress)
                    actions = front.desk.first_token(event.request_id, now_s)
                front.teaches()
                self._carry_out(front, actions)

    def _ends(self, track: Track) -> None:
        self.sidecars.forgets(track.request.id)

    # ---- migration ----

    def _migrates(self, _: None) -> None:
        """Begin to copy one request's KV, if that is worth it; then think again."""
        spec, now_s = self._scenario.migration, self.clock.now_s
        assert spec is not None
        move = plan_move(self._movers, spec)
        if move is not None:
            for index in (move.source, move.target):
                self._movers[index].slow(1.0 + spec.slowdown, now_s)
                self._await(index)
            self._at(now_s + move.copied_s, self._copied, move)
        self._at(now_s + max(spec.every_s, move.copied_s if move is not None else 0.0), self._migrates, None)

    def _copied(self, move: Move) -> None:
        """The copy is complete: the request changes its engine at the next step's end."""
        now_s = self.clock.now_s
        given = self._movers[move.source].give(move.request_id, now_s)
        for index in (move.source, move.target):
            self._movers[index].slow(1.0, now_s)
            self._await(index)
        if given is not None:
            seq, at_s = given
            self.migrations += 1
            self._at(at_s, self._moved, (seq, move.target))

    def _moved(self, what: tuple[Sequence, int]) -> None:
        seq, index = what
        self._movers[index].take(seq, self.clock.now_s)
        self._await(index)

    # ---- failures ----

    def _fails(self, failure: FailureSpec) -> None:
        """An engine loses all it has. Its requests fail: they may have run, so nobody sends them again."""
        index, now_s = failure.replica, self.clock.now_s
        if not self._up[index]:
            return
        self._up[index] = False
        self._preemptions_gone += self.engines[index].preemptions
        self._lives += 1
        self.engines[index] = self._engine(index)
        victims = [
            track
            for track in self._tracks.values()
            if track.sent is not None
            and track.sent.replica == index
            and track.finished_s is None
            and track.dispatched_s is not None
        ]
        for front in self.fronts:
            front.misses(self._names[index])
        for track in victims:
            self._lost += 1
            self._over += 1
            track.sent = None
            self._ends(track)
            self._carry_out(track.front, track.front.desk.lost(track.request.id, now_s))
        self._at(now_s + failure.down_s, self._returns, index)

    def _returns(self, index: int) -> None:
        self._up[index] = True
        for front in self.fronts:
            front.meets(self._names[index], self._kinds[index], StepSight(self.engines[index]))
            self._carry_out(front, front.desk.tick(self.clock.now_s))

    # ---- snapshots ----

    def _publishes(self, index: int) -> None:
        self.sidecars.publish(index)
        self._at(self.clock.now_s + self.sidecars.period_s, self._publishes, index)

    def _reports(self, _: None) -> None:
        """What engines say of themselves reaches every gateway's mirrors."""
        for front in self.fronts:
            for name, view in front.views.items():
                engine = self.engines[self._index[name]]
                if view.mirror is not None:
                    used = 1.0 - engine.free_blocks / engine.limits.kv_blocks
                    view.mirror.reported(engine.running + engine.waiting, used)
        self._at(self.clock.now_s + self._scenario.view.report_s, self._reports, None)

    def _outcome(self) -> Outcome:
        tracks = list(self._tracks.values())
        probed = sum(self._probed) / len(self._probed) if self._probed else 0.0
        return Outcome(
            self._policy.label,
            self._seed,
            self._scenario.workload.rate_per_s,
            tuple(track.timeline() for track in tracks),
            tuple(self._sent),
            self._preemptions_gone + sum(engine.preemptions for engine in self.engines),
            probed,
            self._lost,
            sum(track.request.prompt_tokens for track in tracks),
            sum(sent.hit_tokens for sent in self._sent),
        )
