"""What the control plane accepts, as pydantic models, and how a body becomes a backend's settings. Pure.

Loaded at the first write or request for the API's description, never at start: the settings library costs memory and
time. The rules are those of [[backends]] in gateway.toml, but for `api_key_file`: a path of this machine is nothing
that may come over the network. What was sent is never repeated in an error.
"""

import dataclasses
import re
import zlib
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError, WithJsonSchema

from gateway.addresses import KEY_CHARACTERS_MAX, sendable_key
from gateway.admin_http import DRAIN_S_MAX
from gateway.config import BackendSpec, EngineName, Scheduling
from gateway.config_sections import Endpoint, ModelName, OptionalUrl, Url
from gateway.operator_errors import OperationError
from gateway.section_base import Name, told
from gateway.what_if import Supposed
from predictor.catalog import ProfileError, engine_profile

NAME_CHARACTERS = 64
_DEFAULT = BackendSpec("", "")

BaseUrl = Annotated[
    Url,
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?$",
            "description": "Base URL of the server, without /v1. Its addresses must lie in the allowed networks.",
            "examples": ["http://10.0.0.7:8000"],
        }
    ),
]
Labels = Annotated[dict[str, str], Field(max_length=64, description="Free text of the operator's.")]
Models = Annotated[
    list[ModelName], Field(max_length=4096, description="Names that it serves; without any, what the server itself lists.")
]


def _header_safe(key: SecretStr) -> SecretStr:
    if not sendable_key(key.get_secret_value()):
        raise ValueError(f"must be up to {KEY_CHARACTERS_MAX} visible ASCII characters")
    return key


Key = Annotated[
    SecretStr,
    AfterValidator(_header_safe),
    Field(description="Sent to this backend as a bearer token, so visible ASCII. Never shown again."),
]


def _shipped_profile(name: str) -> str:
    if name.endswith(".toml"):
        raise ValueError("must be the name of a shipped profile, not a file of this machine")
    try:
        return name if not name else engine_profile(name).name
    except ProfileError:
        raise ValueError("no such profile; `gateway profile list` shows them") from None


Profile = Annotated[
    str,
    Field(max_length=1024, description="Name of a shipped profile (`gateway profile list`); its step times and limits."),
    AfterValidator(_shipped_profile),
]
Sidecar = Annotated[
    OptionalUrl,
    Field(description="Base URL of the sidecar that predicts for it. Its addresses must lie in the allowed networks."),
]
Count = Annotated[int, Field(ge=0, le=1 << 31, description="0: what the engine reports, else what the profile says.")]


def _network_endpoint(text: str) -> str:
    if text.startswith("ipc:"):
        raise ValueError("must be tcp://HOST:PORT: a path of this machine is not for the network")
    return text


Publisher = Annotated[
    Endpoint,
    AfterValidator(_network_endpoint),
    Field(max_length=512, description="tcp://HOST:PORT, in the allowed networks. Empty: none."),
]
KvEvents = Annotated[Publisher, Field(description="Where it publishes what its KV cache holds: tcp://HOST:PORT.")]
KvReplay = Annotated[Publisher, Field(description="Where it repeats what was missed of that: tcp://HOST:PORT.")]
Restore = Annotated[float, Field(ge=0, le=1e9, description="KV tokens per second from its deep tiers; 0: not known.")]


Model = TypeVar("Model", bound=BaseModel)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class BackendSettings(_Body):
    """The settings of a backend; what is left out has its default. `name` must be that of the path, if it is given."""

    name: Name | None = None
    url: BaseUrl
    engine: EngineName = _DEFAULT.engine
    models: Models = []
    weight: float = Field(_DEFAULT.weight, gt=0, le=1000, description="Its share relative to others.")
    labels: Labels = {}
    api_key: Key = SecretStr("")
    max_in_flight: int = Field(_DEFAULT.max_in_flight, ge=1, le=1_000_000)
    profile: Profile = ""
    kv_blocks: Count = 0
    block_size: Annotated[Count, Field(le=65536)] = 0
    max_num_seqs: Annotated[Count, Field(le=1_000_000)] = 0
    max_num_batched_tokens: Count = 0
    sidecar: Sidecar = ""
    sidecar_token: Key = SecretStr("")
    kv_events: KvEvents = ""
    kv_replay: KvReplay = ""
    scheduling: Scheduling = _DEFAULT.scheduling
    restore_tokens_per_s: Restore = 0.0


class NewBackend(BackendSettings):
    """A backend to add."""

    name: Name


class BackendPatch(_Body):
    """A JSON merge patch (RFC 7396): only what is named changes, null puts a default back, labels merge one by one."""

    name: Name | None = None
    url: BaseUrl | None = None
    engine: EngineName | None = None
    models: Models | None = None
    weight: Annotated[float, Field(gt=0, le=1000)] | None = None
    labels: Annotated[dict[str, str | None], Field(max_length=128)] | None = None
    api_key: Key | None = None
    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    profile: Profile | None = None
    kv_blocks: Count | None = None
    block_size: Annotated[Count, Field(le=65536)] | None = None
    max_num_seqs: Annotated[Count, Field(le=1_000_000)] | None = None
    max_num_batched_tokens: Count | None = None
    sidecar: Sidecar | None = None
    sidecar_token: Key | None = None
    kv_events: KvEvents | None = None
    kv_replay: KvReplay | None = None
    scheduling: Scheduling | None = None
    restore_tokens_per_s: Restore | None = None


class DrainRequest(_Body):
    """How long a drain may take; without it, as long as the gateway's own ([timeouts] drain_s)."""

    timeout_s: Annotated[float, Field(ge=0, le=DRAIN_S_MAX)] | None = None


class MoveRequest(_Body):
    """Which device (without it: the best one), and whether the step is only to be told, not taken (`dry_run`)."""

    device: str = Field("", max_length=64)
    dry_run: bool = False


class PinRequest(_Body):
    """true: it stays where it is (and is brought somewhere, if it is nowhere); false: it may leave; null: as the file says."""

    pinned: bool | None


class SupposedDemand(_Body):
    """What is supposed of a model; what is left out stays as it is."""

    waiting: Annotated[float, Field(ge=0, le=1e6, description="Requests that wait for it.")] | None = None
    rate_per_s: Annotated[float, Field(ge=0, le=1e6, description="Requests that come per second.")] | None = None
    slack_s: Annotated[float, Field(ge=-DRAIN_S_MAX, le=DRAIN_S_MAX, description="Until a start is late.")] | None = None


class WhatIf(_Body):
    """Demand that is supposed; models that are not named keep theirs. `pinned`: those who may not leave, in place of those
    who may not now."""

    models: Annotated[dict[ModelName, SupposedDemand], Field(max_length=256)] = {}
    pinned: Annotated[list[ModelName], Field(max_length=256)] | None = None


class NewWorker(_Body):
    """A backend to add, in smg's shape; its name is made from the URL. `priority` and `cost` are taken and not used."""

    url: BaseUrl
    model_id: ModelName | None = None
    models: Models = []
    labels: Labels = {}
    api_key: Key | None = None
    worker_type: Literal["regular"] = "regular"
    connection_mode: Literal["http"] = "http"
    runtime_type: EngineName = "auto"
    priority: int | None = None
    cost: float | None = None


def _checked(model: type[Model], data: object) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> OperationError:
    """422 with every problem; `param` is the first field at fault."""
    found = [(".".join(str(part) for part in problem["loc"]), told(problem)) for problem in error.errors(include_url=False)]
    lines = [f"{_short(field)}: {message}" if field else message for field, message in found[:16]]
    more = [f"and {len(found) - 16} more"] if len(found) > 16 else []
    return OperationError(422, "invalid_value", "; ".join([*lines, *more]), _short(found[0][0]) or None)


def _short(field: str) -> str:
    return field if len(field) <= 100 else field[:100] + "..."


def _spec(name: str, settings: BackendSettings) -> BackendSpec:
    return BackendSpec(
        name=name,
        url=settings.url.rstrip("/"),
        engine=settings.engine,
        models=tuple(settings.models),
        weight=settings.weight,
        labels=tuple(sorted(settings.labels.items())),
        api_key=settings.api_key.get_secret_value(),
        max_in_flight=settings.max_in_flight,
        declared=False,
        profile=settings.profile,
        kv_blocks=settings.kv_blocks,
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        sidecar=settings.sidecar.rstrip("/"),
        sidecar_token=settings.sidecar_token.get_secret_value(),
        kv_events=settings.kv_events,
        kv_replay=settings.kv_replay,
        scheduling=settings.scheduling,
        restore_tokens_per_s=settings.restore_tokens_per_s,
    )


def new_backend(data: object) -> BackendSpec:
    """The settings that a POST asks for. Raises OperationError (422)."""
    settings = _checked(NewBackend, data)
    return _spec(settings.name, settings)


def replaced_backend(name: str, data: object) -> BackendSpec:
    """The settings that a PUT asks for. Raises OperationError (422)."""
    settings = _checked(BackendSettings, data)
    _same_name(name, settings.name)
    return _spec(name, settings)


def patched_backend(spec: BackendSpec, data: object) -> BackendSpec:
    """`spec` as a merge patch changes it. Raises OperationError (422)."""
    patch = _checked(BackendPatch, data)
    _same_name(spec.name, patch.name)
    settings = dataclasses.asdict(spec) | {"models": list(spec.models), "labels": dict(spec.labels)}
    before = {name: value for name, value in settings.items() if name in BackendSettings.model_fields}
    assert isinstance(data, dict)
    return replaced_backend(spec.name, merge_patch(before, data | {"name": spec.name}))


def _same_name(name: str, given: str | None) -> None:
    if given is not None and given != name:
        raise OperationError(422, "invalid_value", "name: a backend keeps its name; remove it and add another.", "name")


def merge_patch(target: object, patch: object) -> object:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged: dict[str, Any] = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def drain_timeout_s(data: object) -> float | None:
    """The limit that a drain asks for. Raises OperationError (422)."""
    return _checked(DrainRequest, data).timeout_s


def move_request(data: object) -> MoveRequest:
    """What a load or an unload asks for. Raises OperationError (422)."""
    return _checked(MoveRequest, data)


def pin_request(data: object) -> bool | None:
    """What is to be pinned. Raises OperationError (422)."""
    return _checked(PinRequest, data).pinned


def supposed_demand(data: object) -> tuple[dict[str, Supposed], set[str] | None]:
    """(demand by model, who is pinned) that a what-if supposes. Raises OperationError (422)."""
    asked = _checked(WhatIf, data)
    supposed = {name: Supposed(one.waiting, one.rate_per_s, one.slack_s) for name, one in asked.models.items()}
    return supposed, None if asked.pinned is None else set(asked.pinned)


def new_worker(data: object) -> BackendSpec:
    """The settings that a POST /workers asks for. Raises OperationError (422)."""
    worker = _checked(NewWorker, data)
    models = worker.models or ([worker.model_id] if worker.model_id else [])
    key = worker.api_key.get_secret_value() if worker.api_key is not None else ""
    url = worker.url.rstrip("/")
    labels = tuple(sorted(worker.labels.items()))
    return BackendSpec(worker_name(url), url, worker.runtime_type, tuple(models), labels=labels, api_key=key, declared=False)


def worker_name(url: str) -> str:
    """A backend's name made from its URL: `host-port`, and a checksum where that alone would not tell URLs apart."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    plain = re.sub(r"[^a-z0-9.]+", "-", (parts.hostname or "").lower()).strip("-.")
    name = f"{plain}-{port}"
    if url.lower() == f"http://{plain}:{port}" and len(name) <= NAME_CHARACTERS:
        return name
    return f"{plain[: NAME_CHARACTERS - 16]}-{port}-{zlib.crc32(url.encode()):08x}".lstrip("-.")
