"""The configuration as records: rules by model, addresses, the trip through JSON, and secrets out of sight."""

import dataclasses
from collections.abc import Mapping
from typing import get_args

import pytest

from gateway.config import (
    Admin,
    BackendSpec,
    GatewayConfig,
    KeyLimits,
    KeySpec,
    Limits,
    Listen,
    ModelSpec,
    PolicyName,
    from_json,
    split_address,
    to_json,
)
from gateway.policies.table import COUNTING, PROBING

CANARY = "canary-3fa9"
FULL = GatewayConfig(
    listen=Listen(data="[::1]:80", reuse_port=True),
    backends=(
        BackendSpec("a", "http://a", "vllm", ("m", "n"), 2.0, (("zone", "1"), ("tier", "x")), CANARY, 5, declared=False),
        BackendSpec("b", "http://b"),
    ),
    models=(ModelSpec("m", "consistent_hash", 3, ("alias", "other")), ModelSpec("*", "random")),
    keys=(KeySpec(CANARY, "k", "gold", 3.0, KeyLimits(1, 2, 3)), KeySpec("0" * 64)),
    limits=Limits(n=7),
    admin=Admin(key=CANARY, networks=("10.0.0.0/8",)),
    usage="off",
)


@pytest.mark.parametrize("config", [GatewayConfig(), FULL])
def test_the_records_survive_json(config: GatewayConfig) -> None:
    assert from_json(to_json(config)) == config


def test_no_repr_shows_a_secret() -> None:
    assert CANARY not in repr(FULL)
    for record in (*FULL.backends, *FULL.keys, FULL.admin):
        assert CANARY not in repr(record)


@pytest.mark.parametrize(
    ("models", "spec"),
    [
        ((), ModelSpec("m")),
        ((ModelSpec("n", "random"),), ModelSpec("m")),
        ((ModelSpec("m", "random"),), ModelSpec("m", "random")),
        ((ModelSpec("*", "min_qpm"),), ModelSpec("*", "min_qpm")),
        ((ModelSpec("*", "min_qpm"), ModelSpec("m", "random")), ModelSpec("m", "random")),
        ((ModelSpec("m", "random"), ModelSpec("*", "min_qpm")), ModelSpec("m", "random")),
    ],
)
def test_a_model_s_rule_is_its_own_else_the_star_s(models: tuple[ModelSpec, ...], spec: ModelSpec) -> None:
    assert GatewayConfig(models=models).model("m") == spec


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:8080", ("::1", 8080)),
        ("0.0.0.0:65535", ("0.0.0.0", 65535)),
    ],
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "localhost", ":8080", "localhost:", "localhost:http", "localhost:-1", "localhost:80 ", "h:\u0668"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(address)


@pytest.mark.parametrize("address", ["localhost:65536", "localhost:99999", "[::1]:808080"])
def test_a_port_beyond_the_last_is_none(address: str) -> None:
    """The system would take it modulo 65536, or any free one."""
    with pytest.raises(ValueError, match="is above 65535"):
        split_address(address)


def test_every_policy_that_may_be_named_exists() -> None:
    assert set(get_args(PolicyName)) == {"auto", "plan", *COUNTING, *PROBING}
    assert not set(COUNTING) & set(PROBING)


def test_every_limit_limits_something_by_default() -> None:
    """Nothing that a client or a peer can grow is unlimited unless somebody says so."""
    shown: Mapping[str, int] = dataclasses.asdict(Limits())
    assert all(value > 0 for value in shown.values())
    assert shown["body_bytes"] >= 32 * 1024 * 1024
