"""Scenarios of many models on few GPUs, as TOML tables: devices, models, who asks for what, the truth. Pure.

The truth differs from what a scheduler knows by `truth`: swaps of each model and steps of each engine are slower or
faster by a fixed factor, single swaps vary and some stall. Schedulers are told the nominal profile and learn the rest.
"""

from dataclasses import dataclass, field
from typing import Literal

Arrivals = Literal["poisson", "gamma", "rates", "trace"]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model: its size, its engine's step (base plus per running request) and prompt speed, its answers, its share of
    the requests, and its classes' TTFT targets (0: none) with the share of the first."""

    name: str
    weight_gb: float
    share: float
    base_ms: float = 20.0
    decode_ms: float = 0.3
    prompt_us: float = 150.0
    slots: int = 16
    prompt_tokens: float = 600.0
    output_tokens: float = 250.0
    ttft_s: float = 15.0
    slow_ttft_s: float = 60.0
    slow_share: float = 0.3
    tpot_ms: float = 100.0
    gpu_rate: float = 0.0
    cpu_rate: float = 0.0
    kv_kb_per_token: float = 100.0


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """So many devices of a kind of host; `ram_gb` keeps weights that were used lately, per device."""

    host: str
    count: int = 1
    ram_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class TruthSpec:
    """How far the truth lies from the profile: relative half-widths, the share of swaps that stall, and by how much."""

    swap_error: float = 0.15
    step_error: float = 0.15
    swap_noise: float = 0.05
    stall_share: float = 0.01
    stall_s: float = 5.0


@dataclass(frozen=True, slots=True)
class SwapScenario:
    """One mix. `rate_per_s` is over all models; `rates` names a CSV of rates (window, model, per s) that replaces shares;
    `trace` a CSV of recorded requests. `starve_s` is the longest wait that a scheduler of ours may let happen."""

    name: str
    note: str
    seeds: tuple[int, ...]
    duration_s: float
    rate_per_s: float
    devices: tuple[DeviceSpec, ...]
    models: tuple[ModelSpec, ...]
    arrivals: Arrivals = "poisson"
    cv: float = 1.0
    rates: str = ""
    window_s: float = 600.0
    trace: str = ""
    starve_s: float = 240.0
    dwell_s: float = 10.0
    truth: TruthSpec = field(default_factory=TruthSpec)

    def __post_init__(self) -> None:
        if not self.seeds or self.duration_s <= 0 or self.rate_per_s <= 0 or not self.models or not self.devices:
            raise ValueError("seeds: seeds, a duration, a rate, models and devices are needed")
