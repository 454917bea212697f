"""Prompts keep away from those who decode where a class is promised the pace of its answers."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from backends.base import Identity
from gateway.config import BackendSpec, ClassSpec, GatewayConfig, Health, ModelSpec
from gateway.desks import TPOT_MU, Desks
from gateway.fleet import Fleet

CHAT = ClassSpec("chat", ttft_ms=800.0)


@pytest.mark.parametrize(
    ("classes", "own", "mu"),
    [
        ((), 0.0, 0.0),
        ((CHAT,), 0.0, 0.0),
        ((CHAT, replace(CHAT, name="voice", tpot_ms=50.0)), 0.0, TPOT_MU),
        ((replace(CHAT, tpot_ms=50.0),), 0.2, 0.2),
    ],
)
def test_a_promised_pace_prices_decodes(classes: tuple[ClassSpec, ...], own: float, mu: float) -> None:
    fleet = Fleet(Health())
    for name in ("a", "b"):
        fleet.probed(
            fleet.added(BackendSpec(name, f"http://10.0.0.1/{name}")), Identity("vllm", "0", ("m",), "generate", 4096), 0.0
        )
    config = GatewayConfig(models=(ModelSpec("m", mu=own),), classes=classes)
    plane = SimpleNamespace(fleet=fleet, config=config, now=lambda: 0.0)
    station = Desks(plane, Random(0)).station("m", "chat")  # type: ignore[arg-type]
    assert station is not None
    assert (station.desk.rule.policy, station.desk.rule.mu) == ("plan", mu)
