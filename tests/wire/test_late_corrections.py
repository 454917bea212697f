"""A length that the tagger tells late reaches the sidecar of the request's engine: by a correction, or with its reservation."""

import asyncio
import json
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from gateway.config import GatewayConfig, ModelSpec, Tagger
from gateway.tagging import Tagging
from predictor.wire import parse_ask, parse_correction
from tests.wire.kit import CONFIG, Rig, chat, metric, run, until
from tests.wire.scripted import Held, ScriptedBackend
from tests.wire.tagger_kit import broken_command, patient
from tests.wire.test_probing import Link, Scripted
from tests.wire.test_probing_notes import Message, Sidecar, answer, taking
from tests.wire.test_tagger import Trusting, up

TAGGED = round(exp(5.0))  # what the tagger says in the end
RULE = ModelSpec("m", "po2", binding="early", probe_s=10.0)


def config() -> GatewayConfig:
    """The tagger is asked, and not waited for."""
    return replace(CONFIG, models=(RULE,), tagger=Tagger(mode="auto", deadline_ms=1.0))


async def held_tagger(rig: Rig, go: Path) -> Tagging:
    tagging = rig.app.plane.desks.tagging
    tagging.command, tagging.tagger = broken_command("held", go), Trusting()
    tagging.start()
    return await up(rig)


async def answers_late(tagging: Tagging, go: Path) -> None:
    """Let it answer once its question is given up."""
    await until(lambda: tagging.counts.misses == {"late": 1}, say=lambda: tagging.counts.misses)
    go.touch()
    await until(lambda: tagging.counts.late_used == 1, say=lambda: tagging.counts.misses)


def with_sidecar(rig: Rig, url: str) -> None:
    for replica in list(rig.app.plane.fleet):
        rig.app.plane.respecify_backend(replace(replica.spec, sidecar=url))


def test_a_request_that_was_sent_is_corrected_at_its_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    play, sidecar = Held(), Sidecar(taking)
    backends = (ScriptedBackend("b0"), ScriptedBackend("b1"))

    async def case(rig: Rig) -> None:
        for backend in backends:
            backend.play = play
        async with sidecar.scripted.running():
            with_sidecar(rig, sidecar.scripted.url)
            tagging = await held_tagger(rig, tmp_path / "go")
            asked = asyncio.create_task(rig.ask(chat("how long?", stream=True), headers={"x-request-id": "it"}))
            await answers_late(tagging, tmp_path / "go")
            await until(lambda: any(target == b"/correct" for target, _ in sidecar.told), say=sidecar.story)
            play.go_on.set()
            assert (await asked).status == 200
            assert metric(await rig.metrics(), "leeway_sidecar_notes_lost_total") == 0
            rig.app.plane.adopt(rig.app.plane.config)  # the connections to sidecars are closed

    run(case, config(), backends=backends)
    notes = [(target, body) for target, body in sidecar.told if target != b"/predict"]
    assert [(target, json.loads(body)["id"]) for target, body in notes] == [(b"/reserve", "it"), (b"/correct", "it")]
    assert parse_ask(notes[0][1]).lengths.q50 != TAGGED
    assert parse_correction(notes[1][1]).lengths.q50 == TAGGED


def test_a_request_that_is_being_probed_for_goes_with_its_late_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    play = Held()
    backends = (ScriptedBackend("b0"), ScriptedBackend("b1"))
    told: list[Message] = []

    async def case(rig: Rig) -> None:
        known = asyncio.Event()

        async def holds(link: Link) -> None:
            while True:
                head = await link.reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                told.append((head.split(b" ")[1], await link.reader.readexactly(length)))
                await known.wait()
                link.writer.write(answer(0))

        for backend in backends:
            backend.play = play
        async with Scripted(holds).running() as sidecar:
            with_sidecar(rig, sidecar.url)
            tagging = await held_tagger(rig, tmp_path / "go")
            asked = asyncio.create_task(rig.ask(chat("how long?", stream=True)))
            await answers_late(tagging, tmp_path / "go")
            assert [target for target, _ in told] == [b"/predict", b"/predict"]
            known.set()
            await until(lambda: len(play.order) == 1)
            mirrors = [replica.mirror for replica in rig.app.plane.fleet if replica.mirror is not None]
            assert [seat.rest.median for mirror in mirrors for seat in mirror.seats] == [TAGGED]
            await until(lambda: len(told) == 3)
            play.go_on.set()
            assert (await asked).status == 200
            rig.app.plane.adopt(rig.app.plane.config)  # the connections to sidecars are closed

    run(case, config(), backends=backends)
    assert told[2][0] == b"/reserve"
    assert parse_ask(told[2][1]).lengths.q50 == TAGGED
