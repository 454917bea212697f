"""One prompt to two models: one question where what is guessed depends on the prompt alone, two where models are read."""

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import GatewayConfig, ModelSpec, Tagger
from gateway.tagging import Tagging
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.scripted import ScriptedBackend
from tests.wire.tagger_kit import broken_command, patient, tiny_models

NAMES = ("m", "another-model")


def config(models: str) -> GatewayConfig:
    tagger = Tagger(mode="auto", models=models, deadline_ms=10_000.0)
    return replace(CONFIG, models=tuple([ModelSpec(name, "po2") for name in NAMES]), tagger=tagger)


def backends() -> tuple[ScriptedBackend, ...]:
    return tuple([ScriptedBackend(name, NAMES) for name in ("b0", "b1")])


async def asked(rig: Rig) -> Tagging:
    """The same prompt went to both models."""
    tagging = rig.app.plane.desks.tagging
    link = tagging.start()
    await until(lambda: link.state == "up", 60.0, lambda: link)
    for name in NAMES:
        assert (await rig.ask(chat("the same", model=name))).status == 200
    assert not tagging.counts.misses
    assert sum(tagging.counts.layers.values()) == 2, (tagging.counts.skips, tagging.counts.misses)
    return tagging


def test_one_prompt_to_two_models_is_one_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        tagging = await asked(rig)
        assert tagging.link is not None
        assert tagging.link.models == ("trees", "encoder")
        assert (tagging.counts.cache_hits, len(tagging.memory)) == (1, 1)

    run(case, config(tiny_models(tmp_path)), backends=backends())


def test_where_the_encoder_reads_models_each_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        rig.app.plane.desks.tagging.command = broken_command("by_model")
        tagging = await asked(rig)
        said = sorted([answer.guesses["encoder"].q50 for answer, _ in tagging.memory._known.values()])
        assert (tagging.counts.cache_hits, said) == (0, [2.0, 7.0])

    run(case, config(""), backends=backends())
