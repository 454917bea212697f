"""The data listener's door: who is let in, who is there, and how all of them leave. Shell; touched only by the event loop.

Nobody who was let in is sent away without a word: while it drains, those whom the kernel holds in its line are taken, too,
each may send one more request, and whoever is left at the limit gets one error.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from socket import socket
from typing import Protocol, cast

from gateway.config import GatewayConfig, Listen, split_address
from gateway.crowd import make_room
from gateway.descriptors import affordable_clients
from gateway.last_calls import queued
from gateway.logs import Logs
from gateway.relay.downstream import ClientConnection
from gateway.relay.lifesigns import OF_CLIENTS_S, ask_for_signs

FLUSH_S = 1.0


class Listening(Protocol):
    """A server with its sockets: a list of them with uvloop, a tuple without."""

    @property
    def sockets(self) -> Sequence[socket]: ...


class Door:
    """See the module's words. `made` makes the connection of each client; `most` is how many there may be."""

    def __init__(
        self, config: GatewayConfig, loop: asyncio.AbstractEventLoop, logs: Logs, made: Callable[[], ClientConnection]
    ) -> None:
        self.clients: dict[ClientConnection, None] = {}  # as they came
        self._affordable = affordable_clients()
        self._limit = config.limits.connections
        self._loop = loop
        self._logs = logs
        self._made = cast("Callable[[], asyncio.Protocol]", made)  # one by shape
        self._servers: list[asyncio.Server] = []
        self._empty = asyncio.Event()
        self._tls: tuple[ssl.SSLContext, Listen] | None = None

    @property
    def most(self) -> int:
        """As configured, or as open files allow."""
        return min(self._limit, self._affordable)

    @property
    def port(self) -> int:
        """The data listener's port (of the first socket)."""
        listening = cast("Listening", self._servers[0])
        return int(listening.sockets[0].getsockname()[1])

    @property
    def busy(self) -> int:
        """Connections with a request on them."""
        return sum(not client.idle for client in self.clients)

    async def open(self, listen: Listen) -> None:
        """Listen there. Raises OSError."""
        host, port = split_address(listen.data)
        if listen.tls_cert_file:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), listen
            _read_certificate(*self._tls)
        server = await self._loop.create_server(
            self._made,
            host,
            port,
            backlog=listen.backlog,
            reuse_port=listen.reuse_port or None,
            ssl=self._tls[0] if self._tls is not None else None,
        )
        for one in cast("Listening", server).sockets:
            ask_for_signs(one, OF_CLIENTS_S)
        self._servers.append(server)

    def adopt(self, config: GatewayConfig) -> None:
        """The limit is this one from now on, and the certificate as its files are; where it listens stays."""
        self._limit = config.limits.connections
        try:
            if self._tls is not None:
                _read_certificate(*self._tls)
        except OSError as error:
            self._logs.event("error", "certificate not read again", reason=error.strerror or type(error).__name__)

    def joined(self, client: ClientConnection) -> bool:
        """A client connected. False when there are too many, and none of them is idle."""
        self.clients[client] = None
        return len(self.clients) <= self.most or make_room(self.clients, client)

    def left(self, client: ClientConnection) -> None:
        """A client's connection is gone."""
        self.clients.pop(client, None)
        if not self.clients:
            self._empty.set()

    async def drain(self, limit_s: float) -> None:
        """Let nobody in any more, let requests finish for `limit_s`, then give each that is left one error."""
        await self._take_last()
        for client in list(self.clients):
            client.last_request()
        if not await self._emptied(limit_s):
            for client in list(self.clients):
                client.drain_cut()
            await self._emptied(FLUSH_S)  # the last errors are on their way; who does not read is not waited for

    async def close(self) -> None:
        """End every connection that is left."""
        self.shut()
        for client in list(self.clients):
            client.abort()
        await self._emptied(FLUSH_S)

    def shut(self) -> None:
        """Let nobody in any more."""
        for server in self._servers:
            server.close()

    async def _take_last(self) -> None:
        """Close the listeners; take those who wait to be accepted."""
        last = queued([one.fileno() for server in self._servers for one in cast("Listening", server).sockets])
        self.shut()
        if last:
            await asyncio.wait([self._loop.create_task(self._take(one)) for one in last], timeout=FLUSH_S)

    async def _take(self, one: socket) -> None:
        tls = self._tls[0] if self._tls is not None else None
        with suppress(OSError):  # it has left again, or speaks no TLS
            await self._loop.connect_accepted_socket(self._made, one, ssl=tls, ssl_handshake_timeout=FLUSH_S if tls else None)

    async def _emptied(self, limit_s: float) -> bool:
        """Whether all have left within that time."""
        if not self.clients:
            return True
        self._empty.clear()
        try:
            await asyncio.wait_for(self._empty.wait(), limit_s)
        except TimeoutError:
            return False
        return True


def _read_certificate(context: ssl.SSLContext, listen: Listen) -> None:
    """The listener's certificate, as its files are now. Raises OSError; then the old one stays whole."""
    for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):  # a certificate without its key would stay in it
        one.load_cert_chain(listen.tls_cert_file, listen.tls_key_file or None)
