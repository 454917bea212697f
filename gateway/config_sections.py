"""The sections of gateway.toml as settings models: names, types, ranges and defaults of every option. Shell.

Defaults come from the records in config.py or equal theirs (a test holds them together). Reads secret files and
profiles only when a section is turned into its record.
"""

import dataclasses
import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from backends.kv_events import check_endpoint
from gateway import config as records
from gateway.addresses import check_url, sendable_key
from gateway.config import (
    DEFAULT_CLASS,
    BackendSpec,
    ClassSpec,
    EngineName,
    KeyLimits,
    KeySpec,
    ModelSpec,
    OrderName,
    PolicyName,
    Scheduling,
    split_address,
)
from gateway.section_base import DAY_S, Name, Section, section
from gateway.swap_sections import FootprintSection, SwapSection
from predictor.catalog import ProfileError, engine_profile

_VARIABLE = re.compile(r"\$\{\w+\}")


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
OptionalUrl = Annotated[str, AfterValidator(lambda text: _url(text) if text else "")]
Endpoint = Annotated[str, AfterValidator(lambda text: check_endpoint(text) if text else "")]
Network = Annotated[str, AfterValidator(_network)]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
RouteName = Literal[
    "chat", "completions", "responses", "messages", "embeddings", "rerank", "score", "classify", "pooling", "other"
]
Seconds = Annotated[float, Field(gt=0, le=86400)]


class BackendSection(Section):
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
    profile: str = Field("", max_length=1024)
    kv_blocks: int = Field(0, ge=0, le=1 << 31)
    block_size: int = Field(0, ge=0, le=65536)
    max_num_seqs: int = Field(0, ge=0, le=1_000_000)
    max_num_batched_tokens: int = Field(0, ge=0, le=1 << 31)
    sidecar: OptionalUrl = ""
    sidecar_token: SecretStr = SecretStr("")
    sidecar_token_file: str = ""
    kv_events: Endpoint = ""
    kv_replay: Endpoint = ""
    scheduling: Scheduling = "auto"
    restore_tokens_per_s: float = Field(0.0, ge=0, le=1e9)
    swap: SwapSection = SwapSection()

    def record(self, declared: bool = True) -> BackendSpec:
        """As the gateway uses it. Raises ValueError (`key: reason`) when its key can't be read or sent."""
        if self.kv_replay and not self.kv_events:
            raise ValueError("kv_replay: needs kv_events beside it")
        return BackendSpec(
            name=self.name,
            url=self.url.rstrip("/"),
            engine=self.engine,
            models=tuple(self.models),
            weight=self.weight,
            labels=tuple(sorted(self.labels.items())),
            api_key=peer_secret(self.api_key, self.api_key_file, "api_key"),
            max_in_flight=self.max_in_flight,
            declared=declared,
            profile=_known_profile(self.profile),
            kv_blocks=self.kv_blocks,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            sidecar=self.sidecar.rstrip("/"),
            sidecar_token=peer_secret(self.sidecar_token, self.sidecar_token_file, "sidecar_token"),
            kv_events=self.kv_events,
            kv_replay=self.kv_replay,
            scheduling=self.scheduling,
            restore_tokens_per_s=self.restore_tokens_per_s,
            swap=self.swap.record(self.url, self.models),
        )


_RULE = ModelSpec("*")  # the defaults stand there


class ModelSection(Section):
    """One [models.NAME] table."""

    policy: PolicyName = _RULE.policy
    aliases: list[ModelName] = Field(default_factory=list, max_length=256)
    d: int = Field(_RULE.d, ge=1, le=1024)
    objective: Literal["e2e", "ttft"] = _RULE.objective
    binding: Literal["late", "early"] = _RULE.binding
    order: OrderName = _RULE.order
    work_weight: float = Field(_RULE.work_weight, ge=0, le=1000, alias="lambda")
    mu: float = Field(_RULE.mu, ge=0, le=1000)
    margin: float = Field(_RULE.margin, ge=-1, le=0.9)
    overtaking_s: float = Field(_RULE.overtaking_s, ge=0, le=86400)
    age_rate: float = Field(_RULE.age_rate, ge=0, le=1e9)
    turn_after: float = Field(_RULE.turn_after, ge=0, le=1000)
    rho: float = Field(_RULE.rho, ge=-1, le=1)
    alpha: float = Field(_RULE.alpha, ge=0, le=4)
    age_s: float = Field(_RULE.age_s, gt=0, le=86400)
    ahead_tokens: int = Field(_RULE.ahead_tokens, ge=0, le=1 << 31)
    ttft_target_s: float = Field(_RULE.ttft_target_s, gt=0, le=86400)
    temperature: float = Field(_RULE.temperature, ge=0, le=1000)
    probe_s: float = Field(_RULE.probe_s, gt=0, le=10)
    stale_s: float = Field(_RULE.stale_s, gt=0, le=86400)
    error_limit: float = Field(_RULE.error_limit, gt=1, le=1000)
    footprint: FootprintSection = FootprintSection()

    def record(self, name: str) -> ModelSpec:
        """As the gateway uses it."""
        plain = self.model_dump(exclude={"footprint"})
        return ModelSpec(name=name, **{**plain, "aliases": tuple(self.aliases), "footprint": self.footprint.record()})


_CLASS = ClassSpec("*")
Milliseconds = Annotated[float, Field(ge=0, le=86_400_000)]


class ClassSection(Section):
    """One [classes.NAME] table."""

    ttft_ms: Milliseconds = _CLASS.ttft_ms
    tpot_ms: Milliseconds = _CLASS.tpot_ms
    e2e_ms: Milliseconds = _CLASS.e2e_ms
    strict: bool = _CLASS.strict
    models: list[ModelName] = Field(default_factory=list, max_length=4096)
    routes: list[RouteName] = Field(default_factory=list, max_length=64)
    priorities: list[int] = Field(default_factory=list, max_length=64)

    def record(self, name: str) -> ClassSpec:
        """As the gateway uses it. Raises ValueError (`reason`)."""
        if name == DEFAULT_CLASS:
            raise ValueError("the class default is promised nothing; give this one another name")
        times = (self.ttft_ms, self.tpot_ms, self.e2e_ms)
        return ClassSpec(name, *times, self.strict, tuple(self.models), tuple(self.routes), tuple(self.priorities))


class KeyLimitsSection(Section):
    """limits = {...} of a key."""

    concurrent: int = Field(0, ge=0)
    requests_per_min: int = Field(0, ge=0)
    tokens_per_min: int = Field(0, ge=0)


class KeySection(Section):
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


ListenSection = section(records.Listen, {"backlog": (1, 65535)}, {"data": Address, "control": Address})
LimitsSection = section(
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
TimeoutsSection = section(
    records.Timeouts,
    {f.name: (0.05, DAY_S) for f in dataclasses.fields(records.Timeouts) if f.name != "body_min_bytes_per_s"}
    | {"body_min_bytes_per_s": (0, 1 << 30)},
)
QueueSection = section(records.Queue, {"size": (0, 1_000_000), "timeout_s": (0.0, DAY_S)})
RetrySection = section(records.Retry, {"attempts": (1, 10), "ratio": (0.0, 1.0), "burst": (0, 10_000)})
HealthSection = section(
    records.Health,
    {
        "interval_s": (0.05, 3600.0),
        "timeout_s": (0.05, 60.0),
        "failures": (1, 100),
        "wedge_s": (0.5, DAY_S),
        "poison_ttl_s": (0.0, DAY_S),
    },
)
PoolSection = section(
    records.Pool, {"idle_connections": (0, 1 << 20), "idle_s": (0.0, 3600.0), "unproven_idle_s": (0.0, 3600.0)}
)
SloSection = section(records.Slo, {"records": (0, 1_000_000)})
TaggerSection = section(
    records.Tagger,
    {
        "deadline_ms": (0.1, 1000.0),
        "queue": (1, 4096),
        "cache_entries": (0, 1 << 20),
        "learn_per_s": (0.0, 1000.0),
        "compare_share": (0.0, 1.0),
        "log_bytes": (65536, 1 << 40),
        "log_files": (1, 1000),
        "log_rows": (1, 1_000_000),
    },
)
LogSection = section(records.Log, {"queue_lines": (1, 10_000_000)})


class AdminSection(Section):
    """[admin]"""

    key: SecretStr = SecretStr("")
    key_file: str = ""
    state_file: str = ""
    learnt_file: str = ""
    networks: list[Network] = list(records.Admin().networks)
    backends_max: int = Field(1024, ge=1, le=100_000)


def secret(value: SecretStr, path: str, key: str) -> str:
    """A secret given as text or as a file. Raises ValueError (`key: reason`)."""
    if value.get_secret_value() or not path:
        return value.get_secret_value()
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ValueError(f"{key}: cannot read the secret file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{key}: the secret file {path} is not UTF-8") from None


def header_secret(text: str, key: str) -> str:
    """The same if it can be sent in a header. Raises ValueError (`key: reason`)."""
    if not sendable_key(text):
        raise ValueError(f"{key}: a key may only hold visible ASCII characters, at most 4096")
    return text


def peer_secret(value: SecretStr, path: str, key: str) -> str:
    """What is sent to a backend or a sidecar. Raises ValueError (`key: reason`), for what somebody meant otherwise, too."""
    text = secret(value, path, f"{key}_file")
    if path and not text:
        raise ValueError(f"{key}_file: the secret file {path} is empty")
    if _VARIABLE.fullmatch(text):
        raise ValueError(f"{key}: variables are not replaced in this file; {key}_file names one that holds the key")
    return header_secret(text, key)


def _known_profile(name: str) -> str:
    if name:
        try:
            engine_profile(name)
        except ProfileError as error:
            raise ValueError(f"profile: {error}") from None
    return name
