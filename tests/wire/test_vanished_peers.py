"""Peers that vanish without a word: the kernel is told to ask for signs of life on every connection, of either side.

That they are asked for cannot be hurried to less than 20 s, so what is looked at is what the kernel was told.
"""

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop

from gateway.relay.lifesigns import EVERY_S, MISSED, OF_BACKENDS_S, OF_CLIENTS_S
from tests.wire.kit import Rig, chat, run


def told(transport: asyncio.BaseTransport | None) -> tuple[int, int, int]:
    """What the kernel was told of a connection."""
    assert transport is not None
    one = transport.get_extra_info("socket")
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    idle_s, every_s, missed = (one.getsockopt(socket.IPPROTO_TCP, name) for name in names)
    return idle_s, every_s, missed


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_both_sides_are_asked_for_signs_of_life(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def case(rig: Rig) -> None:
        peer = await rig.connect()
        peer.ask(chat())
        assert (await peer.answer()).status == 200
        (client,), (pool,) = rig.app.plane.door.clients, rig.app.plane.pools
        assert told(client._transport) == (OF_CLIENTS_S, EVERY_S, MISSED)
        assert told(pool._idle[-1]._transport) == (OF_BACKENDS_S, EVERY_S, MISSED)

    run(case, on=loop)
