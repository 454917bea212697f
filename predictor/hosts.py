"""Hosts' swap profiles by name, from the file that comes with the package or one's own. Reads files; predicts nothing."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from predictor.cost import GB, HostProfile

FILE = Path(__file__).parent / "profiles" / "swap.toml"
_TIMES = ("start_s", "stop_s", "wake_s", "snapshot_s")
_SPEEDS = ("disk", "cache", "ram", "pcie")


class HostError(ValueError):
    """A file of hosts that cannot be used; the text says which host and key."""


def host_profiles(path: Path = FILE) -> Mapping[str, HostProfile]:
    """Every host of the file. Raises HostError, OSError."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("hosts", {})
        return {name: _host(name, table) for name, table in tables.items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise HostError(f"{path.name}: {error}") from error


def _host(name: str, table: Mapping[str, float]) -> HostProfile:
    wanted = {"memory_gb", *_TIMES, *(f"{speed}_gb_per_s" for speed in _SPEEDS)}
    if set(table) != wanted:
        raise ValueError(f"hosts.{name}: unknown or missing: {', '.join(sorted(set(table) ^ wanted))}")
    speeds = {f"{speed}_bytes_per_s": float(table[f"{speed}_gb_per_s"]) * GB for speed in _SPEEDS}
    times = {key: float(table[key]) for key in _TIMES}
    return HostProfile(name=name, memory_bytes=float(table["memory_gb"]) * GB, **speeds, **times)
