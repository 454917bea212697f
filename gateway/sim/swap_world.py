"""The truth of many models on few GPUs: engines that batch, swaps that take time, requests that wait. Pure.

An engine gives each of its running requests a token per step, and a step's time follows how many run and how many
engines on the device are busy; so one clock of tokens per engine orders all its ends. Prompts are read one after another.
A swap cuts off those that leave, waits until they are empty (or freezes them), and takes the true time of going out and
coming in. Schedulers only call `start` and `swap`; a stream is never broken, since nothing here could do it.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from gateway.sim.swap_scenario import ModelSpec, TruthSpec
from predictor.cost import GB, HostProfile, Place
from predictor.offload import Footprint, from_ends

NEVER = float("inf")
OVERHEAD_GB = 1.0
Phase = Literal["open", "cut", "out", "in"]


@dataclass(slots=True, eq=False)
class Job:
    """One request and what became of it."""

    model: str
    arrived_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_target_s: float
    tpot_target_s: float
    started_s: float = NEVER
    first_s: float = NEVER
    ended_s: float = NEVER

    @property
    def good(self) -> bool:
        """Whether it was served within its targets."""
        tpot_s = (self.ended_s - self.first_s) / max(self.output_tokens - 1, 1)
        return self.first_s - self.arrived_s <= self.ttft_target_s and tpot_s <= self.tpot_target_s


@dataclass(slots=True, eq=False)
class Engine:
    """A model on a device. `clock` counts tokens per request since it came; `ends` are (clock, number, job)."""

    spec: ModelSpec
    device: "Gpu"
    fraction: float
    slower: float
    phase: Phase = "in"
    since_s: float = NEVER
    used_s: float = 0.0
    cut_s: float = 0.0
    clock: float = 0.0
    at_s: float = 0.0
    read_until_s: float = 0.0
    ends: list[tuple[float, int, Job]] = field(default_factory=list)
    version: int = 0
    reads: list[Job] = field(default_factory=list)

    def jobs(self) -> list[Job]:
        """Those that it has."""
        return [*self.reads, *(job for _, _, job in self.ends)]

    @property
    def running(self) -> int:
        """Requests that it has."""
        return len(self.ends) + len(self.reads)

    @property
    def free(self) -> int:
        """Requests that it would still take."""
        return self.spec.slots - self.running if self.phase == "open" else 0


@dataclass(slots=True, eq=False)
class Gpu:
    """A device: its engines, the swap under way, weights in memory of its host."""

    name: str
    host: HostProfile
    ram_bytes: float
    engines: list[Engine] = field(default_factory=list)
    coming: Engine | None = None
    leaving: list[Engine] = field(default_factory=list)
    frozen: bool = False
    busy_until_s: float = 0.0
    cache: "OrderedDict[str, float]" = field(default_factory=OrderedDict)
    paused: dict[str, Engine] = field(default_factory=dict)
    swap_began_s: float = 0.0
    freeze_s: float = NEVER
    work_s: float = 0.0
    seen_s: float = 0.0

    @property
    def swapping(self) -> bool:
        """Whether a swap is under way."""
        return self.coming is not None

    def taken_bytes(self) -> float:
        """Memory that its engines hold."""
        return sum(footprint(e.spec).resident_bytes(e.fraction, kv_tokens(e.spec)) for e in self.engines)


def kv_tokens(spec: ModelSpec) -> float:
    """Tokens that a full batch holds."""
    return spec.slots * (spec.prompt_tokens + spec.output_tokens)


def footprint(spec: ModelSpec) -> Footprint:
    """What it takes of a device."""
    return Footprint(spec.weight_gb * GB, spec.kv_kb_per_token * 1000, 32, OVERHEAD_GB * GB)


@dataclass(frozen=True, slots=True)
class Swapped:
    """A part of a swap that was done, as a scheduler may learn from it."""

    model: str
    device: Gpu
    start: Place
    end: Place
    took_s: float


class World:
    """See the module's words. `hear` is told each finished part of a swap; `over` each request's end and where."""

    def __init__(self, gpus: Iterable[Gpu], models: Iterable[ModelSpec], truth: TruthSpec, rng: Random) -> None:
        self.gpus = tuple(gpus)
        self.models = {spec.name: spec for spec in models}
        self.waiting: dict[str, deque[Job]] = {name: deque() for name in self.models}
        self.now_s = 0.0
        self.swaps = 0
        self.done: list[Job] = []
        self.timeline: list[tuple[float, float, str, str]] = []
        self.hear: Callable[[Swapped], None] = lambda _: None
        self.over: Callable[[Job, Engine], None] = lambda _, __: None
        self._truth = truth
        self._rng = rng
        self._swap_factor = {name: 1 + rng.uniform(-truth.swap_error, truth.swap_error) for name in self.models}
        self._step_factor = {name: 1 + rng.uniform(-truth.step_error, truth.step_error) for name in self.models}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    # -- what schedulers may do and ask

    def engines(self, model: str) -> list[Engine]:
        """Where it lies or comes."""
        found = [engine for gpu in self.gpus for engine in gpu.engines if engine.spec.name == model]
        return found + [gpu.coming for gpu in self.gpus if gpu.coming is not None and gpu.coming.spec.name == model]

    def start(self, engine: Engine) -> Job:
        """Give an engine with a free slot the first request that waits for its model."""
        assert engine.free > 0
        job = self.waiting[engine.spec.name].popleft()
        job.started_s = engine.used_s = self.now_s
        prompt_s = job.prompt_tokens * engine.spec.prompt_us * 1e-6 * engine.slower * self._step_factor[engine.spec.name]
        engine.read_until_s = max(engine.read_until_s, self.now_s) + prompt_s
        self._catch_up(engine.device)
        engine.reads.append(job)
        self.at(engine.read_until_s, lambda: self._read(engine, job))
        self._foresee(engine.device)
        return job

    def swap(self, gpu: Gpu, model: str, leaves: Iterable[Engine], fraction: float = 1.0, freeze_s: float = NEVER) -> None:
        """Bring a model in; those that leave are cut off now and drain; who still runs there after `freeze_s` is frozen until
        its model comes back."""
        assert not gpu.swapping
        spec = self.models[model]
        curve = from_ends(spec.gpu_rate, spec.cpu_rate) if fraction < 1 else None
        slower = curve.token_s(fraction) / curve.token_s(1.0) if curve else 1.0
        gpu.coming = Engine(spec, gpu, fraction, slower)
        gpu.leaving, gpu.frozen, gpu.swap_began_s = list(leaves), freeze_s <= 0, self.now_s
        gpu.freeze_s = self.now_s + freeze_s
        self._catch_up(gpu)
        for engine in gpu.leaving:
            engine.phase, engine.cut_s = "cut", self.now_s
        self.swaps += 1
        if 0 < freeze_s < NEVER and any(engine.running for engine in gpu.leaving):
            coming = gpu.coming
            self.at(self.now_s + freeze_s, lambda: self._freeze(gpu, coming))
        self._drained(gpu)

    def _freeze(self, gpu: Gpu, coming: Engine) -> None:
        if gpu.coming is coming and any(engine.phase == "cut" for engine in gpu.leaving):
            self._catch_up(gpu)
            gpu.frozen = True
            self._foresee(gpu)
            self._drained(gpu)

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call then."""
        self._number += 1
        heapq.heappush(self._heap, (when_s, self._number, call))

    def run(self, jobs: Iterable[Job], decide: Callable[[], None], until_s: float) -> None:
        """Until every request is over, or the time is."""
        for job in jobs:
            self.at(job.arrived_s, lambda job=job: self.waiting[job.model].append(job))  # type: ignore[misc]
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s = self._heap[0][0]
            while self._heap and self._heap[0][0] <= self.now_s:
                heapq.heappop(self._heap)[2]()
            decide()

    # -- engines

    def _step_s(self, engine: Engine, busy: int) -> float:
        spec = engine.spec
        return (spec.base_ms + spec.decode_ms * engine.running) * 1e-3 * engine.slower * busy * self._step_factor[spec.name]

    def _catch_up(self, gpu: Gpu) -> None:
        """Let the clocks of a device's engines run up to now."""
        busy = [engine for engine in gpu.engines if engine.running and not (engine.phase == "cut" and gpu.frozen)]
        for engine in gpu.engines:
            if engine in busy:
                engine.clock += (self.now_s - engine.at_s) / self._step_s(engine, len(busy))
            engine.at_s = self.now_s
        gpu.work_s += (self.now_s - gpu.seen_s) if busy else 0.0
        gpu.seen_s = self.now_s

    def _foresee(self, gpu: Gpu) -> None:
        """Put each engine's next end on the heap; older ones are void."""
        busy = sum(1 for engine in gpu.engines if engine.running and not (engine.phase == "cut" and gpu.frozen))
        for engine in gpu.engines:
            engine.version += 1
            if engine.ends and not (engine.phase == "cut" and gpu.frozen):
                left_s = max(engine.ends[0][0] - engine.clock, 0.0) * self._step_s(engine, busy)
                self.at(self.now_s + left_s, lambda engine=engine, version=engine.version: self._end(engine, version))  # type: ignore[misc]

    def _read(self, engine: Engine, job: Job) -> None:
        self._catch_up(engine.device)
        engine.reads.remove(job)
        job.first_s = self.now_s
        self._number += 1
        heapq.heappush(engine.ends, (engine.clock + job.output_tokens, self._number, job))
        self._foresee(engine.device)
        if engine.device.swapping:
            self._drained(engine.device)

    def _end(self, engine: Engine, version: int) -> None:
        if version != engine.version:
            return
        gpu = engine.device
        self._catch_up(gpu)
        while engine.ends and engine.ends[0][0] <= engine.clock + 1e-6:
            job = heapq.heappop(engine.ends)[2]
            job.ended_s = engine.used_s = self.now_s
            self.done.append(job)
            self.over(job, engine)
        self._foresee(gpu)
        if gpu.swapping:
            self._drained(gpu)

    # -- swaps

    def _drained(self, gpu: Gpu) -> None:
        """Begin to move weights once nobody runs any more where it is to leave."""
        waits = any(engine.phase == "cut" and (engine.reads or (engine.ends and not gpu.frozen)) for engine in gpu.leaving)
        if waits or gpu.coming is None or any(engine.phase == "out" for engine in gpu.leaving) or gpu.busy_until_s > self.now_s:
            return
        self._catch_up(gpu)
        at_s = self.now_s
        for engine in gpu.leaving:
            engine.phase = "out"
            name = engine.spec.name
            took_s = self._true_s(engine.spec, gpu.host.line("gpu", "disk"), 1.0)
            if gpu.frozen and engine.running:
                took_s += self._kv_bytes(engine) / gpu.host.pcie_bytes_per_s
                gpu.paused[name] = engine
            at_s += took_s
            self._keep(gpu, name)
            self.hear(Swapped(name, gpu, "gpu", "disk", took_s))
            gpu.engines.remove(engine)
        coming = gpu.coming
        place: Place = "cache" if coming.spec.name in gpu.cache else "disk"
        took_s = self._true_s(coming.spec, gpu.host.line(place, "gpu"), coming.fraction)
        back = gpu.paused.pop(coming.spec.name, None)
        if back is not None:
            took_s += self._kv_bytes(back) / gpu.host.pcie_bytes_per_s
            back.phase, gpu.coming = "in", back
        self._keep(gpu, coming.spec.name)
        gpu.busy_until_s = at_s + took_s
        told = Swapped(coming.spec.name, gpu, place, "gpu", took_s)
        self.at(gpu.busy_until_s, lambda: self._arrived(gpu, told))
        self._foresee(gpu)

    def _arrived(self, gpu: Gpu, told: Swapped) -> None:
        assert gpu.coming is not None
        self._catch_up(gpu)
        engine, gpu.coming, gpu.leaving, gpu.frozen = gpu.coming, None, [], False
        engine.phase, engine.since_s, engine.used_s, engine.at_s = "open", self.now_s, self.now_s, self.now_s
        gpu.engines.append(engine)
        self.timeline.append((gpu.swap_began_s, self.now_s, gpu.name, engine.spec.name))
        self.hear(told)
        self._foresee(gpu)

    def _keep(self, gpu: Gpu, name: str) -> None:
        """Weights that were read stay in memory while there is room; the longest unused go first."""
        gpu.cache.pop(name, None)
        gpu.cache[name] = self.models[name].weight_gb * GB
        while gpu.cache and sum(gpu.cache.values()) > gpu.ram_bytes:
            gpu.cache.popitem(last=False)

    def _true_s(self, spec: ModelSpec, line: tuple[float, float], fraction: float) -> float:
        truth = self._truth
        took_s = (line[0] + line[1] * spec.weight_gb * GB * fraction) * self._swap_factor[spec.name]
        took_s *= max(self._rng.gauss(1.0, truth.swap_noise), 0.2)
        return took_s + (truth.stall_s if self._rng.random() < truth.stall_share else 0.0)

    def _kv_bytes(self, engine: Engine) -> float:
        tokens = sum(job.prompt_tokens + job.output_tokens / 2 for _, _, job in engine.ends)
        return tokens * engine.spec.kv_kb_per_token * 1000
