"""The gateway's configuration as frozen records: what every module below the root is handed.

No parsing and no environment here (config_file.py does both), so the serving process and its tests can build
records without the settings library. Defaults stand here once; config_file.py and gateway.toml repeat none of them.
"""

import dataclasses
import json
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps, SwapSpec

EngineName = Literal["auto", "vllm", "sglang", "openai"]
Scheduling = Literal["auto", "fcfs", "priority", "priority-low-first", "leeway"]
Travels = Literal["auto", "always", "never"]
OrderName = Literal["fcfs", "sjf", "edf", "lrb", "mh"]
DEFAULT_CLASS = "default"
PORT_MAX = 65535
PolicyName = Literal[
    "auto", "plan", "po2", "pod", "fanout",
    "po2_requests", "random", "round_robin", "least_request", "min_qpm", "consistent_hash",
    "min_requests", "infaas", "llumnix", "nosim",
    "smg_least_load", "cache_aware", "llmd", "llmd_headroom", "dynamo", "bounded_hash",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listen:
    """Addresses are `host:port`; an IPv6 host stands in brackets."""

    data: str = "127.0.0.1:8080"
    control: str = "127.0.0.1:8081"
    backlog: int = 4096
    reuse_port: bool = False
    tls_cert_file: str = ""
    tls_key_file: str = ""


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One engine server, as declared in TOML or added by REST. `profile` and what follows is what is known of the engine
    beforehand (0: what it reports, else what the profile says); `sidecar` predicts for it; `kv_events` is where it says
    what its KV cache holds, `kv_replay` where it says that again. `scheduling` is how it orders its queue ("auto": as it
    says of itself), `restore_tokens_per_s` how fast it loads KV from its deep tiers (0: unknown).
    """

    name: str
    url: str
    engine: EngineName = "auto"
    models: tuple[str, ...] = ()
    weight: float = 1.0
    labels: tuple[tuple[str, str], ...] = ()
    api_key: str = field(default="", repr=False)
    max_in_flight: int = 1024
    declared: bool = True
    profile: str = ""
    kv_blocks: int = 0
    block_size: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    sidecar: str = ""
    sidecar_token: str = field(default="", repr=False)
    kv_events: str = ""
    kv_replay: str = ""
    scheduling: Scheduling = "auto"
    restore_tokens_per_s: float = 0.0
    swap: SwapSpec = SwapSpec()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """How requests for one model are placed; `*` is the rule for every model without its own.

    `binding` and `order`, `work_weight` (lambda), `mu`, `margin` (of the KV), `overtaking_s` (0: by `age_rate`,
    tokens per second), `turn_after` (gateway.turns) and `ahead_tokens` are the plan's; `rho` (share of tier 2; below 0: the
    order's own), `alpha` (0 goodput to 1 fairness between sizes) and `age_s` are those of the orders with tiers; `d`,
    `objective`, `ttft_target_s` and `temperature` those of the policies that have them. Sidecars are waited for `probe_s`. A
    prediction older than `stale_s` or off by more than `error_limit` times is not used.
    """

    name: str
    policy: PolicyName = "auto"
    d: int = 2
    aliases: tuple[str, ...] = ()
    binding: Literal["late", "early"] = "late"
    order: OrderName = "mh"
    objective: Literal["e2e", "ttft"] = "e2e"
    work_weight: float = 3.0
    mu: float = 0.0
    margin: float = 0.06
    overtaking_s: float = 0.0
    age_rate: float = 120.0
    turn_after: float = 0.8
    rho: float = -1.0
    alpha: float = 0.5
    age_s: float = 120.0
    ahead_tokens: int = 512
    ttft_target_s: float = 2.0
    temperature: float = 0.0
    probe_s: float = 0.05
    stale_s: float = 2.0
    error_limit: float = 4.0
    footprint: FootprintSpec = FootprintSpec()


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """What requests of a class are promised, in milliseconds (0: nothing). `models`, `routes` and client `priorities` put
    a request into it that neither its head nor its key puts elsewhere; `strict`: what cannot be in time is refused."""

    name: str
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    e2e_ms: float = 0.0
    strict: bool = False
    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    priorities: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slo:
    """What becomes of promises: which engines are told, whose word on priority counts, how much is kept of requests."""

    engine_priority: Travels = "auto"
    engine_budget: Travels = "auto"
    client_priority: Literal["override", "respect"] = "override"
    records: int = 512


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """0 = no limit."""

    concurrent: int = 0
    requests_per_min: int = 0
    tokens_per_min: int = 0


@dataclass(frozen=True, slots=True)
class KeySpec:
    """A client key, known only by the SHA-256 of its text (lower-case hex)."""

    sha256: str = field(repr=False)
    name: str = ""
    class_name: str = DEFAULT_CLASS
    weight: float = 1.0
    limits: KeyLimits = KeyLimits()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on everything that a client or a peer can grow."""

    head_bytes: int = 65536
    headers: int = 128
    url_bytes: int = 8192
    body_bytes: int = 67_108_864
    bodies_bytes: int = 1_073_741_824
    connections: int = 16384
    pipelined: int = 16
    json_depth: int = 1024
    n: int = 128
    parse_bytes: int = 262_144
    event_hold_bytes: int = 65536
    answer_hold_bytes: int = 65536
    write_buffer_bytes: int = 262_144
    response_ids: int = 16384
    model_labels: int = 256


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `head_s` and `body_*` guard against slow clients, the rest against slow backends."""

    head_s: float = 10.0
    body_stall_s: float = 15.0
    body_min_bytes_per_s: int = 1024
    keep_alive_s: float = 75.0
    connect_s: float = 3.0
    first_byte_s: float = 300.0
    unary_s: float = 1800.0
    idle_s: float = 90.0
    total_s: float = 3600.0
    write_stall_s: float = 300.0
    drain_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Queue:
    """The bounded waiting line in front of the backends."""

    size: int = 1024
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Second attempts, only for what provably did not run: at most `ratio` of recent requests plus `burst`."""

    attempts: int = 2
    ratio: float = 0.1
    burst: int = 10


@dataclass(frozen=True, slots=True)
class Health:
    """Active probes, and the breaker fed by real traffic."""

    interval_s: float = 1.0
    timeout_s: float = 2.0
    failures: int = 3
    wedge_s: float = 120.0
    poison_ttl_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Pool:
    """Connections to one backend: how many idle ones are kept, and for how long at most."""

    idle_connections: int = 4096
    idle_s: float = 30.0
    unproven_idle_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Tagger:
    """Predicted lengths. `auto` starts the tagger's process when a prediction could first change a decision, `on` at once.
    An answer of its models later than `deadline_ms` is not waited for; `queue` questions are under way at most. `skip`
    leaves out requests whose length decides nothing; of these `learn_per_s` are looked at, to learn from. `models` is a
    folder ("": those shipped). `log` is a file that gets the features and the length of each answer."""

    mode: Literal["auto", "on", "off"] = "auto"
    deadline_ms: float = 10.0
    queue: int = 64
    cache_entries: int = 1024
    skip: bool = True
    learn_per_s: float = 5.0
    compare_share: float = 0.05
    models: str = ""
    log: str = ""
    log_text: bool = False
    log_bytes: int = 67_108_864
    log_files: int = 4
    log_rows: int = 10_000


@dataclass(frozen=True, slots=True)
class Log:
    """Structured lines on standard output; `access` is one line per request, without prompts or keys."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    access: bool = True
    queue_lines: int = 10_000


@dataclass(frozen=True, slots=True)
class Admin:
    """The control plane. `networks` and `ports` bound what a backend address may be. `learnt_file`: see gateway.learnt."""

    key: str = field(default="", repr=False)
    key_file: str = ""
    state_file: str = ""
    learnt_file: str = ""
    networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
    backends_max: int = 1024


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything `gateway serve` needs; built by config_file.load or by hand in tests."""

    listen: Listen = Listen()
    backends: tuple[BackendSpec, ...] = ()
    models: tuple[ModelSpec, ...] = ()
    keys: tuple[KeySpec, ...] = ()
    classes: tuple[ClassSpec, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    swaps: Swaps = Swaps()
    slo: Slo = Slo()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    queue: Queue = Queue()
    retry: Retry = Retry()
    health: Health = Health()
    pool: Pool = Pool()
    tagger: Tagger = Tagger()
    log: Log = Log()
    admin: Admin = Admin()
    usage: Literal["ask", "off"] = "ask"

    def model(self, name: str) -> ModelSpec:
        """The rule for a model: its own, else the one named `*`, else the defaults."""
        fallback = ModelSpec(name)
        for spec in self.models:
            if spec.name == name:
                return spec
            if spec.name == "*":
                fallback = spec
        return fallback


def to_json(config: GatewayConfig) -> bytes:
    """The records as JSON, secrets included: for a pipe between two processes of one gateway, nothing else."""
    return json.dumps(dataclasses.asdict(config)).encode()


def from_json(text: bytes) -> GatewayConfig:
    """What `to_json` wrote."""
    built = _record(GatewayConfig, json.loads(text))
    assert isinstance(built, GatewayConfig)
    return built


def _record(kind: Any, value: Any) -> Any:
    """`value` as the annotated type `kind`: records by their fields, tuples by their items, anything else as it is."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _record(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if typing.get_origin(kind) is tuple:
        item_kinds = typing.get_args(kind)
        if item_kinds[-1] is Ellipsis:
            return tuple(_record(item_kinds[0], item) for item in value)
        return tuple(_record(item_kind, item) for item_kind, item in zip(item_kinds, value, strict=True))
    return value


def masked(config: GatewayConfig) -> dict[str, Any]:
    """The effective configuration as plain data, secrets masked."""
    document = dataclasses.asdict(config)
    for backend in document["backends"]:
        backend["api_key"] = _mask(backend["api_key"])
        backend["sidecar_token"] = _mask(backend["sidecar_token"])
        backend["labels"] = dict(backend["labels"])
        backend["swap"]["env"] = {name: _mask(value) for name, value in backend["swap"]["env"]}
    for key in document["keys"]:
        key["sha256"] = key["sha256"][:8] + "..."
    document["admin"]["key"] = _mask(document["admin"]["key"])
    return document


def _mask(secret: str) -> str:
    return "***" if secret else ""


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` -> (host, port). Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not host:
        raise ValueError(f"{address!r} is not host:port")
    if int(port) > PORT_MAX:
        raise ValueError(f"the port of {address!r} is above {PORT_MAX}")
    return host.strip("[]"), int(port)
