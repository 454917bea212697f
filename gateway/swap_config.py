"""What the configuration says of models that share devices: who lies where, how it moves, what it takes. Frozen records.

Part of gateway.config's records, in a module of its own for size; the same rules hold (no parsing, no environment). How a
backend's model moves is the record that its mover is made from (backends.moves).
"""

from dataclasses import dataclass
from typing import Literal

from backends.moves import SwapSpec
from predictor.cost import GB
from predictor.offload import Footprint

__all__ = ["DeviceSpec", "FootprintSpec", "SwapSpec", "Swaps"]


@dataclass(frozen=True, slots=True)
class FootprintSpec:
    """What a model takes of a device, in GB (1e9) and tokens: weights, KV per token for `kv_tokens` of them, what its engine
    needs beside. `layers` may be split between GPU and CPU where both rates (tokens per second of one sequence) are known.
    A `pinned` model never leaves. The rates of prompts (tokens per second, likewise) are for what is asked of it."""

    weight_gb: float = 0.0
    kv_kb_per_token: float = 0.0
    kv_tokens: int = 0
    layers: int = 1
    overhead_gb: float = 0.0
    pinned: bool = False
    gpu_tokens_per_s: float = 0.0
    cpu_tokens_per_s: float = 0.0
    gpu_prompt_tokens_per_s: float = 0.0
    cpu_prompt_tokens_per_s: float = 0.0

    def size(self) -> Footprint:
        """What it takes, in bytes, to reckon with."""
        return Footprint(self.weight_gb * GB, self.kv_kb_per_token * 1000, self.layers, self.overhead_gb * GB)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A GPU, or a group that models lie on together. `host` is its kind of machine in the swap profiles; `ram_gb` is what
    may be kept of weights in memory."""

    name: str
    memory_gb: float
    host: str = "generic"
    ram_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Swaps:
    """The swap planner. `dry`: it plans and moves nothing. It plans again every `plan_s` while somebody waits, looks
    `horizon_s` ahead, leaves a model on its device for `dwell_s` at least and lets nobody wait beyond `starve_s` where that
    can be helped. A move that must wait for requests to end is given up after `drain_s`, and tried `attempts` times."""

    mode: Literal["auto", "dry"] = "auto"
    plan_s: float = 1.0
    horizon_s: float = 60.0
    dwell_s: float = 5.0
    starve_s: float = 240.0
    drain_s: float = 600.0
    attempts: int = 2
