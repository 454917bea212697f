"""The swap planner: from who lies where, what is asked for and what swaps cost, to steps. Pure.

A state is a schedule of who may be given requests when; its cost is each model's expected lateness under its windows
(gateway/lateness.py), plus swap seconds times the rate that they displace. A search (gateway/swap_search.py) adds one step at
a time: the latest models onto each device, over those whose leaving makes room, cut off now or once their queue has started,
drained or paused; staying there or for a visit; or beside the others with a part of the layers, where the curve says so.
Only the models that a step touches are reckoned anew. Who shares a device's time with whom is told by who lies there at
the end of a schedule, so a short stay beside others looks dear while it lasts in the plan, and free once it ends.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from gateway.reckoning import COST_MIN, Reckoning, place_of
from gateway.residency import NEVER, Device, Mode, PlanSettings, Residency, Resident, Service, Step, SwapPlan, Tenant
from gateway.schedule import Draft, Option, Room, State, Stay, lies
from predictor.cost import SwapCosts

MODELS_MAX = 12  # beyond so many the search is narrow, and looks only at the LATEST models
LATEST = 4
BUSY_MAX = 4.0  # requests at once, beyond which a replica is hardly ever idle
LOAD_S = 2.0  # what a load costs that sends nobody away
TIGHT_S = 10.0  # the tighter fit keeps room for the larger models
LEAVER_S = 0.2  # an empty place is better than one where nobody is missed


class Planner:
    """One planning. `searched` counts the states that were reckoned."""

    def __init__(self, view: Residency, costs: SwapCosts, settings: PlanSettings) -> None:
        self.settings = settings
        self.reckoning = Reckoning(view, costs, settings)
        self._devices = {device.name: device for device in view.devices}
        self._tenants = {tenant.name: tenant for tenant in view.tenants}
        self._loads = self.reckoning.loads
        self._whole = {name: self._bytes(name, 1.0) for name in self._tenants}
        self.root = self._root(view)
        self.searched = 0

    def plan_of(self, state: State) -> SwapPlan:
        """A state as what is to be done."""
        costs = (*state.trail, state.cost_s)
        steps = tuple(replace(step, saved_s=costs[i] - costs[i + 1]) for i, step in enumerate(state.steps))
        return SwapPlan(steps, state.cost_s, self.root.cost_s)

    # -- states

    def _root(self, view: Residency) -> State:
        stays: dict[str, tuple[Stay, ...]] = {}
        on: dict[str, tuple[str, ...]] = {device.name: () for device in view.devices}
        for resident in view.residents:
            stay = self._stay_of(resident)
            stays[resident.model] = (*stays.get(resident.model, ()), stay)
            on[resident.device] = (*on[resident.device], resident.model)
        free_s = {device.name: view.busy_s.get(device.name, 0.0) for device in view.devices}
        costs = {name: self.reckoning.cost(name, stays, on) for name in self._tenants}
        return State(stays, on, free_s, costs, 0.0, sum(costs.values()), (), ())

    def _stay_of(self, resident: Resident) -> Stay:
        tenant = self._tenants[resident.model]
        service = tenant.service[self._devices[resident.device].host]
        idle = resident.lost or not (resident.running or tenant.demand.waiting)
        dwell_s = 0.0 if idle else max(self.settings.dwell_s - resident.since_s, 0.0)
        return Stay(
            resident.device,
            resident.fraction,
            resident.ready_s,
            NEVER,
            max(service.slots - resident.running, 0.0),
            resident.running,
            resident.drain_s,
            0.0 if resident.lost else max(dwell_s, resident.ready_s),
            resident.kv_bytes,
            resident.pause_s,
            resident.left,
        )

    # -- steps

    def options(self, state: State) -> Iterator[Option]:
        """What may be worth a step: of many models, only for the latest."""
        late = [name for name, cost_s in state.costs.items() if cost_s > COST_MIN]
        wide = len(self._tenants) <= MODELS_MAX
        if not wide and len(late) > LATEST:
            late.sort(key=lambda name: -state.costs[name])
            del late[LATEST:]
        rooms = self._rooms(state)
        for name in late:
            yield from self.options_for(state, name, wide, rooms)

    def _rooms(self, state: State) -> list[Room]:
        found = []
        for device in self._devices.values():
            present = {name: self._present(state, name, device) for name in state.on[device.name]}
            sizes = {name: self._bytes(name, stay.fraction) for name, stay in present.items()}
            movable = sorted((name for name in present if not self._tenants[name].pinned), key=self._loads.__getitem__)
            found.append(Room(device, present, sizes, movable, device.memory_bytes - sum(sizes.values())))
        return found

    def options_for(self, state: State, name: str, wide: bool = True, rooms: Sequence[Room] | None = None) -> Iterator[Option]:
        """Every way to bring this model somewhere. `wide` also looks at all sets that leave, and at waiting a while."""
        tenant = self._tenants[name]
        for room in self._rooms(state) if rooms is None else rooms:
            present = room.present.get(name)
            if not tenant.may_use(room.device) or (present is not None and present.fraction >= 1.0):
                continue
            if present is not None and present.open_s > 0:
                continue  # a part of its layers only just loaded, or planned to be
            own = (name,) if present is not None else ()
            free = room.free + (room.sizes[name] if own else 0.0)
            if self._whole[name] <= free:
                yield from self._visits_and_moves(state, tenant, room, own, 1.0, wide)
                continue
            if tenant.curve is not None and not own:
                yield from self._beside(state, tenant, room)
            for leaves, gone in self._leavers(room, name, self._whole[name] - free, wide):
                fraction = 1.0
                if free + gone < self._whole[name]:
                    fraction = tenant.footprint.largest_fraction(free + gone, tenant.kv_tokens)
                if fraction >= 1.0 or self._may_part(tenant, fraction):
                    yield from self._visits_and_moves(state, tenant, room, (*own, *leaves), fraction, wide)

    def _may_part(self, tenant: Tenant, fraction: float) -> bool:
        return tenant.curve is not None and fraction >= self.settings.partial_min

    def _beside(self, state: State, tenant: Tenant, room: Room) -> Iterator[Option]:
        fraction = tenant.footprint.largest_fraction(room.free, tenant.kv_tokens)
        if self._may_part(tenant, fraction):
            yield self._option(state, tenant, room, (), fraction, "drain", state.free_s[room.device.name], visit=False)

    def _leavers(self, room: Room, name: str, needed: float, wide: bool) -> Iterator[tuple[tuple[str, ...], float]]:
        """The smallest sets whose leaving makes room for the whole model, and else all; with the bytes that leave."""
        movable = [other for other in room.movable if other != name]
        for count in range(1, len(movable) + 1):
            found = False
            for leaves in combinations(movable, count):
                gone = sum([room.sizes[other] for other in leaves])
                if gone >= needed:
                    found = True
                    yield leaves, gone
                    if not wide:
                        return
            if found:
                return
        if movable:
            yield tuple(movable), sum([room.sizes[other] for other in movable])

    def _visits_and_moves(
        self, state: State, tenant: Tenant, room: Room, leaves: tuple[str, ...], fraction: float, wide: bool
    ) -> Iterator[Option]:
        cut_s, paused, asked = state.free_s[room.device.name], 0, 0.0
        for other in leaves:
            stay = room.present[other]
            cut_s = max(cut_s, stay.cut_from_s)
            paused += stay.running
            asked += self._loads[other]
        yield self._option(state, tenant, room, leaves, fraction, "drain", cut_s, visit=False)
        if tenant.name in leaves or asked <= 0:
            return
        yield self._option(state, tenant, room, leaves, fraction, "drain", cut_s, visit=True)
        idle_s = self._idle_s(room, leaves)
        if max(idle_s, cut_s) < self.settings.prices.horizon_s:
            yield self._option(state, tenant, room, leaves, fraction, "idle", max(idle_s, cut_s), visit=False)
            if wide:
                yield self._option(state, tenant, room, leaves, fraction, "idle", max(idle_s, cut_s), visit=True)
        if self.settings.preempt and paused and not any(_elsewhere(state, other) for other in leaves):
            yield self._option(state, tenant, room, leaves, fraction, "preempt", cut_s, visit=True)
        later_s = max(self._started_s(state, other, room.device) for other in leaves) if wide else 0.0
        if later_s > 0:
            yield self._option(state, tenant, room, leaves, fraction, "drain", cut_s + later_s, visit=False)
            yield self._option(state, tenant, room, leaves, fraction, "drain", cut_s + later_s, visit=True)

    def _idle_s(self, room: Room, leaves: tuple[str, ...]) -> float:
        """Until nobody waits for or runs on any of these: the mean busy period of a queue with a server for each request."""
        rate, busy, begin_s = 0.0, 0.0, 0.0
        for other in leaves:
            tenant, stay = self._tenants[other], room.present[other]
            hold_s = tenant.service[room.device.host].hold_s
            rate += tenant.demand.rate_per_s
            busy += tenant.demand.rate_per_s * hold_s
            waits_s = _serving_s(tenant.demand.count, stay.free_slots, tenant.service[room.device.host])
            begin_s = max(begin_s, stay.drain_s, waits_s + hold_s if tenant.demand.waiting else 0.0)
        if begin_s <= 0 or rate <= 0:
            return begin_s
        return NEVER if busy > BUSY_MAX else max((math.exp(busy) - 1) / rate, begin_s)

    def _option(
        self,
        state: State,
        tenant: Tenant,
        room: Room,
        leaves: tuple[str, ...],
        fraction: float,
        mode: Mode,
        cut_s: float,
        visit: bool,
    ) -> Option:
        """With a rough guess: what the model's cost falls by, were it there when it can be, and what the others lose."""
        device, horizon_s = room.device, self.settings.prices.horizon_s
        begin_s = cut_s + self.reckoning.move_s(tenant, device, place_of(tenant, device), "gpu")
        harm, drain_s = 0.0, 0.0
        for other in leaves:
            drain_s = max(drain_s, room.present[other].drain_s)
            harm += self._loads[other]
        if mode == "drain":
            begin_s += drain_s
        elif mode == "idle":
            harm *= 0.5
        harm *= horizon_s * (0.4 if visit else 1.0) * (2.0 if mode == "preempt" else 1.0)
        guess = harm - state.costs[tenant.name] * max(1 - begin_s / horizon_s, 0.0) * fraction
        gone = sum([room.sizes[other] for other in leaves])
        left = max(room.free + gone - self._whole[tenant.name], 0.0) / device.memory_bytes
        return Option(tenant, device, leaves, fraction, mode, cut_s, visit, guess, left)

    def _started_s(self, state: State, name: str, device: Device) -> float:
        """Seconds until all who wait for it have started."""
        stay, tenant = self._present(state, name, device), self._tenants[name]
        return _serving_s(tenant.demand.count, stay.free_slots, tenant.service[device.host])

    def after(self, state: State, option: Option) -> State:
        """The state with that step taken."""
        return self.reckoned(state, self.draft(state, option))

    def draft(self, state: State, option: Option) -> Draft:
        """That step with its times and what it costs beside lateness."""
        tenant, device, leaves, cut_s = option.tenant, option.device, option.leaves, option.cut_s
        service, slower = tenant.service[device.host], tenant.slowdown(option.fraction)
        hold_s = service.hold_s * slower
        swap_s = self.reckoning.move_s(tenant, device, place_of(tenant, device), "gpu") * option.fraction
        displaced = 0.0
        for other in leaves:
            swap_s += self.reckoning.move_s(self._tenants[other], device, "gpu", self._tenants[other].rest)
            displaced += self._tenants[other].demand.rate_per_s
        drain_s, pause_s, paused = self._leave(state, option)
        ready_s = cut_s + swap_s + (drain_s if option.mode == "drain" else 0.0)
        until_s, back_s = NEVER, NEVER
        if option.visit:
            until_s = ready_s + max(self.settings.dwell_s, _serving_s(tenant.demand.count, service.slots, service) * slower)
            return_s = self.reckoning.move_s(tenant, device, "gpu", tenant.rest)
            for other in leaves:
                return_s += self.reckoning.move_s(self._tenants[other], device, self._tenants[other].rest, "gpu")
            back_s = until_s + hold_s + return_s
            swap_s += return_s
        settings = self.settings
        extra_s = state.extra_s + settings.churn * swap_s * displaced
        extra_s += (settings.swap_s if leaves else LOAD_S) * (2 if option.visit else 1)
        extra_s += settings.swap_weight * swap_s if leaves else 0.0  # the device serves nobody new meanwhile
        extra_s += TIGHT_S * option.left + LEAVER_S * len(leaves) + (settings.interrupt_s if drain_s > 0 else 0.0)
        if option.fraction < 1:  # their answers take longer
            come = tenant.demand.rate_per_s * max(min(settings.prices.horizon_s, until_s) - ready_s, 0.0)
            extra_s += (tenant.demand.count + come) * (hold_s - service.hold_s)
        extra_s += paused * (settings.prices.miss_s + min(back_s - cut_s, settings.prices.horizon_s))
        if leaves:
            extra_s += settings.doubt * sum([self.root.costs[name] for name in (tenant.name, *leaves)])
        arrival = Stay(device.name, option.fraction, ready_s, until_s, service.slots, 0, hold_s, ready_s + settings.dwell_s)
        step = Step(
            device.name,
            tenant.name,
            option.fraction,
            leaves,
            option.mode,
            cut_s,
            ready_s,
            until_s,
            swap_s,
            0.0,
            tenant.demand.count,
            pause_s,
        )
        return Draft(step, arrival, back_s, extra_s)

    def _leave(self, state: State, option: Option) -> tuple[float, float, float]:
        """How those leave that must: seconds until they are empty, after how many seconds who still runs is paused, and how
        many are."""
        if option.mode == "idle":
            return 0.0, NEVER, 0.0
        device, drain_s, paused = option.device, 0.0, 0.0
        pause_s = 0.0 if option.mode == "preempt" else NEVER
        may_pause = self.settings.preempt and not any(_elsewhere(state, other) for other in option.leaves)
        for other in option.leaves:
            stay = self._present(state, other, device)
            drain_s = max(drain_s, self._drain_s(stay, other, device, option.cut_s))
            if option.mode == "preempt":
                paused += stay.running
            elif may_pause and option.cut_s <= 0 and stay.running:
                pause_s = min(pause_s, stay.pause_s)
                paused += stay.left
        return drain_s, pause_s, paused

    def reckoned(self, state: State, draft: Draft) -> State:
        """The state with a drafted step taken."""
        self.searched += 1
        step, back_s, extra_s = draft.step, draft.back_s, draft.extra_s
        device = self._devices[step.device]
        stays, on = dict(state.stays), state.on
        for other in step.leaves:
            stays[other] = self._left(stays[other], self._tenants[other], device, step, back_s)
        stays[step.model] = (*stays.get(step.model, ()), draft.arrival)
        if back_s == NEVER:
            on = {**on, step.device: (*(other for other in on[step.device] if other not in step.leaves), step.model)}
        free_s = {**state.free_s, step.device: back_s if back_s < NEVER else step.ready_s}
        costs = dict(state.costs)
        touched = {step.model, *step.leaves, *on[step.device]}
        for earlier in state.steps:
            if earlier.device == step.device:  # who lay there before shares its time with whom lies there in the end
                touched.update(earlier.leaves, (earlier.model,))
        for name in touched:
            costs[name] = self.reckoning.cost(name, stays, on)
        total_s = sum(costs.values()) + extra_s
        return State(stays, on, free_s, costs, extra_s, total_s, (*state.steps, step), (*state.trail, state.cost_s))

    def _left(self, stays: tuple[Stay, ...], leaver: Tenant, device: Device, step: Step, back_s: float) -> tuple[Stay, ...]:
        """A leaver's stays: closed at the cut, and open again when it comes back from a visit."""
        changed: list[Stay] = []
        for stay in stays:
            if not lies(stay, device):
                changed.append(stay)
                continue
            if stay.open_s < step.cut_s:
                changed.append(replace(stay, close_s=step.cut_s))
            if back_s < NEVER:
                service = leaver.service[device.host]
                running = stay.running if step.mode == "preempt" else 0
                again_s = back_s + self.settings.dwell_s
                changed.append(Stay(device.name, stay.fraction, back_s, NEVER, service.slots, running, service.hold_s, again_s))
        return tuple(changed)

    # -- what a model is on a device

    def _present(self, state: State, name: str, device: Device) -> Stay:
        return next(stay for stay in state.stays[name] if lies(stay, device))

    def _drain_s(self, stay: Stay, name: str, device: Device, cut_s: float) -> float:
        """Those that run when it is cut off: the ones of now if that is now, else as long as a request takes."""
        if cut_s <= 0:
            return stay.drain_s
        asked = self._loads[name] > 0 or stay.running
        return self._tenants[name].service[device.host].hold_s if asked else 0.0

    def _bytes(self, name: str, fraction: float) -> float:
        tenant = self._tenants[name]
        return tenant.footprint.resident_bytes(fraction, tenant.kv_tokens)


def _elsewhere(state: State, name: str) -> bool:
    """Whether it lies on several devices: requests that are paused on one of them are not served by the others."""
    return sum([stay.close_s == NEVER for stay in state.stays[name]]) > 1


def _serving_s(count: float, slots: float, service: Service) -> float:
    """Seconds until so many have started."""
    return min(count, slots) / service.start_per_s + max(count - slots, 0.0) / service.steady_per_s
