"""Random devices, models, queues and residents for the swap planner's tests and its bench."""

import random

from gateway.lateness import Demand
from gateway.residency import Device, Residency, Resident, Service, Tenant
from predictor.offload import Footprint, from_ends

SIZES_GB = (6.2, 9.0, 16.4, 29.5)


def tenant(name: str, rng: random.Random, busy: float) -> Tenant:
    """A model; `busy` is the chance that somebody wants it."""
    size = rng.choice(SIZES_GB)
    service = Service(8.0, 6.0, rng.uniform(1.0, 3.0), rng.uniform(3.0, 12.0))
    waiting: tuple[tuple[float, float], ...] = ()
    rate, oldest_s = 0.0, 0.0
    if rng.random() < busy:
        rate = rng.choice((0.02, 0.1, 0.3, 0.8))
        groups = [(float(rng.randint(1, 6)), rng.uniform(-5, 30)) for _ in range(rng.randint(0, 2))]
        waiting = tuple(sorted(groups, key=lambda group: group[1]))
        oldest_s = rng.uniform(0, 40) if waiting else 0.0
    curve = from_ends(40.0, 4.0) if rng.random() < 0.5 else None
    return Tenant(
        name,
        Footprint(size * 1e9, 1e5, 32, 1e9),
        {"rtx-5000-ada": service, "a6000": service},
        Demand(waiting, rate, 10.0, oldest_s),
        kv_tokens=8000,
        curve=curve,
    )


def fleet(seed: int, devices: int, models: int, busy: float = 0.9) -> Residency:
    """A view with residents that fit."""
    rng = random.Random(seed)
    kinds = {"rtx-5000-ada": 32e9, "a6000": 48e9}
    hosts = [rng.choice(list(kinds)) for _ in range(devices)]
    places = tuple(Device(f"d{i}", host, kinds[host]) for i, host in enumerate(hosts))
    tenants = tuple(tenant(f"m{i}", rng, busy) for i in range(models))
    residents = []
    for device in places:
        free = device.memory_bytes
        for one in rng.sample(tenants, min(3, models)):
            if one.footprint.fits(free, 1.0, one.kv_tokens) and rng.random() < 0.8:
                free -= one.footprint.resident_bytes(1.0, one.kv_tokens)
                running = rng.randint(0, 6) if one.demand.rate_per_s else 0
                drain_s = rng.uniform(1, 12) if running else 0.0
                residents.append(Resident(one.name, device.name, 1.0, running, drain_s, rng.uniform(0, 60)))
    return Residency(places, tenants, tuple(residents))
