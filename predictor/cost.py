"""Seconds that a model needs to change its place: GPU, asleep, memory, disk. Pure.

    T = fixed + weight bytes / bandwidth + KV bytes / PCIe bandwidth,   of the transition and the host

The study of many models on few GPUs found just that: the penalty depends on the weights and the hardware, not on how far
a request has come, and KV is a small part of it. Profiles give a prior for each host; every real swap corrects, first the
line that all models of a host share (so that two sizes foretell a third), then the model's own ratio to it. It must never
do the swap or know how.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from predictor.belief import LinearBelief
from predictor.kept import Kept, KeptError, State

Place = Literal["gpu", "asleep1", "asleep2", "ram", "cache", "disk", "snapshot"]
PLACES: tuple[Place, ...] = ("gpu", "asleep1", "asleep2", "ram", "cache", "disk", "snapshot")
GB = 1e9
Z90 = 1.2816
NOISE = 0.15  # relative, of one swap
FIXED_SD, SLOPE_SD = 0.6, 0.6  # relative, of the profiles' figures
SPREAD_MAX = 5.0  # of a predicted time's interval, as a logarithm: of what swaps have shown to make no sense
OWN_KEPT = 8
OWN_PRIOR = 0.5  # how many observations of its own the shared line is worth to a model
OUTLIER = 3.0  # a swap that took longer than so many times the expected (a stall) counts as that, unless the next does too
MODELS_KEPT = 256  # of one way, the latest
STARTS: tuple[Place, ...] = ("disk", "cache", "ram")  # wherever weights are read from, an engine's start takes as long
CERTAIN = 3  # swaps before anything is an outlier


@dataclass(frozen=True, slots=True)
class HostProfile:
    """Bandwidths and fixed times of one kind of host, for one device of it. `start_s` is an engine's start apart from
    reading weights, `wake_s` that of one that stayed, `stop_s` letting go."""

    name: str
    memory_bytes: float
    disk_bytes_per_s: float
    cache_bytes_per_s: float
    ram_bytes_per_s: float
    pcie_bytes_per_s: float
    start_s: float
    stop_s: float
    wake_s: float
    snapshot_s: float

    def __post_init__(self) -> None:
        speeds = (self.disk_bytes_per_s, self.cache_bytes_per_s, self.ram_bytes_per_s, self.pcie_bytes_per_s)
        if min(speeds) <= 0 or min(self.start_s, self.stop_s, self.wake_s, self.snapshot_s) < 0 or self.memory_bytes <= 0:
            raise ValueError(f"{self.name}: bandwidths and memory must be above 0, times not negative")

    def line(self, start: Place, end: Place) -> tuple[float, float]:
        """Fixed seconds, and seconds per byte of weights. ValueError where no one goes that way."""
        if end == "gpu":
            return self._load(start)
        if start == "gpu":
            # only level-1 sleep carries the weights out; else the disk has them, and memory still does
            return (self.wake_s, 1 / self.ram_bytes_per_s) if end == "asleep1" else (self.stop_s, 0.0)
        if (start, end) in (("disk", "ram"), ("disk", "cache")):
            return 0.0, 1 / self.disk_bytes_per_s
        if start in ("asleep1", "asleep2", "ram", "cache"):
            return self.stop_s, 0.0
        raise ValueError(f"nothing goes from {start} to {end}")

    def _load(self, start: Place) -> tuple[float, float]:
        fixed = {"snapshot": self.snapshot_s, "asleep1": self.wake_s, "asleep2": self.wake_s}.get(start, self.start_s)
        speed = {"ram": self.ram_bytes_per_s, "asleep1": self.ram_bytes_per_s, "cache": self.cache_bytes_per_s}
        return fixed, 1 / speed.get(start, self.disk_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A predicted time and its 80 % interval; `seen` swaps of this model and this way stand behind it."""

    mean_s: float
    low_s: float
    high_s: float
    seen: int = 0

    def plus(self, other: "Seconds") -> "Seconds":
        """One after the other."""
        low_s, high_s = self.low_s + other.low_s, self.high_s + other.high_s
        return Seconds(self.mean_s + other.mean_s, low_s, high_s, min(self.seen, other.seen))


class _Way:
    """One transition on one host: the line that all models share, each model's own latest times, and the noise."""

    def __init__(self, fixed_s: float, per_byte_s: float, like_s: float | None = None) -> None:
        """By the profile, but for fixed seconds that were learned of a like way."""
        slope = per_byte_s * GB
        self._profile = [fixed_s, slope]
        start_s = fixed_s if like_s is None else like_s
        sds = (max(start_s * FIXED_SD, 0.05), max(slope * SLOPE_SD, 0.002))
        self._line = LinearBelief((start_s, slope), sds, keep=0.98)
        self._own: dict[str, deque[tuple[float, float]]] = {}  # weight GB and seconds
        self._noise2, self._weight = NOISE**2, 4.0
        self._odd = False  # whether the last one was an outlier

    def predict(self, model: str, weight_gb: float) -> tuple[float, float, int]:
        """Seconds, relative standard deviation of one swap, and swaps of this model that were seen."""
        line = self._line.predict((1.0, weight_gb))
        base = max(line.mean, 1e-3)
        own = self._own.get(model, ())
        share = len(own) / (len(own) + OWN_PRIOR)
        ratio = share * sum(math.log(took / self._at(gb)) for gb, took in own) / len(own) if own else 0.0
        doubt = (1 - share) * line.sd / base
        return base * math.exp(ratio), math.sqrt(doubt**2 + self._noise2 * (1 + share / max(len(own), 1))), len(own)

    def observe(self, model: str, weight_gb: float, took_s: float) -> None:
        expected_s, _, _ = self.predict(model, weight_gb)
        odd = not expected_s / OUTLIER <= took_s <= expected_s * OUTLIER
        held = took_s
        if odd and not self._odd and self._line.seen >= CERTAIN:
            held = min(max(took_s, expected_s / OUTLIER), expected_s * OUTLIER)
        self._odd = odd
        if model in self._own:
            self._noise2 = (self._noise2 * self._weight + math.log(held / expected_s) ** 2) / (self._weight + 1)
            self._weight = min(self._weight + 1, 32.0)
        self._line.observe((1.0, weight_gb), held, NOISE * max(self._at(weight_gb), held))
        self._own.setdefault(model, deque(maxlen=OWN_KEPT)).append((weight_gb, held))

    @property
    def fixed_s(self) -> float | None:
        """The part that does not depend on bytes, as learned; None before anything was."""
        return max(self._line.means[0], 0.0) if self._line.seen else None

    def state(self) -> State:
        """For `restore`."""
        own = [{"model": m, "gb": [gb for gb, _ in own], "took_s": [s for _, s in own]} for m, own in self._own.items()]
        return {
            **self._line.state(),
            "profile": self._profile,
            "own": own[-MODELS_KEPT:],
            "noise2": self._noise2,
            "weight": self._weight,
            "odd": self._odd,
        }

    def restore(self, kept: Kept) -> None:
        """Take over what another one's `state` said. Raises KeptError; then this one is good for nothing."""
        if kept.numbers("profile", 2, 2, 0.0, 1e12) != self._profile:
            raise KeptError("learnt from another host profile")
        self._line.restore(kept)
        for one in kept.items("own", MODELS_KEPT):
            gbs = one.numbers("gb", 1, OWN_KEPT, 0.0, 1e6)
            took_s = one.numbers("took_s", len(gbs), len(gbs), 1e-9, 1e9)
            self._own[one.text("model")] = deque(zip(gbs, took_s, strict=True), maxlen=OWN_KEPT)
        self._noise2, self._weight = kept.number("noise2", 0.0, 1e6), kept.number("weight", 0.0, 32.0)
        self._odd = kept.flag("odd")

    def _at(self, weight_gb: float) -> float:
        return max(self._line.predict((1.0, weight_gb)).mean, 1e-3)


class SwapCosts:
    """What swaps cost on these hosts, learned from those that were done."""

    def __init__(self, hosts: Mapping[str, HostProfile]) -> None:
        self._hosts = dict(hosts)
        self._ways: dict[tuple[str, Place, Place], _Way] = {}
        self._known: dict[tuple[str, float, str, Place, Place], tuple[float, float, int]] = {}

    def predict(self, model: str, weight_bytes: float, host: str, start: Place, end: Place, kv_bytes: float = 0.0) -> Seconds:
        """Seconds of bringing a model from one place to another, with KV that goes along. KeyError for an unknown host."""
        key = (model, weight_bytes, host, start, end)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._way(host, start, end).predict(model, weight_bytes / GB)
        mean_s, spread, seen = found
        kv_s = kv_bytes / self._hosts[host].pcie_bytes_per_s
        factor = math.exp(min(Z90 * spread, SPREAD_MAX))
        return Seconds(mean_s + kv_s, mean_s / factor + kv_s, mean_s * factor + kv_s, seen)

    def observe(
        self, model: str, weight_bytes: float, host: str, start: Place, end: Place, took_s: float, kv_bytes: float = 0.0
    ) -> None:
        """That swap took so long."""
        weights_s = took_s - kv_bytes / self._hosts[host].pcie_bytes_per_s
        if weights_s > 0:
            self._way(host, start, end).observe(model, weight_bytes / GB, weights_s)
            self._known.clear()

    def preempt(self, model: str, weight_bytes: float, host: str, place: Place, kv_bytes: float = 0.0) -> Seconds:
        """Cost to preempt it now and resume it later: out to `place` and back, its KV both ways."""
        out = self.predict(model, weight_bytes, host, "gpu", place, kv_bytes)
        return out.plus(self.predict(model, weight_bytes, host, place, "gpu", kv_bytes))

    def states(self) -> Iterator[State]:
        """What is learnt, in pieces (predictor.kept)."""
        for host, start, end in list(self._ways):
            yield {"host": host, "start": start, "end": end, **self._ways[host, start, end].state()}

    def restore(self, kept: Kept) -> None:
        """Take one piece over. Raises KeptError, also where a host is gone or another one now."""
        host, places = kept.text("host"), {place: place for place in get_args(Place)}
        start, end = places.get(kept.text("start")), places.get(kept.text("end"))
        if host not in self._hosts or start is None or end is None:
            raise KeptError("host or place is unknown")
        try:
            way = _Way(*self._hosts[host].line(start, end))
        except ValueError:
            raise KeptError("nothing goes that way") from None
        way.restore(kept)
        self._ways[host, start, end] = way
        self._known.clear()

    def _way(self, host: str, start: Place, end: Place) -> _Way:
        found = self._ways.get((host, start, end))
        if found is None or found.fixed_s is None:
            like = [self._ways.get((host, other, end)) for other in STARTS if end == "gpu" and start in STARTS]
            like_s = next((fixed_s for way in like if way is not None and (fixed_s := way.fixed_s) is not None), None)
            found = self._ways[host, start, end] = _Way(*self._hosts[host].line(start, end), like_s)
        return found
