"""gateway.toml and the environment into config records: all errors at once, each with file, key and reason. Shell.

Precedence: environment (`LEEWAY_SECTION__KEY`) over file over defaults. Secrets may be given as files (`*_file`). This
module is the only one that imports the settings library; the records that it builds do not.
"""

import os
import ssl
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gateway import config as records
from gateway.config import GatewayConfig, split_address
from gateway.config_sections import (
    AdminSection,
    BackendSection,
    ClassSection,
    HealthSection,
    KeySection,
    LimitsSection,
    ListenSection,
    LogSection,
    ModelName,
    ModelSection,
    PoolSection,
    QueueSection,
    RetrySection,
    SloSection,
    TaggerSection,
    TimeoutsSection,
    header_secret,
    secret,
)
from gateway.section_base import Name, told
from gateway.swap_config import Swaps
from gateway.swap_sections import DeviceSection, SwapsSection, swap_clashes


class ConfigError(ValueError):
    """The configuration is wrong; the text lists every problem, one a line."""


class GatewaySettings(BaseSettings):
    """The whole file."""

    model_config = SettingsConfigDict(env_prefix="LEEWAY_", env_nested_delimiter="__", extra="forbid", case_sensitive=False)

    listen: ListenSection = ListenSection()
    backends: list[BackendSection] = Field(default_factory=list, max_length=100_000)
    models: dict[ModelName, ModelSection] = Field(default_factory=dict, max_length=4096)
    keys: list[KeySection] = Field(default_factory=list, max_length=100_000)
    classes: dict[Name, ClassSection] = Field(default_factory=dict, max_length=256)
    devices: list[DeviceSection] = Field(default_factory=list, max_length=1024)
    swaps: SwapsSection = SwapsSection()
    slo: SloSection = SloSection()
    limits: LimitsSection = LimitsSection()
    timeouts: TimeoutsSection = TimeoutsSection()
    queue: QueueSection = QueueSection()
    retry: RetrySection = RetrySection()
    health: HealthSection = HealthSection()
    pool: PoolSection = PoolSection()
    tagger: TaggerSection = TaggerSection()
    log: LogSection = LogSection()
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
    """Two backends with one name, a key given twice, a log that gets nothing, an alias that is a model or another's alias."""
    names = [backend.name for backend in settings.backends]
    problems = [f"backends.{i}.name: two backends are named {names[i]!r}" for i in _repeated(names)]
    problems += [f"keys.{i}.sha256: this key is given twice" for i in _repeated([k.sha256.lower() for k in settings.keys])]
    if settings.tagger.log and settings.tagger.mode == "off":
        problems.append("tagger.log: nothing is logged while the mode is off")
    owners: dict[str, str] = {}
    served = {model for backend in settings.backends for model in backend.models} | set(settings.models)
    for name, spec in settings.models.items():
        for alias in spec.aliases:
            if alias in served:
                problems.append(f"models.{name}.aliases: alias {alias!r} of {name!r} is the name of a model itself")
            elif alias in owners:
                problems.append(f"models.{name}.aliases: alias {alias!r} is claimed by both {owners[alias]!r} and {name!r}")
            owners[alias] = name
    return problems + _class_clashes(settings) + swap_clashes(settings.devices, settings.backends, settings.models)


def _class_clashes(settings: GatewaySettings) -> list[str]:
    """Keys of unknown classes; a model, route or priority that two classes claim."""
    known = {*settings.classes, records.DEFAULT_CLASS}
    named = [(i, key.class_) for i, key in enumerate(settings.keys)]
    problems = [f"keys.{i}.class: there is no [classes.{name}]" for i, name in named if name not in known]
    for what in ("models", "routes", "priorities"):
        claims = [(item, name) for name, spec in settings.classes.items() for item in getattr(spec, what)]
        owners = dict(reversed(claims))
        problems += [f"classes.{n}.{what}: {i!r} is claimed by {owners[i]!r}, too" for i, n in claims if owners[i] != n]
    return problems


def _repeated(values: list[str]) -> list[int]:
    """Where a value stands that stood before."""
    first = {value: at for at, value in reversed(list(enumerate(values)))}
    return [at for at, value in enumerate(values) if first[value] != at]


def _tls_problems(listen: ListenSection) -> list[str]:
    """Files for TLS that cannot be used. Without a certificate the listener would be in the clear, whatever the key."""
    if not listen.tls_cert_file:
        return ["listen.tls_key_file: needs listen.tls_cert_file beside it"] if listen.tls_key_file else []
    for name in ("tls_cert_file", "tls_key_file"):
        path = getattr(listen, name)
        try:
            if path:
                Path(path).read_bytes()
        except OSError as error:
            return [f"listen.{name}: cannot read {path}: {error.strerror}"]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(listen.tls_cert_file, listen.tls_key_file or None, password="")
    except ssl.SSLError as error:
        return [f"listen.tls_cert_file: not a certificate with its key, in PEM: {error.reason or error}"]
    return []


def _admin_key(admin: AdminSection) -> str:
    """LEEWAY_ADMIN_KEY, its _FILE, the file's own; "" when the gateway is to make one (in key_file, if that is new)."""
    key, path = SecretStr(os.environ.get("LEEWAY_ADMIN_KEY", "")), os.environ.get("LEEWAY_ADMIN_KEY_FILE", "")
    own_path = admin.key_file if os.path.exists(admin.key_file) else ""
    from_environment = header_secret(secret(key, path, "LEEWAY_ADMIN_KEY_FILE"), "LEEWAY_ADMIN_KEY")
    return from_environment or header_secret(secret(admin.key, own_path, "admin.key_file"), "admin.key")


def load(path: str | None) -> GatewayConfig:
    """Read and check a configuration file (None: environment and defaults only). Raises ConfigError."""
    document: dict[str, Any] = {}
    where = path or "environment"
    if path is not None:
        try:
            # UTF-8 whatever the locale; some editors put a byte order mark first
            document = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
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
        secret = "key" in key or "token" in key or problem["type"] == "extra_forbidden" or "@" in str(given)
        shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) and not secret else ""
        lines.append(f"{_source(problem['loc'], where)}: {key}: {told(problem)}{_written(problem)}{shown}")
    return lines


def _written(problem: Mapping[str, Any]) -> str:
    """How a whole section is written in TOML, for one that is something else."""
    (name, *inner), kind = problem["loc"], problem["type"]
    if inner or kind not in ("list_type", "dict_type", "model_type"):
        return ""
    return (
        f", as in [[{name}]]"
        if kind == "list_type"
        else f", as in [{name}.NAME]"
        if kind == "dict_type"
        else f", as in [{name}]"
    )


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


@contextmanager
def _noted(problems: list[str], where: str) -> Iterator[None]:
    """What is wrong within is one problem more, at that key: all are told at once."""
    try:
        yield
    except ValueError as error:
        problems.append(f"{where}{error}")


def build(settings: GatewaySettings) -> GatewayConfig:
    """Settings to records. Raises ValueError (a line `key: reason` for each problem) for clashes and unreadable secrets."""
    admin = settings.admin
    problems = _clashes(settings) + _tls_problems(settings.listen)
    if settings.listen.data == settings.listen.control and split_address(settings.listen.data)[1]:
        problems.append(f"listen.control: {settings.listen.control} is the address of listen.data, too")
    backends, admin_key, classes, models = [], "", [], []
    for index, section in enumerate(settings.backends):
        with _noted(problems, f"backends.{index}."):
            backends.append(section.record())
    with _noted(problems, ""):
        admin_key = _admin_key(admin)
    for name, spec in settings.classes.items():
        with _noted(problems, f"classes.{name}: "):
            classes.append(spec.record(name))
    for name, rule in settings.models.items():
        with _noted(problems, f"models.{name}."):
            models.append(rule.record(name))
    if problems:
        raise ValueError("\n".join(problems))
    return GatewayConfig(
        listen=records.Listen(**_plain(settings.listen)),
        backends=tuple(backends),
        models=tuple(models),
        keys=tuple(section.record() for section in settings.keys),
        classes=tuple(classes),
        devices=tuple(section.record() for section in settings.devices),
        swaps=Swaps(**_plain(settings.swaps)),
        slo=records.Slo(**_plain(settings.slo)),
        limits=records.Limits(**_plain(settings.limits)),
        timeouts=records.Timeouts(**_plain(settings.timeouts)),
        queue=records.Queue(**_plain(settings.queue)),
        retry=records.Retry(**_plain(settings.retry)),
        health=records.Health(**_plain(settings.health)),
        pool=records.Pool(**_plain(settings.pool)),
        tagger=records.Tagger(**_plain(settings.tagger)),
        log=records.Log(**_plain(settings.log)),
        admin=records.Admin(
            key=admin_key,
            key_file=admin.key_file,
            state_file=admin.state_file,
            learnt_file=admin.learnt_file,
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
