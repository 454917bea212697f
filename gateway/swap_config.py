"""What the configuration says of models that share devices: who lies where, how it moves, what it takes. Frozen records.

Part of gateway.config's records, in a module of its own for size; the same rules hold (no parsing, no environment).
"""

from dataclasses import dataclass, field
from typing import Literal

SwapWay = Literal["none", "sleep", "memory", "ollama", "llamacpp", "process"]


@dataclass(frozen=True, slots=True)
class SwapSpec:
    """How a backend's model comes onto its device and leaves it, where it shares one. `way` is what does that: vLLM's sleep
    ("sleep", of a `level`), SGLang's memory saver ("memory"), the loads of Ollama or llama.cpp's server, or a process of
    ours ("process"): `command` with ${PORT}, ${LAYERS} and ${MODEL}, its `env`, `folder` and `log` file. Coming in may take
    `start_s`, leaving `stop_s`; with `keeps` requests may stay in an engine that is paused for others."""

    device: str = ""
    way: SwapWay = "none"
    level: int = 1
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    folder: str = ""
    log: str = ""
    start_s: float = 600.0
    stop_s: float = 30.0
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class FootprintSpec:
    """What a model takes of a device, in GB (1e9) and tokens: weights, KV per token for `kv_tokens` of them, what its engine
    needs beside. `layers` may be split between GPU and CPU where both rates (tokens per second of one sequence) are known.
    A `pinned` model never leaves."""

    weight_gb: float = 0.0
    kv_kb_per_token: float = 0.0
    kv_tokens: int = 0
    layers: int = 1
    overhead_gb: float = 0.0
    pinned: bool = False
    gpu_tokens_per_s: float = 0.0
    cpu_tokens_per_s: float = 0.0


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
