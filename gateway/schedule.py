"""The swap planner's own records: who may be given requests when, and what could be done next. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.residency import NEVER, Device, Mode, Step, Tenant


@dataclass(frozen=True, slots=True)
class Stay:
    """A model on a device from `open_s` to `close_s`. `cut_from_s` is when it may be cut off at the earliest; who still runs
    `pause_s` after that may be paused, expectedly `left` requests."""

    device: str
    fraction: float
    open_s: float
    close_s: float
    free_slots: float
    running: int
    drain_s: float
    cut_from_s: float
    kv_bytes: float = 0.0
    pause_s: float = NEVER
    left: float = 0.0


@dataclass(frozen=True, slots=True)
class Option:
    """A step that could be taken. `guess` orders options before they are reckoned: lower looks better. `left` is the
    share of the device's memory that stays free."""

    tenant: Tenant
    device: Device
    leaves: tuple[str, ...]
    fraction: float
    mode: Mode
    cut_s: float
    visit: bool
    guess: float
    left: float


@dataclass(frozen=True, slots=True)
class Draft:
    """A step whose cost is not reckoned yet: the stay that it begins, when those who left come back (infinite: they do not),
    and what all steps so far cost beside lateness."""

    step: Step
    arrival: Stay
    back_s: float
    extra_s: float


@dataclass(frozen=True, slots=True)
class Room:
    """A device at the end of a schedule: who lies there, of what size, who may leave (least asked for first), what is free."""

    device: Device
    present: Mapping[str, Stay]
    sizes: Mapping[str, float]
    movable: Sequence[str]
    free: float


@dataclass(frozen=True, slots=True)
class State:
    """A schedule. `on` says who lies on each device at its end, `free_s` when that device's swaps are over."""

    stays: Mapping[str, tuple[Stay, ...]]
    on: Mapping[str, tuple[str, ...]]
    free_s: Mapping[str, float]
    costs: Mapping[str, float]
    extra_s: float
    cost_s: float
    steps: tuple[Step, ...]
    trail: tuple[float, ...]


def lies(stay: Stay, device: Device) -> bool:
    """Whether it is the stay there that does not end."""
    return stay.device == device.name and stay.close_s == NEVER
