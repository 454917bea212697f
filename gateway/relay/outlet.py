"""How a connection's bytes leave: straight to the kernel where that is possible (a plain socket, a compiler at
hand), else by the transport."""

import asyncio
from collections.abc import Iterable
from typing import Protocol

try:
    from gateway.relay.straight import Outlet
except ImportError:  # never compiled: the same bytes a moment later
    Outlet = None  # type: ignore[assignment,misc]


class Way(Protocol):
    """What a transport and an Outlet have in common."""

    def write(self, data: bytes) -> None: ...
    def writelines(self, parts: Iterable[bytes | memoryview]) -> None: ...


def way_out(transport: asyncio.Transport) -> Way:
    """What writes to this transport from now on: nothing else may, but for its end."""
    socket = transport.get_extra_info("socket")
    if Outlet is None or socket is None or transport.get_extra_info("sslcontext") is not None:
        return transport
    return Outlet(transport, socket.fileno())
