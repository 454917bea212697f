"""What the swap planner reads and says: devices, models with their demand, who lies where; steps, plans, actions. Pure.

Times are seconds from now. A *step* brings one model onto one device: those that must leave are cut off (`cut_s`), drain
or are paused, go out, it comes in (`ready_s`); a *visit* ends at `until_s` and those that left come back. Mode `idle` waits
for a moment when nobody is there, expected at `cut_s`. It must never act: an executor carries out what is due and tells the
next view what became of it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gateway.lateness import Demand, Prices
from predictor.cost import Place
from predictor.offload import Footprint, OffloadCurve

NEVER = math.inf
Mode = Literal["drain", "idle", "preempt"]
Kind = Literal["load", "wake", "unload", "sleep", "pause", "resume", "prefetch"]


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or a group that models lie on together. `host` names its kind of machine for the costs."""

    name: str
    host: str
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Service:
    """How a model serves with all its layers on the device: requests at once, requests started per second while there is
    room, requests per second in the long run, and seconds from a request's start to its end."""

    slots: float
    start_per_s: float
    steady_per_s: float
    hold_s: float


@dataclass(frozen=True, slots=True)
class Tenant:
    """A model that may lie on a device. `service` is by host, `devices` are those allowed (empty: all), `places` where
    its weights lie on each host while it is off the GPU, `rest` where it goes when it leaves; `fetches` are the devices for
    which its weights can be brought nearer beforehand (None: all)."""

    name: str
    footprint: Footprint
    service: Mapping[str, Service]
    demand: Demand = field(default_factory=Demand)
    kv_tokens: float = 0.0
    devices: tuple[str, ...] = ()
    pinned: bool = False
    places: Mapping[str, Place] = field(default_factory=dict)
    rest: Place = "disk"
    curve: OffloadCurve | None = None
    fetches: tuple[str, ...] | None = None

    def may_use(self, device: Device) -> bool:
        """Whether it is allowed there and known to serve there."""
        return (not self.devices or device.name in self.devices) and device.host in self.service

    def load(self) -> float:
        """The share of the time in which somebody runs on a replica of it, with as many slots as requests."""
        hold_s = min(service.hold_s for service in self.service.values())
        return 1.0 if self.demand.waiting else 1.0 - math.exp(-self.demand.rate_per_s * hold_s)

    def slowdown(self, fraction: float) -> float:
        """How many times as long a token takes with that part of its layers on the device."""
        if fraction >= 1.0 or self.curve is None:
            return 1.0
        return self.curve.slowdown(fraction)


@dataclass(frozen=True, slots=True)
class Resident:
    """A model on a device. `running` requests, over in `drain_s` if no more are given; there for `since_s`; its load is
    over in `ready_s`; `kv_bytes` would go with it if it were paused. One that is `lost` has answered nobody for long: it may
    leave at once, however soon it is hoped to be there again. Where its requests may stay in its engine, those that run on for
    `pause_s` are paused; then `drain_s` is at most that, and `left` of them are expected to be."""

    model: str
    device: str
    fraction: float = 1.0
    running: int = 0
    drain_s: float = 0.0
    since_s: float = NEVER
    ready_s: float = 0.0
    kv_bytes: float = 0.0
    lost: bool = False
    pause_s: float = NEVER
    left: float = 0.0


@dataclass(frozen=True, slots=True)
class Residency:
    """All that a plan is made from. `busy_s` are devices with a swap under way, and seconds until it is over; `ram_bytes`
    is what each device's host may still keep of weights in memory."""

    devices: tuple[Device, ...]
    tenants: tuple[Tenant, ...]
    residents: tuple[Resident, ...]
    busy_s: Mapping[str, float] = field(default_factory=dict)
    ram_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """`dwell_s` is the least time on a device. A swap costs, beside what it does to requests, `swap_s` and `swap_weight` times
    the seconds of moving, and `churn` times those seconds times the rate that they displace; cutting off a busy model costs
    `interrupt_s`; and since what lateness will be is not known better, a step must save `doubt` of what the models that it
    moves cost as things are. The search is `steps` deep. With `width` 1 it is narrow, `looks` over the number of
    models its states in all; else it keeps up to so many states of each depth twice, and reckons so many costs at the most."""

    prices: Prices = field(default_factory=Prices)
    dwell_s: float = 1.0
    swap_s: float = 0.0
    swap_weight: float = 1.0
    churn: float = 1.0
    interrupt_s: float = 200.0
    doubt: float = 0.1
    steps: int = 3
    width: int = 200
    looks: int = 2400
    reckonings: int = 8000
    partial_min: float = 0.3
    preempt: bool = True


def narrow(settings: PlanSettings) -> PlanSettings:
    """For a plan that is made each second, beside all else: so quick that it may be."""
    return replace(settings, width=1, looks=300)


@dataclass(frozen=True, slots=True)
class Step:
    """See the module's words. `swap_s` is the time of moving weights, `saved_s` the cost that it takes away. Who still runs
    `pause_s` after the cut is paused (0: at once, infinite: nobody is)."""

    device: str
    model: str
    fraction: float
    leaves: tuple[str, ...]
    mode: Mode
    cut_s: float
    ready_s: float
    until_s: float
    swap_s: float
    saved_s: float = 0.0
    waiting: float = 0.0
    pause_s: float = NEVER


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do: `seconds` predicted, beginning in `at_s`, and why."""

    kind: Kind
    model: str
    device: str
    at_s: float
    seconds: float
    reason: str
    fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """Steps in the order of the search, and the expected cost with them and with none."""

    steps: tuple[Step, ...]
    cost_s: float
    idle_cost_s: float
    actions: tuple[Action, ...] = ()

    def due(self) -> tuple[Step, ...]:
        """The steps whose time has come."""
        return tuple(step for step in self.steps if step.cut_s <= 0)
