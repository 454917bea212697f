"""The swap planner's own records: who may be given requests when, and what could be done next. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.residency import NEVER, Device, Mode, Step, Tenant

HOPE = 0.9  # of one model's cost, by a further step


@dataclass(frozen=True, slots=True)
class Stay:
    """A model on a device from `open_s` to `close_s`. `cut_from_s` is when it may be cut off at the earliest."""

    device: str
    fraction: float
    open_s: float
    close_s: float
    free_slots: float
    running: int
    drain_s: float
    cut_from_s: float
    kv_bytes: float = 0.0


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


def hoped(state: State, steps: int) -> float:
    """What it would cost if each further step took most of one model's cost away: what was displaced may be brought back."""
    return state.cost_s - HOPE * sum(sorted(state.costs.values(), reverse=True)[:steps])


def distinct(states: Sequence[State], width: int) -> list[State]:
    """One of each set of steps: the first so many, and of each model's last step to each device the first."""
    found: list[State] = []
    seen: set[frozenset[Step]] = set()
    last: set[tuple[str, str]] = set()
    for state in states:
        key, move = frozenset(state.steps), (state.steps[-1].device, state.steps[-1].model)
        if key not in seen and (len(seen) < width or (width > 1 and move not in last)):
            seen.add(key)
            last.add(move)
            found.append(state)
    return found
