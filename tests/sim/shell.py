"""The same desk in an asyncio shell: engine cores of the simulated server on a loop's clock, instead of the cluster's heap."""

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random

from backends.mock_core import EngineCore, Track
from gateway.jobs import Action, Dispatch, Job, Probe
from gateway.sim.cluster import SWEEP_S, TICK_MIN_S
from gateway.sim.front import NEVER_S, Front
from gateway.sim.probing import Sidecars
from gateway.sim.scenario import PolicySpec, Scenario
from gateway.sim.truth import Relayed, SteppedEngine
from gateway.sim.workload import SimRequest
from predictor.instance import Instance
from predictor.request import Request, Timeline


class Silent:
    """An observer that counts nothing."""

    def admitted(self, track: Track) -> None: ...
    def token(self, track: Track, gap_s: float | None) -> None: ...
    def preempted(self) -> None: ...
    def stepped(self, tokens: int) -> None: ...
    def ended(self, track: Track) -> None: ...


class LoopClock:
    """A loop's time where a simulation's is expected."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def now_s(self) -> float:
        return self._loop.time()


class Shell:
    """One gateway over in-process engines. `sent` and `timelines` are what the cluster's outcome holds as well."""

    def __init__(self, scenario: Scenario, policy: PolicySpec, requests: Sequence[SimRequest], seed: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.sent: list[tuple[str, int, int]] = []
        self.timelines: dict[str, Timeline] = {}
        self._requests = requests
        self._policy = policy
        kinds = [kind for kind in scenario.replicas for _ in range(kind.count)]
        self._block = kinds[0].limits.block_size
        engines = [SteppedEngine(Instance(kind.profile, kind.limits), None) for kind in kinds]
        self._cores = [EngineCore(engine, Silent(), self.loop) for engine in engines]  # type: ignore[arg-type]
        clock = LoopClock(self.loop)
        self._sidecars = Sidecars(scenario, policy, list(engines), clock, Random(f"probes {seed}"))  # type: ignore[arg-type]
        self._front = Front(policy, scenario.view, Random(f"gateway {seed} 0"))
        self._desk = self._front.desk
        for i, (kind, engine) in enumerate(zip(kinds, engines, strict=True)):
            self._front.meets(f"r{i}", kind, engine)
        self._due_s = NEVER_S
        self._timer: asyncio.TimerHandle | None = None
        self._progress: dict[str, Relayed] = {}
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Until every request has ended."""
        for request in self._requests:
            self.loop.call_at(request.arrival_s, self._arrives, request)
        self.loop.call_at(SWEEP_S, self._sweep, 1)
        await self._over.wait()

    def _sweep(self, count: int) -> None:
        if self._desk.waiting:
            now_s = count * SWEEP_S
            self._act(self._desk.tick(now_s), now_s)
        self.loop.call_at((count + 1) * SWEEP_S, self._sweep, count + 1)

    def _arrives(self, request: SimRequest) -> None:
        job = Job(
            request.id, "model", request.prompt_tokens, request.lengths, request.arrival_s, request.seen_prefix, "", self._block
        )
        self._sidecars.expects(job)
        self._act(self._desk.arrived(job, request.arrival_s), request.arrival_s)

    def _act(self, actions: Sequence[Action], now_s: float) -> None:
        for action in actions:
            if isinstance(action, Dispatch):
                self._dispatch(action)
            else:
                self._probe(action)
        due_s = self._desk.due_s if self._desk.waiting else NEVER_S
        if due_s >= self._due_s - TICK_MIN_S and self._timer is not None and due_s != NEVER_S:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_s = due_s
        if due_s != NEVER_S:
            at_s = max(due_s, now_s + TICK_MIN_S)
            self._timer = self.loop.call_at(at_s, self._tick, at_s)

    def _tick(self, now_s: float) -> None:
        self._timer, self._due_s = None, NEVER_S
        self._act(self._desk.tick(now_s), now_s)

    def _probe(self, probe: Probe) -> None:
        replies = {name: self._sidecars.reply(int(name[1:]), probe.job) for name in probe.names}
        at_s = probe.job.arrival_s + self._policy.probe_s
        self.loop.call_at(at_s, lambda: self._act(self._desk.probed(probe.job.id, replies, at_s), at_s))

    def _dispatch(self, dispatch: Dispatch) -> None:
        index = int(dispatch.name[1:])
        request = self._requests[int(dispatch.job.id)]
        self.sent.append((request.id, index, dispatch.hit_tokens))
        ask = Request(request.id, request.prompt_tokens, request.output_tokens, request.arrival_s, request.prefix)
        track = Track(ask, "stop", lambda: None)
        track.wake = partial(self._woken, track)
        self._cores[index].submit(track)
        self._progress[request.id] = Relayed(self._cores[index].instance.progress(request.id))

    def _woken(self, track: Track) -> None:
        name = track.request.id
        if track.ended is None and track.produced == 1 and track.first_token_s is not None:
            self._desk.started(name, self._progress.pop(name))
            actions = self._desk.first_token(name, track.first_token_s)
            self._front.teaches()
            self._act(actions, track.first_token_s)
        elif track.ended is not None and track.finished_s is not None:
            self.timelines[name] = track.timeline
            self._sidecars.forgets(name)
            actions = self._desk.finished(name, track.produced, track.finished_s)
            self._front.teaches()
            self._act(actions, track.finished_s)
            if len(self.timelines) == len(self._requests):
                self._over.set()
