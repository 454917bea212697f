"""gateway.toml loads, and shows every option with the default that the code has."""

import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway import config as records
from gateway import config_file, swap_config

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "gateway.toml").read_text()
_OPTION = re.compile(r"^# ?([a-z0-9_]+(\.[a-z0-9_]+)? = .*)$")


def uncommented() -> dict[str, Any]:
    """The file with every commented option switched on."""
    lines = [_OPTION.sub(r"\1", line) for line in TEXT.splitlines()]
    text = re.sub(r"^# (\[\[[a-z]+\]\])$", r"\1", "\n".join(lines), flags=re.MULTILINE).replace(
        'sha256 = "..."', f'sha256 = "{"0" * 64}"'
    )
    return tomllib.loads(text)


def test_it_loads() -> None:
    assert config_file.load(str(ROOT / "gateway.toml")).backends[0].name == "a"


def test_it_loads_with_every_option_switched_on() -> None:
    document = uncommented()
    document["models"]["*"].pop("aliases")
    assert document["devices"]
    config_file.GatewaySettings(**document)


SECTIONS = {
    "listen": records.Listen,
    "limits": records.Limits,
    "timeouts": records.Timeouts,
    "queue": records.Queue,
    "retry": records.Retry,
    "swaps": swap_config.Swaps,
    "slo": records.Slo,
    "health": records.Health,
    "pool": records.Pool,
    "tagger": records.Tagger,
    "log": records.Log,
    "admin": records.Admin,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_option_is_shown_with_its_default(section: str) -> None:
    shown = uncommented()[section]
    record = SECTIONS[section]
    assert set(shown) == {field.name for field in fields(record)}
    for field in fields(record):
        assert shown[field.name] == pytest.approx(_plain(getattr(record(), field.name))), f"{section}.{field.name}"


def test_tables_show_every_option() -> None:
    document = uncommented()
    assert set(document["backends"][0]) == set(config_file.BackendSection.model_fields)
    _shows(document["backends"][0]["swap"], swap_config.SwapSpec())
    shown = document["models"]["*"]
    options = {spec.alias or name: name for name, spec in config_file.ModelSection.model_fields.items()}
    assert set(shown) == set(options)
    _shows(shown.pop("footprint"), swap_config.FootprintSpec())
    for option in shown:
        assert shown[option] == pytest.approx(_plain(getattr(records.ModelSpec("*"), options[option]))), f"models.*.{option}"
    _shows(document["devices"][0], swap_config.DeviceSpec("gpu0", 24.0))
    promised = document["classes"]["chat"]
    assert set(promised) == set(config_file.ClassSection.model_fields)
    for option, value in promised.items():
        assert value == pytest.approx(_plain(getattr(records.ClassSpec("*"), option))), f"classes.*.{option}"
    key_options = {spec.alias or name for name, spec in config_file.KeySection.model_fields.items()}
    assert set(document["keys"][0]) == key_options
    assert set(document["keys"][0]["limits"]) == {field.name for field in fields(records.KeyLimits)}


def test_every_section_is_shown() -> None:
    known = set(SECTIONS) | {"backends", "models", "keys", "classes", "devices", "usage"}
    assert set(uncommented()) == known
    assert {field.name for field in fields(records.GatewayConfig)} == known


def _shows(table: dict[str, Any], record: Any) -> None:
    assert set(table) == {field.name for field in fields(record)}
    for name, value in table.items():
        default = getattr(record, name)
        assert value == pytest.approx(dict(default) if name == "env" else _plain(default)), name


def _plain(value: Any) -> Any:
    assert not is_dataclass(value)
    return list(value) if isinstance(value, tuple) else value
