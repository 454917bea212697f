"""Devices, swaps and footprints in gateway.toml as settings models. Defaults are those of the records in swap_config.py."""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from backends.command_template import check, check_environment
from backends.moves import Way
from gateway.section_base import DAY_S, Name, Section, section
from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps, SwapSpec

_SWAP, _MODEL = SwapSpec(), FootprintSpec()
_TERABYTE_GB = 100_000.0


class SwapSection(Section):
    """swap = {...} of a backend."""

    device: str = Field(_SWAP.device, max_length=64)
    way: Way = _SWAP.way
    level: int = Field(_SWAP.level, ge=1, le=2)
    command: list[str] = Field(default_factory=list, max_length=256)
    env: dict[str, str] = Field(default_factory=dict, max_length=256)
    folder: str = _SWAP.folder
    log: str = _SWAP.log
    start_s: float = Field(_SWAP.start_s, ge=0.1, le=DAY_S)
    stop_s: float = Field(_SWAP.stop_s, ge=0.1, le=DAY_S)
    keeps: bool = _SWAP.keeps

    def record(self, url: str, models: list[str]) -> SwapSpec:
        """As the gateway uses it. Raises ValueError (`key: reason`) where it cannot work."""
        if self.way != "none" and not self.device:
            raise ValueError("swap.device: what moves needs a device")
        if self.way != "none" and len(models) != 1:
            raise ValueError("models: what moves must name the one model that it serves, since asleep it cannot be asked")
        if (self.way == "process") != bool(self.command):
            raise ValueError('swap.command: belongs to way = "process", which needs it')
        if self.way == "process":
            if not urlsplit(url).port:
                raise ValueError("url: needs a port, which the command is given as ${PORT}")
            _checked("swap.command", partial(check, self.command))
            _checked("swap.env", partial(check_environment, self.env.items()))
            if "\0" in self.folder + self.log + models[0]:
                raise ValueError("swap: a name of a file or model has a NUL character")
        plain = self.model_dump(exclude={"command", "env"})
        return SwapSpec(**plain, command=tuple(self.command), env=tuple(sorted(self.env.items())))


def _checked(key: str, act: Callable[[], None]) -> None:
    try:
        act()
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


class FootprintSection(Section):
    """footprint = {...} of a model."""

    weight_gb: float = Field(_MODEL.weight_gb, ge=0, le=_TERABYTE_GB)
    kv_kb_per_token: float = Field(_MODEL.kv_kb_per_token, ge=0, le=1e6)
    kv_tokens: int = Field(_MODEL.kv_tokens, ge=0, le=1 << 40)
    layers: int = Field(_MODEL.layers, ge=1, le=4096)
    overhead_gb: float = Field(_MODEL.overhead_gb, ge=0, le=_TERABYTE_GB)
    pinned: bool = _MODEL.pinned
    gpu_tokens_per_s: float = Field(_MODEL.gpu_tokens_per_s, ge=0, le=1e6)
    cpu_tokens_per_s: float = Field(_MODEL.cpu_tokens_per_s, ge=0, le=1e6)
    gpu_prompt_tokens_per_s: float = Field(_MODEL.gpu_prompt_tokens_per_s, ge=0, le=1e7)
    cpu_prompt_tokens_per_s: float = Field(_MODEL.cpu_prompt_tokens_per_s, ge=0, le=1e7)

    @property
    def whole_gb(self) -> float:
        """What all of it takes."""
        return self.weight_gb + self.overhead_gb + self.kv_tokens * self.kv_kb_per_token * 1e-6

    def record(self) -> FootprintSpec:
        """As the gateway uses it. Raises ValueError (`key: reason`)."""
        if (self.gpu_tokens_per_s > 0) != (self.cpu_tokens_per_s > 0):
            raise ValueError("footprint: gpu_tokens_per_s and cpu_tokens_per_s are only known together")
        if (self.gpu_prompt_tokens_per_s > 0) != (self.cpu_prompt_tokens_per_s > 0):
            raise ValueError("footprint: gpu_prompt_tokens_per_s and cpu_prompt_tokens_per_s are only known together")
        return FootprintSpec(**self.model_dump())


class DeviceSection(Section):
    """One [[devices]] table."""

    name: Name
    memory_gb: float = Field(gt=0, le=_TERABYTE_GB)
    host: str = Field(DeviceSpec("", 0).host, max_length=64)
    ram_gb: float = Field(DeviceSpec("", 0).ram_gb, ge=0, le=_TERABYTE_GB)

    def record(self) -> DeviceSpec:
        """As the gateway uses it."""
        return DeviceSpec(**self.model_dump())


SwapsSection: Any = section(
    Swaps,
    {
        "plan_s": (0.05, 3600.0),
        "horizon_s": (1.0, DAY_S),
        "dwell_s": (0.0, DAY_S),
        "starve_s": (1.0, DAY_S),
        "drain_s": (0.0, DAY_S),
        "attempts": (1, 10),
    },
)


def swap_clashes(devices: list[DeviceSection], backends: list[Any], models: dict[str, Any]) -> list[str]:
    """Two devices of one name, an unknown kind of host, a backend on an unknown device, a model that moves and is of no
    size or larger than its device, a model twice on one device, two processes at one address, models that nobody counts,
    and memory that can never be enough."""
    from predictor.hosts import host_profiles

    hosts = host_profiles()
    known = {device.name: device for device in devices}
    problems = [f"devices: two are named {name!r}" for name in known if sum(d.name == name for d in devices) > 1]
    problems += [
        f"devices.{i}.host: unknown {device.host!r}; known: {', '.join(sorted(hosts))}"
        for i, device in enumerate(devices)
        if device.host not in hosts
    ]
    seen: set[tuple[str, str]] = set()
    ports: dict[int | None, str] = {}
    for i, backend in enumerate(backends):
        swap = backend.swap
        if not swap.device:
            continue
        if swap.device not in known:
            problems.append(f"backends.{i}.swap.device: no device is named {swap.device!r}")
            continue
        if swap.way == "process" and ports.setdefault(urlsplit(backend.url).port, backend.name) != backend.name:
            problems.append(f"backends.{i}.url: the process of {ports[urlsplit(backend.url).port]!r} listens on that port")
        if not backend.models:
            problems.append(f"backends.{i}.models: needed, since what lies on {swap.device!r} takes its memory")
        for model in backend.models:
            if (swap.device, model) in seen:
                problems.append(f"backends.{i}: {model!r} would lie on {swap.device!r} twice")
            seen.add((swap.device, model))
            size = _size(models, model)
            needs = size.whole_gb
            if not size.weight_gb:
                problems.append(f"models.{model}.footprint.weight_gb: needed, since it lies on device {swap.device!r}")
            elif needs > known[swap.device].memory_gb and not size.gpu_tokens_per_s:
                problems.append(f"models.{model}.footprint: {needs:.3g} GB do not fit on {swap.device!r}")
    return problems + [problem for device in known.values() for problem in _crowded(device, backends, models)]


def _crowded(device: DeviceSection, backends: list[Any], models: dict[str, Any]) -> list[str]:
    """What can never be, on one device: those who never leave are too much for it, or leave no room for one that is to come."""
    here = [(model, backend.swap.way) for backend in backends if backend.swap.device == device.name for model in backend.models]
    homes = [model for backend in backends if backend.swap.device for model in backend.models]
    taken = sum(_size(models, model).whole_gb for model, way in here if way == "none")
    pinned = [model for model, way in here if way != "none" and _size(models, model).pinned and homes.count(model) == 1]
    whole = taken + sum(_size(models, model).whole_gb for model in pinned)
    if whole > device.memory_gb + 1e-9:
        return [
            f"devices: models that never leave {device.name!r} (way none, pinned) take {whole:.3g} GB of {device.memory_gb:g}"
        ]
    return [
        f"models.{model}.footprint: {size.whole_gb:.3g} GB do not fit on {device.name!r} beside the {taken:.3g} GB that stay"
        for model, way in here
        if way != "none" and not (size := _size(models, model)).gpu_tokens_per_s
        if device.memory_gb - taken + 1e-9 < size.whole_gb <= device.memory_gb
    ]


def _size(models: dict[str, Any], model: str) -> FootprintSection:
    found = models.get(model)
    return found.footprint if found is not None else FootprintSection()
