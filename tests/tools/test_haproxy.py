"""The shipped HAProxy snippet in front of the gateway: `option http-no-delay` and `option abortonclose` do their work."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.tools import front
from tests.tools.programs import comes_up, find, free_port, listening, running
from tests.wire.kit import Rig, run

MAIN = """
global
    maxconn 512
"""


def haproxy(folder: Path, **changes: tuple[str, str]) -> front.Front:
    """HAProxy with the snippet, changed as told."""

    @asynccontextmanager
    async def start(rig: Rig) -> AsyncIterator[int]:
        port = free_port()
        snippet = front.rendered(
            "haproxy.cfg",
            gateway=("gateway1 127.0.0.1:8080", f"gateway1 127.0.0.1:{rig.app.plane.port}"),
            listener=("bind :80\n", f"bind 127.0.0.1:{port}\n"),
            **changes,
        )
        file = folder / "haproxy.cfg"
        file.write_text(MAIN + snippet)
        async with running((find("haproxy"), "-db", "-f", str(file)), folder / "haproxy.log") as program:
            await comes_up(program, lambda: listening(port))
            yield port

    return start


def test_events_pass_at_once(tmp_path: Path) -> None:
    run(front.streams_at_once(haproxy(tmp_path)))


def test_without_the_option_haproxy_holds_events(tmp_path: Path) -> None:
    """The control: the option in the snippet is what lets events through."""

    async def case(rig: Rig) -> None:
        async with haproxy(tmp_path, option=("option http-no-delay", ""))(rig) as port:
            lags, _ = await front.lags_s(rig, port)
            assert max(lags) > front.LAG_S

    run(case)


@pytest.mark.parametrize("case", [front.answers_whole, front.keeps_connections])
def test_requests(tmp_path: Path, case: front.Check) -> None:
    run(case(haproxy(tmp_path)))


@pytest.mark.parametrize("phase", ["first byte", "stream"])
def test_a_leaving_client_reaches_the_backend(tmp_path: Path, phase: str) -> None:
    run(front.leaving_is_told(haproxy(tmp_path), phase))
