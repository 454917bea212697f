"""The encoder is put few questions where its answers decide nothing; the others are answered without it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gateway.config import ModelSpec
from predictor import features
from predictor.length import Guess
from predictor.prompts import PromptView
from tests.wire.kit import Rig, chat, run, until
from tests.wire.scripted import Held, ScriptedBackend
from tests.wire.tagger_kit import patient, tiny_models
from tests.wire.test_tagger import config, up


def test_an_encoder_that_does_not_help_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After answers that it foretold badly it is put one question in ten, and the others are answered without it."""
    patient(monkeypatch)
    guesses = {"encoder": Guess(7.0, 8.0, 9.0, "encoder")}
    cues = features.cues(PromptView())

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        rng = Random(1)
        for _ in range(400):
            tag = tagging.tagger.tag("m", "chat", cues, guesses, -1)
            tagging.tagger.observe(tag, round(rng.lognormvariate(3.0, 0.7)) + 1, False)
        await until(lambda: tagging.quick("m", "chat").tag.estimate.q50 < 100)
        for number in range(20):
            assert (await rig.ask(chat(f"number {number}"))).status == 200
        assert tagging.counts.layers.total() == 20
        assert tagging.counts.without_encoder == 18
        assert not tagging.counts.misses

    run(case, config(tiny_models(tmp_path), learn_per_s=0.0), backends=2)


def test_an_encoder_whose_lengths_move_nobody_in_the_line_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    play = Held()
    backend = ScriptedBackend("b0")

    async def case(rig: Rig) -> None:
        backend.play = play
        tagging = await up(rig)
        asked = [asyncio.create_task(rig.ask(chat("1" * 1_500_000, stream=True)))]
        await until(lambda: len(play.order) == 1)
        ((_, desk),) = rig.app.plane.desks
        desk.hindsight.moving = 0.0
        await until(lambda: tagging.quick("m", "chat") is not None and tagging.sparing.in_line("m"))
        asked += [asyncio.create_task(rig.ask(chat(f"number {number}", stream=True))) for number in range(10)]
        await until(lambda: desk.hindsight.compared == 10, 60.0, lambda: tagging.counts.misses)
        assert tagging.counts.without_encoder == 9
        play.go_on.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}

    run(case, config(tiny_models(tmp_path), "plan", learn_per_s=0.0), backends=(backend,))


def test_an_encoder_that_changes_no_fit_is_spared_where_kv_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are held for their lengths; that they fit either way is seen, and found so often that few are asked about."""
    patient(monkeypatch)
    asked_fcfs = replace(config(tiny_models(tmp_path), "plan", learn_per_s=0.0), models=(ModelSpec("m", "plan", order="fcfs"),))

    async def case(rig: Rig) -> None:
        tagging = await up(rig)
        tagging._rooms["m"] = (float("inf"), False)
        for number in range(3):
            assert (await rig.ask(chat(f"number {number}"))).status == 200
        assert tagging.counts.without_encoder == 0
        assert tagging.sparing.fitting["m"] == (1 - 1 / 200) ** 3
        tagging.sparing.fitting["m"] = 0.04
        for number in range(3, 13):
            assert (await rig.ask(chat(f"number {number}"))).status == 200
        assert tagging.counts.layers.total() == 13
        assert tagging.counts.without_encoder == 9
        assert tagging.sparing.fitting["m"] == 0.04 * (1 - 1 / 200), "it is looked at again"

    run(case, asked_fcfs, backends=2)
