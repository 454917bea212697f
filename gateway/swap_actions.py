"""A swap plan as single actions, each with its seconds and its reason; and what to bring nearer while the bus is idle. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from gateway.residency import NEVER, Action, Device, Kind, PlanSettings, Residency, Step, SwapPlan, Tenant
from gateway.swap_search import best
from gateway.swaps import Planner
from predictor.cost import Place, SwapCosts

SLEEPING: tuple[Place, ...] = ("asleep1", "asleep2")
FAR: tuple[Place, ...] = ("disk", "snapshot")


def plan(view: Residency, costs: SwapCosts, settings: PlanSettings) -> SwapPlan:
    """What to do now and next, action by action."""
    found = best(Planner(view, costs, settings))
    writer = _Writer(view, costs)
    actions = [action for step in found.steps for action in writer.of_step(step)]
    return replace(found, actions=(*actions, *writer.prefetches(found)))


def read_ahead(view: Residency, costs: SwapCosts) -> tuple[Action, ...]:
    """While nothing is to be moved: what to bring nearer."""
    return tuple(_Writer(view, costs).prefetches(SwapPlan((), 0.0, 0.0)))


class _Writer:
    """Puts steps into words."""

    def __init__(self, view: Residency, costs: SwapCosts) -> None:
        self._view = view
        self._costs = costs
        self._tenants = {tenant.name: tenant for tenant in view.tenants}
        self._devices = {device.name: device for device in view.devices}

    def of_step(self, step: Step) -> Iterator[Action]:
        """Who goes, who comes, and after a visit the other way round."""
        device, paused = self._devices[step.device], step.mode == "preempt"
        at_s, reason = step.cut_s, f"makes room for {step.model}"
        if 0 < step.pause_s < NEVER:
            reason += f"; what still runs there {step.pause_s:.0f} s later is paused"
        for name in step.leaves:
            yield self._out(name, device, at_s, reason, paused)
        yield self._in(step.model, device, step.ready_s, why(step), step.fraction)
        if step.until_s == NEVER:
            return
        at_s = step.until_s + self._tenants[step.model].service[device.host].hold_s
        yield self._out(step.model, device, at_s, "its visit is over", paused=False)
        for name in step.leaves:
            if self._tenants[name].demand.rate_per_s > 0 or self._tenants[name].demand.waiting or paused:
                back = self._in(name, device, NEVER, f"comes back after {step.model}", 1.0, self._tenants[name].rest)
                yield replace(back, at_s=at_s, kind="resume" if paused else back.kind)

    def _out(self, name: str, device: Device, at_s: float, reason: str, paused: bool) -> Action:
        tenant = self._tenants[name]
        kind: Kind = "pause" if paused else "sleep" if tenant.rest in SLEEPING else "unload"
        seconds = self._costs.predict(name, tenant.footprint.weight_bytes, device.host, "gpu", tenant.rest).mean_s
        return Action(kind, name, device.name, at_s, seconds, reason)

    def _in(
        self, name: str, device: Device, ready_s: float, reason: str, fraction: float, place: Place | None = None
    ) -> Action:
        tenant = self._tenants[name]
        start = place or tenant.places.get(device.host, "disk")
        seconds = self._costs.predict(name, tenant.footprint.weight_bytes, device.host, start, "gpu").mean_s * fraction
        return Action("wake" if start in SLEEPING else "load", name, device.name, ready_s - seconds, seconds, reason, fraction)

    def prefetches(self, plan: SwapPlan) -> Iterator[Action]:
        """Weights from the disk into memory, most saved seconds per byte first, where nothing is read just now."""
        reading = {step.device for step in plan.steps if step.cut_s <= 0} | {
            name for name, s in self._view.busy_s.items() if s > 0
        }
        there = {(resident.model, resident.device) for resident in self._view.residents}
        for device in self._view.devices:
            room = self._view.ram_bytes.get(device.name, 0.0)
            if device.name in reading or room <= 0:
                continue
            best = max(
                (tenant for tenant in self._view.tenants if self._worth(tenant, device, room, there) > 0),
                key=lambda tenant: self._worth(tenant, device, room, there),
                default=None,
            )
            if best is not None:
                weights = best.footprint.weight_bytes
                seconds = self._costs.predict(best.name, weights, device.host, "disk", "ram").mean_s
                reason = f"{best.demand.rate_per_s:.3g} per s come, and its weights are far"
                yield Action("prefetch", best.name, device.name, 0.0, seconds, reason)

    def _worth(self, tenant: Tenant, device: Device, room: float, there: set[tuple[str, str]]) -> float:
        """Seconds saved per second and byte."""
        place, weights = tenant.places.get(device.host, "disk"), tenant.footprint.weight_bytes
        if place not in FAR or weights > room or (tenant.name, device.name) in there or not tenant.may_use(device):
            return 0.0
        if tenant.fetches is not None and device.name not in tenant.fetches:
            return 0.0
        far = self._costs.predict(tenant.name, weights, device.host, place, "gpu").mean_s
        near = self._costs.predict(tenant.name, weights, device.host, "ram", "gpu").mean_s
        return tenant.demand.rate_per_s * (far - near) / weights


def why(step: Step) -> str:
    """A planned step's reason."""
    who = f"{step.waiting:.0f} wait" if step.waiting else "more will come"
    part = "" if step.fraction >= 1 else f", {step.fraction:.0%} of its layers fit"
    return f"{who}{part}; saves {step.saved_s:.1f} s of lateness for {step.swap_s:.1f} s of swaps"
