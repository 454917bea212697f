"""What stays in memory of requests that are over: nothing, whatever is remembered of them and whatever stays open."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config import ModelSpec, Tagger
from gateway.forward import Exchange
from gateway.placement import Placement
from gateway.relay.downstream import ClientConnection
from gateway.relay.upstream import UpstreamConnection
from tests.wire.kit import CONFIG, Rig, chat, run, until
from tests.wire.tagger_kit import patient, tiny_models

ASKED = 8


def alive(*kinds: type) -> int:
    """How many objects of these kinds somebody still holds."""
    gc.collect()
    return sum(type(one) in kinds for one in gc.get_objects())


def held() -> int:
    """Requests, their searches for a place and their clients' connections."""
    return alive(Exchange, Placement, ClientConnection)


def test_a_backend_connection_that_is_kept_holds_no_request() -> None:
    async def case(rig: Rig) -> None:
        assert (await rig.ask(chat("one"))).status == 200
        assert (await rig.ask(chat("two", stream=True))).status == 200
        await until(lambda: held() == 0, say=held)
        assert alive(UpstreamConnection) > 0

    run(case, CONFIG, backends=1)


def test_an_answer_of_the_tagger_that_is_remembered_holds_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)

    async def case(rig: Rig) -> None:
        tagging = rig.app.plane.desks.tagging
        await until(lambda: tagging.link is not None and tagging.link.state == "up", 60.0, lambda: tagging.link)
        for number in range(ASKED):
            assert (await rig.ask(chat(f"question {number}"))).status == 200
        assert sum(tagging.counts.layers.values()) == ASKED
        assert tagging.counts.cache_hits == 0
        await until(lambda: held() == 0, say=held)
        await rig.ask(chat("question 3"))
        assert tagging.counts.cache_hits == 1

    tagger = Tagger(mode="on", models=tiny_models(tmp_path), deadline_ms=20_000.0)
    run(case, replace(CONFIG, models=(ModelSpec("m", "po2"),), tagger=tagger), backends=2)
