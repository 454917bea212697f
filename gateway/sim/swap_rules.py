"""Rules for many models on few GPUs as they are found elsewhere, re-stated in their own words. Pure.

| rule | whose model comes next | who must leave | when |
|---|---|---|---|
| fifo | the oldest waiting request's | longest unused | at once |
| collate | the same | least bytes, of those with nothing to do | when they have nothing to do (llama-swap since 2026) |
| partition | the same, on the model's own device | longest unused | when nobody waits for them |
| lru | the oldest waiting request's | longest unused | after a least stay |
| qlm | the group with the earliest deadline | the group that is served out | at the end of a group |

All give requests to engines that are there in order of arrival, keep as many models on a device as fit, and drain.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from gateway.lateness import turn
from gateway.sim.swap_scenario import SwapScenario
from gateway.sim.swap_world import Engine, Gpu, Job, World, footprint, kv_tokens

Decide = Callable[[], None]
TurnOf = Callable[[Job], tuple[int, float]]
AGED = 0.7  # of the longest wait that may happen: from then on nobody overtakes


def feed(world: World, turn_of: TurnOf | None = None) -> None:
    """Start whoever waits where there is a slot, on the emptiest engine first; as they came, or the lowest turn first."""
    for model, queue in world.waiting.items():
        if not queue:
            continue
        engines = [engine for engine in world.engines(model) if engine.free > 0]
        while queue and engines:
            engine = max(engines, key=lambda engine: engine.free)
            if turn_of is not None:
                first = min(queue, key=turn_of)
                queue.remove(first)
                queue.appendleft(first)
            world.start(engine)
            if engine.free <= 0:
                engines.remove(engine)


def turns(world: World, scenario: SwapScenario) -> TurnOf:
    """The order by deadlines of gateway/lateness.py, as the gateway's line keeps it. The rules below do without."""

    def turn_of(job: Job) -> tuple[int, float]:
        spec = world.models[job.model]
        latest_s = job.arrived_s + job.ttft_target_s - spec.prompt_tokens * spec.prompt_us * 1e-6
        return turn(world.now_s, job.arrived_s, latest_s, AGED * scenario.starve_s)

    return turn_of


def stranded(world: World) -> list[str]:
    """Models that somebody waits for and that lie nowhere and come nowhere, the one with the oldest request first."""
    found = [name for name, queue in world.waiting.items() if queue and not any(map(_serving, world.engines(name)))]
    return sorted(found, key=lambda name: world.waiting[name][0].arrived_s)


def _serving(engine: Engine) -> bool:
    return engine.phase in ("open", "in")


def room(world: World, gpu: Gpu, model: str) -> float:
    """Bytes that are missing for the model there."""
    spec = world.models[model]
    return footprint(spec).resident_bytes(1.0, kv_tokens(spec)) - (gpu.host.memory_bytes - gpu.taken_bytes())


def leavers(world: World, gpu: Gpu, model: str, order: Sequence[Engine]) -> list[Engine] | None:
    """The first so many of `order` whose leaving makes room; None where all together do not."""
    missing, found = room(world, gpu, model), []
    for engine in order:
        if missing <= 0:
            break
        missing -= footprint(engine.spec).resident_bytes(engine.fraction, kv_tokens(engine.spec))
        found.append(engine)
    return found if missing <= 0 else None


def unused(engine: Engine) -> float:
    """For the order: the longest unused first."""
    return engine.used_s


def nothing_to_do(world: World, gpu: Gpu) -> list[Engine]:
    """Engines there that nobody uses or waits for, the smallest first."""
    found = [e for e in gpu.engines if not e.running and not world.waiting[e.spec.name]]
    return sorted(found, key=lambda engine: engine.spec.weight_gb)


def bring(world: World, model: str, gpus: Sequence[Gpu], order: Callable[[Gpu], list[Engine]]) -> bool:
    """Swap it in where the fewest bytes must leave and the fewest run."""
    best: tuple[tuple[int, int], Gpu, list[Engine]] | None = None
    for gpu in gpus:
        leaves = None if gpu.swapping else leavers(world, gpu, model, order(gpu))
        if leaves is not None:
            price = (sum(engine.running for engine in leaves), len(leaves))
            if best is None or price < best[0]:
                best = (price, gpu, leaves)
    if best is not None:
        world.swap(best[1], model, best[2])
    return best is not None


def fifo(world: World, scenario: SwapScenario, rng: Random) -> Decide:
    """On demand, in order of arrival."""

    def decide() -> None:
        feed(world)
        for model in stranded(world):
            bring(world, model, world.gpus, lambda gpu: sorted(gpu.engines, key=unused))

    return decide


def collate(world: World, scenario: SwapScenario, rng: Random) -> Decide:
    """Requests of the model that is there first."""
    return _collating(world, None)


def collate_by_turn(world: World, scenario: SwapScenario, rng: Random) -> Decide:
    """The same with our order of requests, to tell what the order gives and what the planner. No peer does it."""
    return _collating(world, turns(world, scenario))


def _collating(world: World, turn_of: TurnOf | None) -> Decide:
    def decide() -> None:
        feed(world, turn_of)
        for model in stranded(world):
            bring(world, model, world.gpus, lambda gpu: nothing_to_do(world, gpu))

    return decide


def partition(world: World, scenario: SwapScenario, rng: Random) -> Decide:
    """Each model has one device: the heaviest load first, each to the device with the least."""
    homes: dict[str, Gpu] = {}
    loads = {gpu.name: 0.0 for gpu in world.gpus}
    for spec in sorted(scenario.models, key=lambda spec: -spec.share * spec.output_tokens * spec.base_ms):
        gpu = min(world.gpus, key=lambda gpu: loads[gpu.name])
        homes[spec.name] = gpu
        loads[gpu.name] += spec.share * spec.output_tokens * spec.base_ms

    def served(gpu: Gpu) -> list[Engine]:
        return sorted((e for e in gpu.engines if not world.waiting[e.spec.name]), key=unused)

    def decide() -> None:
        feed(world)
        for model in stranded(world):
            bring(world, model, (homes[model],), served)

    return decide


def lru(world: World, scenario: SwapScenario, rng: Random) -> Decide:
    """Who has been there long enough may be sent away."""

    def settled(gpu: Gpu) -> list[Engine]:
        return sorted((e for e in gpu.engines if world.now_s - e.since_s >= scenario.dwell_s), key=unused)

    def decide() -> None:
        feed(world)
        for model in stranded(world):
            if not bring(world, model, world.gpus, settled):
                soonest = [e.since_s for gpu in world.gpus for e in gpu.engines if e.since_s + scenario.dwell_s > world.now_s]
                if soonest:
                    world.at(min(soonest) + scenario.dwell_s, lambda: None)

    return decide


def qlm(world: World, scenario: SwapScenario, rng: Random) -> Decide:
    """Groups by model; a group is who waits when its model comes, and is served out before the next one's turn."""
    groups: dict[Engine, float] = {}  # when the group of an engine was formed

    def urgent(model: str) -> float:
        return min(job.arrived_s + job.ttft_target_s for job in world.waiting[model])

    def served_out(gpu: Gpu, deadline_s: float) -> list[Engine]:
        found = []
        for engine in gpu.engines:
            queue = world.waiting[engine.spec.name]
            formed_s = groups.setdefault(engine, engine.since_s)
            if queue and queue[0].arrived_s <= formed_s:
                continue
            if queue and urgent(engine.spec.name) <= deadline_s:
                groups[engine] = world.now_s
                continue
            found.append(engine)
        return sorted(found, key=unused)

    def decide() -> None:
        feed(world)
        for model in sorted(stranded(world), key=urgent):
            deadline_s = urgent(model)
            bring(world, model, world.gpus, lambda gpu, deadline_s=deadline_s: served_out(gpu, deadline_s))  # type: ignore[misc]

    return decide


RULES: Mapping[str, Callable[[World, SwapScenario, Random], Decide]] = {
    "fifo": fifo,
    "collate": collate,
    "partition": partition,
    "lru": lru,
    "qlm": qlm,
}
