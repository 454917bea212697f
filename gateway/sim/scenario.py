"""What to simulate: a TOML file as frozen records. Every error names the file, the key and the reason.

Paths in a scenario are relative to its file; one that begins with `$LEEWAY_DATA/` lies in the data folder, which the
caller names. examples/papers/astrolabe/ shows every table in use.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gateway.config import ModelSpec, OrderName, PolicyName
from gateway.sim.scenario_file import read_toml
from gateway.sim.tables import TableError, record
from gateway.sim.workload import WorkloadSpec
from predictor.catalog import ProfileError, engine_profile
from predictor.profile import EngineLimits, StepProfile

DATA_PREFIX = "$LEEWAY_DATA/"
MODEL = "model"


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """`count` replicas of one kind. In a file, `profile` may be a shipped profile's name, whose limits then are defaults;
    `slower` multiplies the step times of the truth and of what is believed."""

    profile: StepProfile
    limits: EngineLimits
    count: int = 1
    slower: float = 1.0
    weight: float = 1.0
    max_in_flight: int = 1024

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError("count: must be at least 1")
        if not self.slower > 0 or not self.weight > 0:
            raise ValueError("slower, weight: must be above 0")


@dataclass(frozen=True, slots=True)
class TruthSpec:
    """How the truth differs from what the predictor believes (all zero: not at all).

    Step times of each replica are x a factor drawn from 1 +- `step_spread`; a share `stall_share` of the steps takes
    `stall_s` more.
    """

    step_spread: float = 0.0
    stall_share: float = 0.0
    stall_s: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.step_spread < 1:
            raise ValueError("step_spread: must lie between 0 and 1")
        if not 0 <= self.stall_share < 1:
            raise ValueError("stall_share: must lie between 0 and 1")
        if self.stall_s < 0:
            raise ValueError("stall_s: must not be negative")


@dataclass(frozen=True, slots=True)
class ViewSpec:
    """What gateways see, and how late.

    A dispatch reaches its engine after `dispatch_s`, a token or an end the gateway after `feedback_s`. Probes find
    snapshots between the two ages of `snapshot_age_s` (0, 0: the state of the moment). `latency_noise` multiplies each
    probed latency, `length_noise` the length told to each probed instance, by 1 + N(0, x) within [0.1, 5].
    `gateways` share the arrivals in turn and know only their own dispatches, beside what probes tell and what engines
    report of themselves every `report_s` (0: never). `sight` lets mirrors see when a step ends and how far prompts are,
    `learns` lets them learn an engine's pace.
    """

    dispatch_s: float = 0.0
    feedback_s: float = 0.0
    snapshot_age_s: tuple[float, float] = (0.0, 0.0)
    latency_noise: float = 0.0
    length_noise: float = 0.0
    gateways: int = 1
    report_s: float = 0.0
    sight: bool = False
    learns: bool = True

    def __post_init__(self) -> None:
        for key in ("dispatch_s", "feedback_s", "latency_noise", "length_noise", "report_s"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key}: must not be negative")
        if not 0 <= self.snapshot_age_s[0] <= self.snapshot_age_s[1]:
            raise ValueError("snapshot_age_s: two ages, rising from 0")
        if self.gateways < 1:
            raise ValueError("gateways: must be at least 1")


@dataclass(frozen=True, slots=True)
class FailureSpec:
    """Replica number `replica` (from 0) loses everything at `at_s` and is back, empty, after `down_s`."""

    replica: int
    at_s: float
    down_s: float


@dataclass(frozen=True, slots=True)
class MigrationSpec:
    """Live migration: every `every_s` the engine with the fewest free blocks per running request gives its newest
    decoding one to the one with the most, if they differ by `gap_blocks`; the KV takes its bytes over `link_bytes_per_s`,
    during which both engines' steps take 1 + `slowdown` as long."""

    every_s: float
    kv_token_bytes: float
    link_bytes_per_s: float = 12.5e9
    gap_blocks: float = 10.0
    slowdown: float = 0.2

    def __post_init__(self) -> None:
        for key in ("every_s", "kv_token_bytes", "link_bytes_per_s"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key}: must be above 0")
        if self.slowdown < 0:
            raise ValueError("slowdown: must not be negative")


_RULE = ModelSpec(MODEL)  # the defaults stand there


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One column of the comparison: a rule of the gateway (the fields of `[models.NAME]`; `work_weight` is its lambda),
    and how it is asked.

    `sidecar`: probes answer from the engines' own state `probe_s` later, and unless `own_dispatches` the policy sees
    nothing else, as in the published systems; otherwise the gateway's mirrors are all there is. `under_way`: what sidecars
    expect of an answer that goes on, `repaired` as in the paper or `conditional` as ours do (predictor.rest). `oracle`: it
    is told the true lengths; `skill`: lengths by a predictor that explains this share of their variance
    (gateway.sim.foretold; below 0: as the workload says). `paper` is a published figure to print beside ours.
    """

    label: str
    policy: PolicyName
    d: int = _RULE.d
    binding: Literal["late", "early"] = _RULE.binding
    order: OrderName = "sjf"
    objective: Literal["e2e", "ttft"] = _RULE.objective
    work_weight: float = _RULE.work_weight
    mu: float = _RULE.mu
    margin: float = _RULE.margin
    overtaking_s: float = _RULE.overtaking_s
    age_rate: float = _RULE.age_rate
    turn_after: float = _RULE.turn_after
    ahead_tokens: int = _RULE.ahead_tokens
    sidecar: bool = False
    own_dispatches: bool = True
    under_way: Literal["repaired", "conditional"] = "repaired"
    probe_s: float = 0.0
    oracle: bool = False
    skill: float = -1.0
    paper: float = 0.0

    def __post_init__(self) -> None:
        if self.skill > 1:
            raise ValueError("skill: must not be above 1")

    @property
    def rule(self) -> ModelSpec:
        """The gateway's record of it."""
        return ModelSpec(
            MODEL,
            self.policy,
            self.d,
            binding=self.binding,
            order=self.order,
            objective=self.objective,
            work_weight=self.work_weight,
            mu=self.mu,
            margin=self.margin,
            overtaking_s=self.overtaking_s,
            age_rate=self.age_rate,
            turn_after=self.turn_after,
            ahead_tokens=self.ahead_tokens,
        )


@dataclass(frozen=True, slots=True)
class SloSpec:
    """Limits of one request for goodput, and the fleet's: `ttft_s` at `quantile`."""

    ttft_s: float = 10.0
    tpot_s: float = 0.0
    e2e_s: float = 0.0
    quantile: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError("quantile: must lie between 0 and 1")


@dataclass(frozen=True, slots=True)
class CapacitySpec:
    """Bisection between two rates until they are `step_per_s` apart."""

    low_per_s: float
    high_per_s: float
    step_per_s: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.low_per_s < self.high_per_s:
            raise ValueError("low_per_s: must lie between 0 and high_per_s")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything one simulation needs. `rates_per_s` overrides the workload's rate, one run each."""

    name: str
    workload: WorkloadSpec
    replicas: tuple[ReplicaSpec, ...]
    policies: tuple[PolicySpec, ...]
    note: str = ""
    seeds: tuple[int, ...] = (0,)
    rates_per_s: tuple[float, ...] = ()
    warmup_share: float = 0.0
    cooldown_share: float = 0.0
    truth: TruthSpec = field(default_factory=TruthSpec)
    view: ViewSpec = field(default_factory=ViewSpec)
    slo: SloSpec = field(default_factory=SloSpec)
    capacity: CapacitySpec | None = None
    failures: tuple[FailureSpec, ...] = ()
    migration: MigrationSpec | None = None

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ValueError("replicas: needs one at least")
        if not self.policies:
            raise ValueError("policies: needs one at least")
        if len({policy.label for policy in self.policies}) < len(self.policies):
            raise ValueError("policies: two have the same label")
        if not self.seeds:
            raise ValueError("seeds: needs one at least")
        if len({replica.limits.block_size for replica in self.replicas}) > 1:
            raise ValueError("replicas: all must have one block_size")
        count = sum(replica.count for replica in self.replicas)
        for failure in self.failures:
            if not 0 <= failure.replica < count:
                raise ValueError(f"failures: there is no replica {failure.replica} among {count}")
        if self.migration is not None and (self.failures or count < 2 or self.workload.format in ("mooncake", "bailian")):
            raise ValueError("migration: needs two replicas, and goes neither with failures nor with prefixes")

    def at_rate(self, rate_per_s: float) -> "Scenario":
        """The same at another rate."""
        return replace(self, workload=replace(self.workload, rate_per_s=rate_per_s))


def load(path: Path, data: Path | None = None) -> Scenario:
    """The scenario of a file. `data` is the folder that `$LEEWAY_DATA` names. Raises TableError."""
    return parse(read_toml(path), str(path), path.parent, data)


def parse(table: Mapping[str, Any], source: str, folder: Path, data: Path | None) -> Scenario:
    """A scenario from a decoded table; see `load`."""
    scenario = record(Scenario, {**table, **_replicas(table, source)}, source)
    work = scenario.workload
    lengths = _place(work.lengths, source, "workload.lengths", folder, data)
    trace = _place(work.trace, source, "workload.trace", folder, data)
    return replace(scenario, workload=replace(work, lengths=lengths, trace=trace))


def _replicas(table: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The replicas with profiles by name put in place; their limits fill up what the table leaves out."""
    rows = table.get("replicas")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return {}
    return {"replicas": [_named(row, source, f"replicas[{i}].profile") for i, row in enumerate(rows)]}


def _named(row: Mapping[str, Any], source: str, where: str) -> Mapping[str, Any]:
    name = row.get("profile")
    if not isinstance(name, str):
        return row
    try:
        found = engine_profile(name)
    except ProfileError as error:
        raise TableError(source, where, str(error)) from error
    limits = {} if found.limits is None else asdict(found.limits)
    return {**row, "profile": asdict(found.step), "limits": {**limits, **row.get("limits", {})}}


def _place(name: str, source: str, where: str, folder: Path, data: Path | None) -> str:
    if not name:
        return ""
    if not name.startswith(DATA_PREFIX):
        return str(folder / name)
    if data is None:
        raise TableError(source, where, f"{name} needs LEEWAY_DATA, the folder of the data")
    return str(data / name.removeprefix(DATA_PREFIX))
