"""Slips in what is configured of backends that the log tells, once, while they are used: models that a server does not list,
and one server under two names."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.config import BackendSpec
from tests.wire.kit import Rig, chat, run, until
from tests.wire.scripted import ScriptedBackend


def told(rig: Rig) -> list[dict[str, Any]]:
    """The lines about it."""
    return [line for line in rig.log() if line["event"] == "models not listed"]


def test_a_model_that_the_server_does_not_list_is_told() -> None:
    async def case(rig: Rig) -> None:
        await until(lambda: bool(told(rig)))
        assert [(line["name"], line["models"], line["listed"]) for line in told(rig)] == [("b0", ["other"], ["m"])]
        assert (await rig.ask(chat())).status == 200
        backend, probes = rig.backend, 0

        def counted(call) -> None:  # type: ignore[no-untyped-def]
            nonlocal probes
            probes += 1
            call.answer(b'{"object":"list","data":[{"id":"m"}]}')

        backend.get = counted
        await until(lambda: probes > 12)  # it was looked at once more: every tenth probe
        assert len(told(rig)) == 1

    run(case, spec=lambda spec: replace(spec, models=("m", "other")))


@pytest.mark.parametrize(("models", "told_of"), [(("m",), True), ((), True), (("other",), False)])
def test_one_server_under_two_names_is_told(models: tuple[str, ...], told_of: bool) -> None:
    """Not where they are for different models of it, as for a server that loads several."""

    server, name = ScriptedBackend("b0", ("m", "other")), ScriptedBackend("twin")

    def spec(made: BackendSpec) -> BackendSpec:
        return replace(made, url=server.url, models=("m",) if made.name == "b0" else models)

    async def case(rig: Rig) -> None:
        def twins() -> list[tuple[list[str], str]]:
            return [(line["names"], line["url"]) for line in rig.log() if line["event"] == "one server under two names"]

        await until(lambda: sum(line["event"] == "backend" for line in rig.log()) == 2)
        if told_of:
            await until(lambda: bool(twins()))
        assert twins() == ([(["b0", "twin"], server.url)] if told_of else [])

    run(case, backends=(server, name), spec=spec)
