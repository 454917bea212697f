"""Backends whose name has several addresses, of which the server listens on some: `localhost` is the usual one."""

import asyncio
import socket
from dataclasses import replace

from tests.wire.kit import Rig, chat, run

NAME = "engine.test"
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.1")  # the scripted backend listens on the last


class Names(asyncio.SelectorEventLoop):
    """A loop that knows one more name."""

    async def getaddrinfo(self, host, port, **rest):  # type: ignore[no-untyped-def]
        if host != NAME:
            return await super().getaddrinfo(host, port, **rest)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in ADDRESSES]


def test_each_address_of_a_name_is_tried() -> None:
    """Probes try them all; a request that took the first only would fail at a backend that is well."""

    async def case(rig: Rig) -> None:
        for _ in range(5):
            assert (await rig.ask(chat())).status == 200
        (replica,) = rig.app.plane.fleet
        assert (replica.state, replica.failed_total) == ("ready", 0)

    run(case, on=Names, spec=lambda spec: replace(spec, url=spec.url.replace("127.0.0.1", NAME)))


def test_a_name_without_a_listener_fails_once() -> None:
    """All addresses refuse: one failure of the backend, and a 502 that says that nothing ran."""

    async def case(rig: Rig) -> None:
        rig.backend.kill()
        answer = await rig.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "connect_failed")
        assert b"x-should-retry" not in answer.headers

    run(case, on=Names, spec=lambda spec: replace(spec, url=spec.url.replace("127.0.0.1", NAME)))
