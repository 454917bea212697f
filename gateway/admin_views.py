"""What the control plane shows of backends, as frozen records. Pure: time comes in as `now_s`.

Kept free of the settings library, since most of what operators and dashboards do is looking. API keys never come here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from backends.base import Identity, Kind
from gateway.config import EngineName, Scheduling
from gateway.replica import REPEATS, Replica, State


@dataclass(frozen=True, slots=True)
class FoundView:
    """What probing found out; `max_model_len` in tokens, 0 when unknown, as are the sizes that it does not say itself;
    `scheduling` is how it orders its queue, "" when it does not say."""

    engine: str
    version: str
    kind: Kind
    models: tuple[str, ...]
    max_model_len: int
    scheduling: str
    kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend: its settings, then what it is doing. `routable` and `why` say whether a request may go there now.

    `failures` counts those in a row that the breaker counts, `failed_total` all of them; `removing` means that it will
    be gone once its drain is over.
    """

    name: str
    url: str
    engine: EngineName
    models: tuple[str, ...]
    weight: float
    labels: dict[str, str]
    has_api_key: bool
    max_in_flight: int
    profile: str
    kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    sidecar: str
    has_sidecar_token: bool
    kv_events: str
    kv_replay: str
    scheduling: Scheduling
    restore_tokens_per_s: float
    declared: bool
    state: State
    reason: str
    routable: bool
    why: str
    removing: bool
    in_flight: int
    failures: int
    failed_total: int
    dispatched_total: int
    found: FoundView
    last_probe_age_s: float | None
    drain_left_s: float | None


@dataclass(frozen=True, slots=True)
class BackendList:
    """All backends, by name."""

    backends: tuple[BackendView, ...]
    total: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One backend in the shape of smg's worker; `id` is the backend's name, `engine_load` its requests in flight.

    `priority` and `cost` are there for clients that expect them and always the same: weight is what counts here.
    """

    id: str
    url: str
    model_id: str
    models: tuple[str, ...]
    status: State
    is_healthy: bool
    worker_type: str
    connection_mode: str
    runtime_type: str
    priority: int
    cost: float
    labels: dict[str, str]
    engine_load: int


@dataclass(frozen=True, slots=True)
class WorkerList:
    """All workers, by id."""

    workers: tuple[WorkerView, ...]
    total: int


@dataclass(frozen=True, slots=True)
class WorkerAccepted:
    """A change of a worker was accepted and goes on; `location` is where to look."""

    status: str
    worker_id: str
    url: str
    location: str


@dataclass(frozen=True, slots=True)
class WorkerUrls:
    """The oldest listing."""

    urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reloaded:
    """`needs_restart`: changed settings that only a restart applies, as `section.key`."""

    generation: int
    needs_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """What a health route says."""

    status: str


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """`param` names the field at fault, if one is."""

    message: str
    type: str
    param: str | None
    code: str


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """Every error."""

    error: ErrorDetail


def routing(replica: Replica, now_s: float) -> tuple[bool, str]:
    """(whether a request may go there now, why or why not)."""
    if replica.state != "ready":
        return False, f"{replica.state}: {replica.reason}" if replica.reason else replica.state
    if now_s < replica.overloaded_until_s:
        return False, f"it said that it is overloaded; left alone for another {replica.overloaded_until_s - now_s:.1f} s"
    if replica.trial and replica.trying:
        return False, "on trial after failures, and the one request that it may have is under way"
    if replica.in_flight >= replica.spec.max_in_flight:
        return False, "max_in_flight is reached"
    if replica.trial:
        return True, "on trial after failures: the next request decides"
    return True, "it fails at requests; a token that it is asked for will tell" if replica.repeats >= REPEATS else "ready"


def backend_view(replica: Replica, removing: bool, now_s: float) -> BackendView:
    """One backend as shown."""
    spec = replica.spec
    routable, why = routing(replica, now_s)
    drain_left_s = None
    if replica.state == "draining" and replica.drain_until_s is not None:
        drain_left_s = round(max(0.0, replica.drain_until_s - now_s), 3)
    return BackendView(
        name=spec.name,
        url=spec.url,
        engine=spec.engine,
        models=spec.models,
        weight=spec.weight,
        labels=dict(spec.labels),
        has_api_key=bool(spec.api_key),
        max_in_flight=spec.max_in_flight,
        profile=spec.profile,
        kv_blocks=spec.kv_blocks,
        block_size=spec.block_size,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        sidecar=spec.sidecar,
        has_sidecar_token=bool(spec.sidecar_token),
        kv_events=spec.kv_events,
        kv_replay=spec.kv_replay,
        scheduling=spec.scheduling,
        restore_tokens_per_s=spec.restore_tokens_per_s,
        declared=spec.declared,
        state=replica.state,
        reason=replica.reason,
        routable=routable,
        why=why,
        removing=removing,
        in_flight=replica.in_flight,
        failures=replica.failures,
        failed_total=replica.failed_total,
        dispatched_total=replica.dispatched_total,
        found=_found(replica.identity),
        last_probe_age_s=round(now_s - replica.last_probe_s, 3) if replica.last_probe_s >= 0 else None,
        drain_left_s=drain_left_s,
    )


def _found(identity: Identity) -> FoundView:
    said = identity.sizes
    return FoundView(
        identity.engine,
        identity.version,
        identity.kind,
        identity.models,
        identity.max_model_len,
        identity.scheduling,
        said.kv_blocks,
        said.block_size,
        said.max_num_seqs,
        said.max_num_batched_tokens,
    )


def backend_list(replicas: list[Replica], leaving: Callable[[str], bool], now_s: float) -> BackendList:
    """All backends as shown."""
    views = tuple(backend_view(r, leaving(r.name), now_s) for r in sorted(replicas, key=lambda r: r.name))
    return BackendList(views, len(views))


def worker_view(replica: Replica, now_s: float) -> WorkerView:
    """One backend in smg's shape."""
    return WorkerView(
        id=replica.name,
        url=replica.spec.url,
        model_id=replica.models[0] if replica.models else "unknown",
        models=replica.models,
        status=replica.state,
        is_healthy=routing(replica, now_s)[0],
        worker_type="regular",
        connection_mode="http",
        runtime_type=replica.identity.engine,
        priority=50,
        cost=1.0,
        labels=dict(replica.spec.labels),
        engine_load=replica.in_flight,
    )


def worker_list(replicas: list[Replica], now_s: float) -> WorkerList:
    """All backends in smg's shape."""
    views = tuple(worker_view(r, now_s) for r in sorted(replicas, key=lambda r: r.name))
    return WorkerList(views, len(views))
