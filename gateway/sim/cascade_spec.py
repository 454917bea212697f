"""What to simulate of CASCADE: classes of requests with SLOs, engines with tiers of KV below HBM, variants to compare.

A TOML file as frozen records; every error names file, key and reason. Paths as in `scenario`. The paper's summary gives
neither its SLOs nor its tiers nor its guard: every figure in a file is our own, and said so there.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gateway.sim.scenario import DATA_PREFIX, TruthSpec
from gateway.sim.scenario_file import read_toml
from gateway.sim.tables import TableError, record


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """One class. `share` of the requests; lengths from `trace` (a format of `traces`, or "quantiles": a table of 101).

    A trace without block hashes gets prefixes: `reuse` of its requests begin with a part, between the two shares
    `reuse_part` of their prompt, of an earlier request of the class. `tpot_s` 0: no such limit.
    """

    name: str
    share: float
    ttft_s: float
    trace: str
    format: str
    tpot_s: float = 0.0
    reuse: float = 0.0
    reuse_part: tuple[float, float] = (0.3, 0.9)
    output_max: int = 8192

    def __post_init__(self) -> None:
        if not self.share > 0 or not self.ttft_s > 0:
            raise ValueError("share, ttft_s: must be above 0")
        if not 0 <= self.reuse <= 1 or not 0 <= self.reuse_part[0] <= self.reuse_part[1] <= 1:
            raise ValueError("reuse, reuse_part: must lie between 0 and 1")


@dataclass(frozen=True, slots=True)
class TierSpec:
    """Memory below HBM: how much of it, and how fast KV comes back from it."""

    name: str
    capacity_gb: float
    gb_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """One column: how the queue is ordered and KV is handled. `sync`: transfers stall the step, as a plain connector
    does; else they run beside it. `gamma` 0 is learned per class. `tpot`: steps are kept short enough for those who decode."""

    label: str
    order: Literal["fcfs", "sjf", "edf", "lrb", "mh"]
    restore: Literal["always", "never", "feasible", "partial"] = "feasible"
    sync: bool = False
    prefetch: bool = True
    placement: Literal["lru", "value"] = "lru"
    gamma: float = 0.0
    rho: float = -1.0
    alpha: float = 0.5
    age_s: float = 600.0
    hysteresis: float = 0.05
    chained: bool = True
    tpot: bool = False


@dataclass(frozen=True, slots=True)
class CascadeSpec:
    """One set-up. `hbm_tokens`: of the KV cache (0: as the profile has it); `loads`: multiples of the capacity;
    `half_life_s`: of the chance that an idle prefix is asked for again; `lost_at`: the share of the run after which the
    first instance is gone for good (0: never)."""

    name: str
    profile: str
    classes: tuple[ClassSpec, ...]
    tiers: tuple[TierSpec, ...]
    variants: tuple[VariantSpec, ...]
    note: str = ""
    seeds: tuple[int, ...] = (0,)
    requests: int = 2000
    instances: int = 1
    loads: tuple[float, ...] = (1.0,)
    block_tokens: int = 128
    hbm_tokens: int = 0
    chunk_tokens: int = 2048
    length_error: float = 0.25
    half_life_s: float = 15.0
    warmup_share: float = 0.1
    lost_at: float = 0.0
    low_per_s: float = 1.0
    high_per_s: float = 40.0
    truth: TruthSpec = field(default_factory=TruthSpec)

    def __post_init__(self) -> None:
        if not self.classes or not self.variants or not self.tiers or not self.seeds:
            raise ValueError("classes, tiers, variants, seeds: one of each at least")
        if abs(sum(one.share for one in self.classes) - 1.0) > 1e-6:
            raise ValueError("classes: their shares must sum to 1")
        if len({one.label for one in self.variants}) < len(self.variants):
            raise ValueError("variants: two have the same label")
        if self.lost_at and self.instances < 2:
            raise ValueError("lost_at: needs two instances")

    def variant(self, label: str) -> VariantSpec:
        """The variant with that label."""
        return next(one for one in self.variants if one.label == label)


def load_cascade(path: Path, data: Path | None = None) -> CascadeSpec:
    """The set-up of a file; what it does not say stands in the file that its `base` names. `data` is the folder that
    `$LEEWAY_DATA` names. Raises TableError."""
    source = str(path)
    spec = record(CascadeSpec, _table(path), source)
    placed = [_placed(one, source, f"classes[{i}].trace", path.parent, data) for i, one in enumerate(spec.classes)]
    return replace(spec, classes=tuple(placed))


def _table(path: Path) -> dict[str, Any]:
    table = read_toml(path)
    base = table.pop("base", None)
    return table if base is None else {**_table(path.parent / str(base)), **table}


def _placed(one: ClassSpec, source: str, where: str, folder: Path, data: Path | None) -> ClassSpec:
    if not one.trace.startswith(DATA_PREFIX):
        return replace(one, trace=str(folder / one.trace))
    if data is None:
        raise TableError(source, where, f"{one.trace} needs LEEWAY_DATA, the folder of the data")
    found = data / one.trace.removeprefix(DATA_PREFIX)
    if not found.exists():
        raise TableError(source, where, f"{found}: no such file")
    return replace(one, trace=str(found))
