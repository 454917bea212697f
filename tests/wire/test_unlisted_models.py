"""Models that a backend is configured with and that its server does not list: its log says so, once, and it is used."""

from dataclasses import replace
from typing import Any

from tests.wire.kit import Rig, chat, run, until


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
