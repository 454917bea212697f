"""The live gateway's own desks, fleet and timers over engine cores in virtual time: all of its placing, none of its sockets.

Sockets are left out on purpose: in which order they tell of what happens at one instant is nobody's decision.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random

from backends.base import Identity
from backends.mock_core import EngineCore, Track
from gateway.config import BackendSpec, GatewayConfig, Health
from gateway.desks import Desks, Station
from gateway.fleet import Fleet
from gateway.jobs import Dispatch, Job
from gateway.replica import Replica
from gateway.sim.cluster import SWEEP_S
from gateway.sim.scenario import MODEL, PolicySpec, Scenario
from gateway.sim.truth import Relayed
from gateway.sim.workload import SimRequest
from predictor.instance import Instance
from predictor.request import Request, Timeline
from tests.sim.shell import Silent


class Place:
    """A request that looks for a replica, as desks know it."""

    def __init__(self, live: "LiveDesks", request: SimRequest, job: Job, station: Station) -> None:
        self.station = station
        self.request = request
        self.job = job
        self._live = live

    def sent_by_desk(self, replica: Replica, dispatch: Dispatch) -> None:
        """The desk's choice: the request is at its engine at once."""
        self._live.submit(self, replica.name, dispatch)


class LiveDesks:
    """One gateway process. `sent` and `timelines` are what the cluster's outcome holds as well."""

    def __init__(self, scenario: Scenario, policy: PolicySpec, requests: Sequence[SimRequest], seed: int, profile: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.config = GatewayConfig(models=(policy.rule,))
        self.fleet = Fleet(Health())
        self.sent: list[tuple[str, int, int]] = []
        self.timelines: dict[str, Timeline] = {}
        self._requests = requests
        self._cores: list[EngineCore] = []
        self._over = asyncio.Event()
        kinds = [kind for kind in scenario.replicas for _ in range(kind.count)]
        self._block = kinds[0].limits.block_size
        for i, kind in enumerate(kinds):
            limits = kind.limits
            self._cores.append(EngineCore(Instance(kind.profile, limits), Silent(), self.loop))
            spec = BackendSpec(
                f"r{i}",
                f"http://10.0.0.{i + 1}",
                "vllm",
                profile=profile,
                kv_blocks=limits.kv_blocks,
                block_size=limits.block_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
            )
            self.fleet.probed(self.fleet.added(spec), Identity("vllm", "0", (MODEL,), "generate", limits.max_model_len), 0.0)
        self.desks = Desks(self, Random(f"gateway {seed} 0"))  # type: ignore[arg-type]

    def now(self) -> float:
        """The gateway's clock."""
        return self.loop.time()

    async def run(self) -> None:
        """Until every request has ended."""
        for request in self._requests:
            self.loop.call_at(request.arrival_s, self._arrives, request)
        self.loop.call_at(SWEEP_S, self._sweep, 1)
        await self._over.wait()
        await self.desks.close()

    def _sweep(self, count: int) -> None:
        self.desks.tick()
        self.loop.call_at((count + 1) * SWEEP_S, self._sweep, count + 1)

    def _arrives(self, request: SimRequest) -> None:
        station = self.desks.station(MODEL, "chat")
        assert station is not None
        job = Job(
            request.id,
            MODEL,
            request.prompt_tokens,
            request.lengths,
            self.now(),
            request.seen_prefix,
            block_tokens=self._block,
            deadline_s=request.deadline_s,
        )
        place = Place(self, request, job, station)
        self.desks.join(place, station, job, self.fleet.routable(MODEL, "generate"), frozenset())  # type: ignore[arg-type]

    def submit(self, place: Place, name: str, dispatch: Dispatch) -> None:
        """To the engine."""
        request, index = place.request, int(name[1:])
        self.sent.append((request.id, index, dispatch.hit_tokens))
        ask = Request(request.id, request.prompt_tokens, request.output_tokens, request.arrival_s, request.prefix)
        track = Track(ask, "stop", lambda: None)
        core = self._cores[index]
        core.submit(track)
        track.wake = partial(self._woken, place, track, Relayed(core.instance.progress(request.id)))

    def _woken(self, place: Place, track: Track, progress: Relayed) -> None:
        if track.ended is None and track.produced == 1:
            place.station.desk.started(place.job.id, progress)
            self.desks.first_token(place.station, place.job)
        elif track.ended is not None:
            self.timelines[track.request.id] = track.timeline
            self.desks.ended(place.station, place.job, complete=True)
            if len(self.timelines) == len(self._requests):
                self._over.set()
