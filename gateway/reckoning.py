"""What models cost, in seconds of lateness, with given stays on given devices: as it is, and at the least. Pure.

The stays become windows (gateway/lateness.py): neighbours slow them down, and a model that lies nowhere at the end comes
beyond the horizon. Whatever was reckoned once is known. It must never choose anything: that is the search's.
"""

from collections.abc import Mapping, Sequence

from gateway.lateness import Window, lateness_s
from gateway.residency import NEVER, Device, PlanSettings, Residency, Tenant
from gateway.schedule import Draft, State, Stay
from predictor.cost import Place, SwapCosts

LOST_S = 1e6  # a pinned model that lies nowhere
COST_MIN = 1e-6


class Reckoning:
    """Of one planning. `loads` is the share of the time in which somebody runs on a model, `count` how often a cost was
    reckoned."""

    def __init__(self, view: Residency, costs: SwapCosts, settings: PlanSettings) -> None:
        self._prices, self._partial_min = settings.prices, settings.partial_min
        self._costs = costs
        self._devices = {device.name: device for device in view.devices}
        self._tenants = {tenant.name: tenant for tenant in view.tenants}
        self.loads = {tenant.name: tenant.load() for tenant in view.tenants}
        self.count = 0
        self._moves: dict[tuple[str, str, Place, Place], float] = {}
        self._known: dict[tuple[str, tuple[Stay, ...], tuple[float, ...]], float] = {}
        self._leasts: dict[tuple[str, tuple[Stay, ...], tuple[float, ...]], float] = {}

    def cost(self, name: str, stays: Mapping[str, tuple[Stay, ...]], on: Mapping[str, tuple[str, ...]]) -> float:
        """What a model costs with these stays of it, and these models at the end on each device."""
        mine = stays.get(name, ())
        return self._of(name, mine, tuple([self._shared(name, on[stay.device]) for stay in mine]))

    def _shared(self, name: str, there: Sequence[str]) -> float:
        """How many times as long it takes for who runs beside it: that slows its tokens, and so how soon slots come free."""
        shared = 1.0
        for other in there:
            if other != name:
                shared *= 1.0 + self.loads[other]
        return shared

    def _of(self, name: str, mine: tuple[Stay, ...], shared: tuple[float, ...]) -> float:
        """What it costs with these stays, each on a device that others slow down so much."""
        key = (name, mine, shared)
        found = self._known.get(key)
        if found is None:
            self.count += 1
            found = self._known[key] = self._reckon(self._tenants[name], mine, shared)
        return found

    def _reckon(self, tenant: Tenant, mine: tuple[Stay, ...], shared: tuple[float, ...]) -> float:
        there = any(stay.close_s == NEVER for stay in mine)
        lost_s = LOST_S if tenant.pinned and not there else 0.0
        if not tenant.demand.waiting and tenant.demand.rate_per_s <= 0:
            return lost_s
        windows = [self._window(tenant, stay, slower) for stay, slower in zip(mine, shared, strict=True)]
        if not there:
            windows.append(self._some_day(tenant))
        return lost_s + lateness_s(tenant.demand, windows, self._prices)

    def _window(self, tenant: Tenant, stay: Stay, shared: float) -> Window:
        service = tenant.service[self._devices[stay.device].host]
        slower = tenant.slowdown(stay.fraction)
        steady = service.steady_per_s / (slower * shared)
        return Window(stay.open_s, stay.close_s, stay.free_slots, max(service.start_per_s / slower, steady), steady)

    def _some_day(self, tenant: Tenant) -> Window:
        """Beyond the horizon it is loaded somewhere."""
        device = next(device for device in self._devices.values() if tenant.may_use(device))
        service = tenant.service[device.host]
        open_s = self._prices.horizon_s + self.move_s(tenant, device, place_of(tenant, device), "gpu")
        return Window(open_s, NEVER, service.slots, service.start_per_s, service.steady_per_s)

    def alone(self, state: State, draft: Draft) -> float:
        """What the model of a drafted step costs at the least after it: were nobody beside it."""
        name = draft.step.model
        if name in draft.step.leaves:
            return 0.0
        mine = (*state.stays.get(name, ()), draft.arrival)
        return self._of(name, mine, (1.0,) * len(mine))

    def crowd_s(self, state: State) -> float:
        """What those cost more who lie beside others than if they were alone where they are."""
        crowded = {name for there in state.on.values() if len(there) > 1 for name in there if state.costs[name] > COST_MIN}
        cost_s = 0.0
        for name in crowded:
            mine = state.stays[name]
            cost_s += state.costs[name] - self._of(name, mine, (1.0,) * len(mine))
        return cost_s

    def least(self, state: State) -> dict[str, float]:
        """What each model that is late costs at the least, whatever is done from there on: were it alone where it is, and on
        every device as soon as it can come there."""
        return {name: self._least(state, name) for name, cost_s in state.costs.items() if cost_s > COST_MIN}

    def _least(self, state: State, name: str) -> float:
        tenant, mine = self._tenants[name], state.stays.get(name, ())
        key = (name, mine, tuple(state.free_s.values()))
        found = self._leasts.get(key)
        if found is None:
            self.count += 1
            windows = [self._window(tenant, stay, 1.0) for stay in mine]
            for device in self._devices.values():
                if tenant.may_use(device):
                    service = tenant.service[device.host]
                    part = 1.0 if tenant.curve is None else self._partial_min
                    move_s = self.move_s(tenant, device, place_of(tenant, device), "gpu") * part
                    open_s = state.free_s[device.name] + move_s
                    windows.append(Window(open_s, NEVER, service.slots, service.start_per_s, service.steady_per_s))
            found = self._leasts[key] = lateness_s(tenant.demand, windows, self._prices)
        return found

    def move_s(self, tenant: Tenant, device: Device, start: Place, end: Place) -> float:
        """Expected seconds of that move."""
        key = (tenant.name, device.host, start, end)
        found = self._moves.get(key)
        if found is None:
            weights = tenant.footprint.weight_bytes
            found = self._moves[key] = self._costs.predict(tenant.name, weights, device.host, start, end).mean_s
        return found


def place_of(tenant: Tenant, device: Device) -> Place:
    """Where its weights lie on that device's host while it is off the GPU."""
    return tenant.places.get(device.host, "disk")
