"""The swap planner in the simulation: what it may know of the world, and its due steps carried out. Pure.

An adapter and no more: who is to move where is the planner's word alone, and who starts first that of `lateness.turn`. It
knows nominal swap costs, its own requests, and what its swaps and answers took so far, in the gateway's own records of them
(gateway/habits.py); never the truth's factors nor an answer's length before it is over. It plans when somebody waits who
cannot be started, no oftener than each `PAUSE_S` unless an engine has just got nothing to do.
"""

from collections.abc import Callable, Mapping
from random import Random

from gateway.habits import Habits
from gateway.lateness import Prices
from gateway.lodging import STARVE_MARGIN
from gateway.residency import Device, PlanSettings, Residency, Resident, Step, Tenant, narrow
from gateway.sim.swap_rules import Decide, feed, stranded, turns
from gateway.sim.swap_scenario import ModelSpec, SwapScenario
from gateway.sim.swap_world import Engine, Gpu, Job, Swapped, World, footprint, kv_tokens
from gateway.swap_search import best
from gateway.swaps import Planner
from predictor.cost import GB, HostProfile, Place, SwapCosts
from predictor.offload import from_ends

PAUSE_S = 1.0
DUE_S = 0.05


class Ours:
    """One gateway's planner over a world. `habits` is what it has learnt, by model."""

    def __init__(self, world: World, scenario: SwapScenario, hosts: Mapping[str, HostProfile], by_turn: bool = True) -> None:
        self._world = world
        self._turn_of = turns(world, scenario) if by_turn else None
        self._costs = SwapCosts(hosts)
        self.habits = {name: Habits() for name in world.models}
        self._gpus = {gpu.name: gpu for gpu in world.gpus}
        self._devices = tuple(Device(gpu.name, gpu.host.name, gpu.host.memory_bytes) for gpu in world.gpus)
        self._settings = narrow(PlanSettings(prices=Prices(starve_s=scenario.starve_s * STARVE_MARGIN)))
        self._next_s = 0.0
        self._woken_s = -1.0
        self._moment: tuple[tuple[int, ...], tuple[str, ...]] = ((), ())
        world.hear = self._swapped
        world.over = self._over

    def decide(self) -> None:
        """Start whom it can, and plan if that leaves somebody waiting."""
        world = self._world
        self._count()
        feed(world, self._turn_of)
        if not any(world.waiting.values()) and not any(gpu.paused for gpu in world.gpus):
            return
        if world.now_s < self._next_s and not self._new_moment():
            self._wake(self._next_s)
            return
        self._next_s = world.now_s + PAUSE_S
        found = best(Planner(self._view(), self._costs, self._settings))
        for step in found.steps:
            if step.cut_s <= DUE_S and not self._gpus[step.device].swapping:
                self._carry_out(step)
        feed(world, self._turn_of)
        later = [world.now_s + step.cut_s for step in found.steps if step.cut_s > DUE_S]
        self._wake(min([world.now_s + 2.0, *later]))

    def _new_moment(self) -> bool:
        """Whether somebody is stranded and somebody else has just got nothing to do: such a moment may be short."""
        world = self._world
        idle = [
            e for gpu in world.gpus if not gpu.swapping for e in gpu.engines if not e.running and not world.waiting[e.spec.name]
        ]
        moment = (tuple(map(id, idle)), tuple(stranded(world))) if idle else ((), ())
        changed = moment != self._moment and bool(moment[1])
        self._moment = moment
        return changed

    def _wake(self, at_s: float) -> None:
        if self._woken_s <= self._world.now_s or at_s < self._woken_s - 1e-9:
            self._woken_s = at_s
            self._world.at(at_s, lambda: None)

    def _carry_out(self, step: Step) -> None:
        gpu = self._gpus[step.device]
        leaves = [engine for engine in gpu.engines if engine.spec.name in step.leaves]
        self._world.swap(gpu, step.model, leaves, step.fraction, step.pause_s)

    # -- what it learns

    def _count(self) -> None:
        for name, queue in self._world.waiting.items():
            for job in reversed(queue):
                if job.arrived_s < self._world.now_s:
                    break
                self.habits[name].arrived(job.arrived_s, job.arrived_s + job.ttft_target_s)

    def _over(self, job: Job, engine: Engine) -> None:
        busy = [other for other in engine.device.engines if other is engine or other.running]
        self.habits[job.model].over(job.first_s - job.started_s, job.ended_s - job.started_s, len(busy) * engine.slower)

    def _swapped(self, told: Swapped) -> None:
        weights = self._world.models[told.model].weight_gb * GB
        self._costs.observe(told.model, weights, told.device.host.name, told.start, told.end, told.took_s)

    # -- what it sees

    def _view(self) -> Residency:
        world = self._world
        residents = tuple(self._resident(engine) for gpu in world.gpus for engine in self._there(gpu))
        busy_s = {gpu.name: self._swap_left_s(gpu) for gpu in world.gpus if gpu.swapping}
        return Residency(self._devices, tuple(map(self._tenant, world.models.values())), residents, busy_s)

    def _there(self, gpu: Gpu) -> list[Engine]:
        open_ones = [engine for engine in gpu.engines if engine.phase == "open"]
        return [*open_ones, gpu.coming] if gpu.coming is not None else open_ones

    def _swap_left_s(self, gpu: Gpu) -> float:
        """As expected: those that leave drain, then it takes what it is believed to."""
        assert gpu.coming is not None
        wait_s = max(gpu.freeze_s - self._world.now_s, 0.0)
        drain_s = max((self._drain(engine, wait_s)[0] for engine in gpu.leaving if engine.phase == "cut"), default=0.0)
        name = gpu.coming.spec.name
        place: Place = "cache" if name in gpu.cache else "disk"
        moves_s = self._costs.predict(name, gpu.coming.spec.weight_gb * GB, gpu.host.name, place, "gpu").mean_s
        begun_s = 0.0 if drain_s else max(self._world.now_s - gpu.swap_began_s, 0.0)
        return max(drain_s + moves_s - begun_s, 0.2)

    def _drain(self, engine: Engine, until_s: float) -> tuple[float, float]:
        """Seconds until the last of those that run is over, at most `until_s`, and how many run on then."""
        busy = sum(1 for other in engine.device.engines if other.running)
        ages = [self._world.now_s - job.started_s for job in engine.jobs()]
        return self.habits[engine.spec.name].drain(ages, engine.slower * max(busy, 1), until_s)

    def _resident(self, engine: Engine) -> Resident:
        coming = engine.phase == "in"
        pause_s = self.habits[engine.spec.name].hold_s * engine.slower
        drain_s, left = self._drain(engine, pause_s)
        return Resident(
            engine.spec.name,
            engine.device.name,
            engine.fraction,
            engine.running,
            drain_s,
            0.0 if coming else self._world.now_s - engine.since_s,
            self._swap_left_s(engine.device) if coming else 0.0,
            pause_s=pause_s,
            left=left,
        )

    def _tenant(self, spec: ModelSpec) -> Tenant:
        world, habits = self._world, self.habits[spec.name]
        frozen = [gpu.paused[spec.name] for gpu in world.gpus if spec.name in gpu.paused]
        only = tuple(engine.device.name for engine in frozen)  # it goes on nowhere else
        waiting = [(job.arrived_s, job.arrived_s + job.ttft_target_s) for job in world.waiting[spec.name]]
        demand = habits.demand(waiting, [(engine.running, engine.cut_s) for engine in frozen], world.now_s)
        places: dict[str, Place] = {gpu.host.name: "cache" for gpu in world.gpus if spec.name in gpu.cache}
        curve = from_ends(spec.gpu_rate, spec.cpu_rate) if spec.gpu_rate else None
        service = dict.fromkeys((gpu.host.name for gpu in world.gpus), habits.service(float(spec.slots)))
        return Tenant(spec.name, footprint(spec), service, demand, kv_tokens(spec), only, places=places, curve=curve)


def ours(hosts: Mapping[str, HostProfile], by_turn: bool = True) -> Callable[[World, SwapScenario, Random], Decide]:
    """The rule, for these hosts' priors; without `by_turn` requests start in order of arrival."""
    return lambda world, scenario, rng: Ours(world, scenario, hosts, by_turn).decide
