"""gateway.toml and the environment into config records: all errors at once, each with file, key and reason. Shell.

Precedence: environment (`LEEWAY_SECTION__KEY`) over file over defaults. Secrets may be given as files (`*_file`). This
module is the only one that imports the settings library; the records that it builds do not.
"""

import dataclasses
import os
import sys
import tomllib
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    create_model,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gateway import config as records
from gateway.addresses import check_url, sendable_key
from gateway.config import (
    BackendSpec,
    EngineName,
    GatewayConfig,
    KeyLimits,
    KeySpec,
    ModelSpec,
    PolicyName,
    split_address,
)


class ConfigError(ValueError):
    """The configuration is wrong; the text lists every problem, one a line."""


def _address(text: str) -> str:
    split_address(text)
    return text


def _url(text: str) -> str:
    check_url(text, guarded=False)
    return text


def _network(text: str) -> str:
    ip_network(text)
    return text


Address = Annotated[str, AfterValidator(_address)]
Url = Annotated[str, AfterValidator(_url)]
Network = Annotated[str, AfterValidator(_network)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Seconds = Annotated[float, Field(gt=0, le=86400)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BackendSection(_Section):
    """One [[backends]] table."""

    name: Name
    url: Url
    engine: EngineName = "auto"
    models: list[ModelName] = Field(default_factory=list, max_length=4096)
    weight: float = Field(1.0, gt=0, le=1000)
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    api_key: SecretStr = SecretStr("")
    api_key_file: str = ""
    max_in_flight: int = Field(1024, ge=1, le=1_000_000)

    def record(self, declared: bool = True) -> BackendSpec:
        """As the gateway uses it. Raises ValueError (`key: reason`) when its key can't be read or sent."""
        return BackendSpec(
            name=self.name,
            url=self.url.rstrip("/"),
            engine=self.engine,
            models=tuple(self.models),
            weight=self.weight,
            labels=tuple(sorted(self.labels.items())),
            api_key=_header_secret(_secret(self.api_key, self.api_key_file, "api_key_file")),
            max_in_flight=self.max_in_flight,
            declared=declared,
        )


class ModelSection(_Section):
    """One [models.NAME] table."""

    policy: PolicyName = "po2_requests"
    d: int = Field(2, ge=1, le=1024)
    aliases: list[ModelName] = Field(default_factory=list, max_length=256)


class KeyLimitsSection(_Section):
    """limits = {...} of a key."""

    concurrent: int = Field(0, ge=0)
    requests_per_min: int = Field(0, ge=0)
    tokens_per_min: int = Field(0, ge=0)


class KeySection(_Section):
    """One [[keys]] table."""

    sha256: str = Field(pattern=r"^[0-9a-fA-F]{64}$")
    name: str = Field("", max_length=64)
    class_: Name = Field("default", alias="class")
    weight: float = Field(1.0, gt=0, le=1000)
    limits: KeyLimitsSection = KeyLimitsSection()

    def record(self) -> KeySpec:
        """As the gateway uses it."""
        sha256 = self.sha256.lower()
        return KeySpec(sha256, self.name or sha256[:8], self.class_, self.weight, KeyLimits(**self.limits.model_dump()))


def _section(record: type, ranges: dict[str, tuple[float, float]], types: dict[str, Any] | None = None) -> Any:
    """A settings model with a record's fields and defaults, and the ranges given."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        kind = (types or {}).get(field.name, field.type)
        if field.name in ranges:
            low, high = ranges[field.name]
            fields[field.name] = (kind, Field(field.default, ge=low, le=high))
        else:
            fields[field.name] = (kind, field.default)
    return create_model(record.__name__ + "Section", __base__=_Section, **fields)


DAY_S = 86400.0
ListenSection = _section(records.Listen, {"backlog": (1, 65535)}, {"data": Address, "control": Address})
LimitsSection = _section(
    records.Limits,
    {
        "head_bytes": (1024, 1 << 20),
        "headers": (8, 1024),
        "url_bytes": (256, 65536),
        "body_bytes": (1024, 1 << 31),
        "bodies_bytes": (1 << 20, 1 << 40),
        "connections": (1, 1 << 20),
        "pipelined": (1, 1024),
        "json_depth": (16, 1024),
        "n": (1, 4096),
        "parse_bytes": (1024, 1 << 20),
        "event_hold_bytes": (1024, 1 << 24),
        "answer_hold_bytes": (0, 1 << 24),
        "write_buffer_bytes": (16384, 1 << 20),
        "response_ids": (0, 1 << 24),
        "model_labels": (1, 4096),
    },
)
TimeoutsSection = _section(
    records.Timeouts,
    {f.name: (0.05, DAY_S) for f in dataclasses.fields(records.Timeouts) if f.name != "body_min_bytes_per_s"}
    | {"body_min_bytes_per_s": (0, 1 << 30)},
)
QueueSection = _section(records.Queue, {"size": (0, 1_000_000), "timeout_s": (0.0, DAY_S)})
RetrySection = _section(records.Retry, {"attempts": (1, 10), "ratio": (0.0, 1.0), "burst": (0, 10_000)})
HealthSection = _section(
    records.Health,
    {
        "interval_s": (0.05, 3600.0),
        "timeout_s": (0.05, 60.0),
        "failures": (1, 100),
        "wedge_s": (0.5, DAY_S),
        "poison_ttl_s": (0.0, DAY_S),
    },
)
PoolSection = _section(
    records.Pool, {"idle_connections": (0, 1 << 20), "idle_s": (0.0, 3600.0), "unproven_idle_s": (0.0, 3600.0)}
)
LogSection = _section(records.Log, {"queue_lines": (1, 10_000_000)})


class AdminSection(_Section):
    """[admin]"""

    key: SecretStr = SecretStr("")
    key_file: str = ""
    state_file: str = ""
    networks: list[Network] = list(records.Admin().networks)
    backends_max: int = Field(1024, ge=1, le=100_000)


class GatewaySettings(BaseSettings):
    """The whole file."""

    model_config = SettingsConfigDict(env_prefix="LEEWAY_", env_nested_delimiter="__", extra="forbid", case_sensitive=False)

    listen: ListenSection = ListenSection()  # type: ignore[valid-type]
    backends: list[BackendSection] = Field(default_factory=list, max_length=100_000)
    models: dict[ModelName, ModelSection] = Field(default_factory=dict, max_length=4096)
    keys: list[KeySection] = Field(default_factory=list, max_length=100_000)
    limits: LimitsSection = LimitsSection()  # type: ignore[valid-type]
    timeouts: TimeoutsSection = TimeoutsSection()  # type: ignore[valid-type]
    queue: QueueSection = QueueSection()  # type: ignore[valid-type]
    retry: RetrySection = RetrySection()  # type: ignore[valid-type]
    health: HealthSection = HealthSection()  # type: ignore[valid-type]
    pool: PoolSection = PoolSection()  # type: ignore[valid-type]
    log: LogSection = LogSection()  # type: ignore[valid-type]
    admin: AdminSection = AdminSection()
    usage: Literal["ask", "off"] = "ask"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over file."""
        return env_settings, init_settings


def _clashes(settings: GatewaySettings) -> list[str]:
    """Two backends with one name, a key given twice, an alias that is a model or somebody else's alias."""
    names = [backend.name for backend in settings.backends]
    problems = [f"backends.{i}.name: two backends are named {names[i]!r}" for i in _repeated(names)]
    problems += [f"keys.{i}.sha256: this key is given twice" for i in _repeated([k.sha256.lower() for k in settings.keys])]
    owners: dict[str, str] = {}
    served = {model for backend in settings.backends for model in backend.models} | set(settings.models)
    for name, spec in settings.models.items():
        for alias in spec.aliases:
            if alias in served:
                problems.append(f"models.{name}.aliases: alias {alias!r} of {name!r} is the name of a model itself")
            elif alias in owners:
                problems.append(f"models.{name}.aliases: alias {alias!r} is claimed by both {owners[alias]!r} and {name!r}")
            owners[alias] = name
    return problems


def _repeated(values: list[str]) -> list[int]:
    """Where a value stands that stood before."""
    first = {value: at for at, value in reversed(list(enumerate(values)))}
    return [at for at, value in enumerate(values) if first[value] != at]


def _secret(value: SecretStr, path: str, key: str) -> str:
    if value.get_secret_value() or not path:
        return value.get_secret_value()
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ValueError(f"{key}: cannot read the secret file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{key}: the secret file {path} is not UTF-8") from None


def _admin_key(admin: AdminSection) -> str:
    """LEEWAY_ADMIN_KEY, its _FILE, the file's own; "" when the gateway is to make one (in key_file, if that is new)."""
    key, path = SecretStr(os.environ.get("LEEWAY_ADMIN_KEY", "")), os.environ.get("LEEWAY_ADMIN_KEY_FILE", "")
    own_path = admin.key_file if os.path.exists(admin.key_file) else ""
    return _secret(key, path, "LEEWAY_ADMIN_KEY_FILE") or _secret(admin.key, own_path, "admin.key_file")


def _header_secret(key: str) -> str:
    if not sendable_key(key):
        raise ValueError("api_key: a key may only hold visible ASCII characters, at most 4096")
    return key


def load(path: str | None) -> GatewayConfig:
    """Read and check a configuration file (None: environment and defaults only). Raises ConfigError."""
    document: dict[str, Any] = {}
    where = path or "environment"
    if path is not None:
        try:
            document = tomllib.loads(Path(path).read_text())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not UTF-8") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: {error}") from None
    problems = _unknown_variables() + [f"{where}: {name}: no such option" for name in document if name.startswith("_")]
    try:
        settings = GatewaySettings(**{name: value for name, value in document.items() if not name.startswith("_")})
        built = build(settings)
    except ValidationError as error:
        problems += explain(error, where)
    except ValueError as error:
        problems += [f"{where}: {line}" for line in str(error).splitlines()]
    if problems:
        raise ConfigError("\n".join(problems))
    return built


def _unknown_variables() -> list[str]:
    """LEEWAY_SECTION__KEY of no section. Others are left alone: an orchestrator sets LEEWAY_PORT and the like itself."""
    nested = [name for name in os.environ if name.upper().startswith("LEEWAY_") and "__" in name]
    known = GatewaySettings.model_fields
    return [f"environment: {n}: no such section" for n in nested if n[7:].partition("__")[0].lower() not in known]


def explain(error: ValidationError, where: str) -> list[str]:
    """Every problem as `file or variable: key: reason`. What was given is shown only where it can't be a secret."""
    lines = []
    for problem in error.errors(include_url=False):
        key = ".".join(str(part) for part in problem["loc"])
        given = problem.get("input")
        secret = "key" in key or problem["type"] == "extra_forbidden" or "@" in str(given)
        shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) and not secret else ""
        lines.append(f"{_source(problem['loc'], where)}: {key}: {problem['msg'].removeprefix('Value error, ')}{shown}")
    return lines


def _source(loc: tuple[int | str, ...], where: str) -> str:
    """The environment variable that set this key, if one did, else the file."""
    set_here = {name.upper() for name in os.environ}
    for count in range(1, len(loc) + 1):
        name = "LEEWAY_" + "__".join(str(part).upper() for part in loc[:count])
        if name in set_here:
            return f"environment: {name}"
    return where


def _plain(section: Any) -> dict[str, Any]:
    return dict(section.model_dump())


def build(settings: GatewaySettings) -> GatewayConfig:
    """Settings to records. Raises ValueError (a line `key: reason` for each problem) for clashes and unreadable secrets."""
    admin = settings.admin
    problems = _clashes(settings)
    backends, admin_key = [], ""
    for index, section in enumerate(settings.backends):
        try:
            backends.append(section.record())
        except ValueError as error:
            problems.append(f"backends.{index}.{error}")
    try:
        admin_key = _admin_key(admin)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    return GatewayConfig(
        listen=records.Listen(**_plain(settings.listen)),
        backends=tuple(backends),
        models=tuple(ModelSpec(name, s.policy, s.d, tuple(s.aliases)) for name, s in settings.models.items()),
        keys=tuple(section.record() for section in settings.keys),
        limits=records.Limits(**_plain(settings.limits)),
        timeouts=records.Timeouts(**_plain(settings.timeouts)),
        queue=records.Queue(**_plain(settings.queue)),
        retry=records.Retry(**_plain(settings.retry)),
        health=records.Health(**_plain(settings.health)),
        pool=records.Pool(**_plain(settings.pool)),
        log=records.Log(**_plain(settings.log)),
        admin=records.Admin(
            key=admin_key,
            key_file=admin.key_file,
            state_file=admin.state_file,
            networks=tuple(admin.networks),
            backends_max=admin.backends_max,
        ),
        usage=settings.usage,
    )


def json_schema() -> dict[str, Any]:
    """The published JSON schema of gateway.toml."""
    schema = GatewaySettings.model_json_schema(by_alias=True)
    schema["title"] = "gateway.toml"
    return schema


def _print_records(path: str) -> int:
    """For serving.py: the checked configuration as JSON on standard output, or the problems on standard error."""
    try:
        sys.stdout.buffer.write(records.to_json(load(path)))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_print_records(sys.argv[1]))
