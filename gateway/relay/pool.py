"""Keep-alive connections to one backend. Shell: it connects; which idle connection may be trusted is idle.IdleTrust's.

The address is checked at every connect, and resolved anew unless that was a moment ago, so that a name which is re-pointed
after it was registered gains nothing. Kept connections follow a name that moves. No redirects, no proxies, no environment.
"""

import asyncio
import errno
import ipaddress
import re
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

from backends.reach import Name, first_of
from gateway.config import Limits, Pool
from gateway.relay.heads import hop_lines
from gateway.relay.idle import LESSON_S, IdleTrust
from gateway.relay.lifesigns import OF_BACKENDS_S, ask_for_signs
from gateway.relay.memo import HeadStore
from gateway.relay.responses import ResponseHead
from gateway.relay.upstream import UpstreamConnection

AddressCheck = Callable[[str], bool]
FAILED_LAST_S = 30.0
FORGOTTEN_S = 3600.0
LEFT_S = 15.0  # a name that gives some of many addresses in turn has not left those that it gave lately
_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))  # the last: no port left
_KEEP_ALIVE = re.compile(rb"timeout=(\d{1,6})")


class ConnectFailedError(Exception):
    """No connection came about, so nothing ran. `timed_out` tells a silent peer from a refusing one; `ours`: this process
    could not even try, which says nothing about the peer."""

    def __init__(self, message: str, timed_out: bool = False, ours: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out
        self.ours = ours


class BackendPool:
    """Connections to the backend at `url` (http or https, optionally with a path prefix)."""

    def __init__(
        self,
        url: str,
        api_key: str,
        pool: Pool,
        limits: Limits,
        allowed: AddressCheck,
        tls: Callable[[], ssl.SSLContext],
        now: Callable[[], float],
    ) -> None:
        parts = urlsplit(url)
        self._tls = tls() if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._literal = _is_address(self._host)
        self._name = Name(self._host, self._port, now)
        self._failed_s: dict[str, float] = {}  # addresses of the name that could not be reached, and when
        self._given_s: dict[str, float] = {}  # addresses of the name, and when it last gave them
        self._left: frozenset[str] = frozenset()  # those that it does not give any more
        self._settings = pool
        self._now = now
        self._limits = limits
        self._allowed = allowed
        self._idle: deque[UpstreamConnection] = deque()
        self._open = 0
        self._heads: HeadStore[ResponseHead] = HeadStore()
        self._closed = False
        self.trust = IdleTrust(pool.idle_s, pool.unproven_idle_s)
        self._taught_s = 0.0
        self._authority, self._api_key, self._mark = parts.netloc.rpartition("@")[2].encode(), api_key, b""
        self.hop_lines = hop_lines(self._authority, api_key)
        self.prefix = parts.path.rstrip("/").encode()
        self.as_session = False  # whether the engine is told a request's id as its session, too

    def __repr__(self) -> str:
        return (
            f"<BackendPool {self._host}:{self._port} open={self._open} idle={len(self._idle)} trust={self.trust.limit_s:.2f}s>"
        )

    @property
    def open_connections(self) -> int:
        return self._open

    def take(self, now_s: float) -> UpstreamConnection | None:
        """An idle connection that is surely open, if there is one."""
        idle = self._idle
        while idle:
            if now_s - idle[-1].idle_since_s > self.trust.limit_s:
                return None
            connection = idle.pop()
            if connection.alive and not connection.readable():
                return connection
            connection.close()
        return None

    async def connect(self, timeout_s: float) -> UpstreamConnection:
        """A fresh connection, to the first of the host's addresses that takes one. Raises ConnectFailedError."""
        try:
            async with asyncio.timeout(timeout_s):
                # an address is its own resolution: asking the resolver's thread costs more than the connection
                found = [self._host] if self._literal else await self._resolved()
                addresses = [address for address in found if self._allowed(address)]
                if not addresses:
                    raise ConnectFailedError("the backend's address is not allowed")
                if self._failed_s:  # a silent one would cost its share of the time at each connection
                    lately_s = self._now() - FAILED_LAST_S
                    self._failed_s = {address: at_s for address, at_s in self._failed_s.items() if at_s > lately_s}
                    addresses.sort(key=lambda address: address in self._failed_s)
                made = await first_of(addresses, timeout_s, self._connect_to)
        except TimeoutError:
            raise ConnectFailedError("connecting to the backend took too long", timed_out=True) from None
        except UnicodeError:  # a label of the host's name is too long
            raise ConnectFailedError("the backend's host name is malformed") from None
        except OSError as error:
            said = f"connecting to the backend failed: {error.strerror or type(error).__name__}"
            raise ConnectFailedError(said, ours=error.errno in _OURS) from None
        self._open += 1
        return made

    async def _resolved(self) -> list[str]:
        found = await self._name.addresses()
        now_s = self._now()
        for address in found:
            self._given_s[address] = now_s
        return found

    async def follow(self, within_s: float) -> None:
        """Ask where the host's name leads now. Connections to where it led before end as soon as nothing runs on them."""
        if self._literal:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._resolved()
        except (OSError, UnicodeError):  # who cannot ask does not know that anything has moved
            return
        lately_s = self._now() - LEFT_S
        self._left = frozenset(address for address, at_s in self._given_s.items() if at_s < lately_s)
        if not self._left:
            return
        for connection in [one for one in self._idle if one.address in self._left]:
            self._idle.remove(connection)
            connection.close()
        self._given_s = {address: at_s for address, at_s in self._given_s.items() if at_s >= lately_s - FORGOTTEN_S}

    async def _connect_to(self, address: str) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        make = cast("Callable[[], asyncio.Protocol]", self._fresh)
        name = self._host if self._tls else None
        try:
            transport, protocol = await loop.create_connection(make, address, self._port, ssl=self._tls, server_hostname=name)
        except BaseException:  # its share of the time is over, too
            self._failed_s[address] = self._now()
            raise
        self._failed_s.pop(address, None)
        made = cast("UpstreamConnection", protocol)
        made.address = address
        ask_for_signs(transport.get_extra_info("socket"), OF_BACKENDS_S)
        return made

    def _fresh(self) -> UpstreamConnection:
        return UpstreamConnection(self, self._limits, self._heads)

    def marked(self, mark: bytes) -> None:
        """Requests from now on carry this mark in Via: a gateway stands there. Empty: none."""
        if mark != self._mark:
            self._mark = mark
            self.hop_lines = hop_lines(self._authority, self._api_key, mark)

    def keep(self, connection: UpstreamConnection) -> None:
        """Take in a fresh connection that nobody wants any more."""
        self.returned(connection)

    def returned(self, connection: UpstreamConnection) -> None:
        """A connection finished its response and may carry another request."""
        left = self._left
        if self._closed or len(self._idle) >= self._settings.idle_connections or (left and connection.address in left):
            connection.close()
            return
        connection.idle_since_s = self._now()
        self._idle.append(connection)

    def gone(self, connection: UpstreamConnection, eof: bool) -> None:
        """A connection ended. When it idled and the peer closed it, that teaches the peer's limit."""
        self._open -= 1
        if connection in self._idle:
            self._idle.remove(connection)
            if connection.used and eof:
                self._taught_s = self._now()
                self.trust.closed(self._taught_s - connection.idle_since_s)

    def announced(self, keep_alive: bytes) -> None:
        """A response carried `Keep-Alive: timeout=N`."""
        found = _KEEP_ALIVE.search(keep_alive)
        if found:
            self.trust.announced(float(found[1]))

    def sweep(self, now_s: float) -> None:
        """Learn from the oldest idle connection and drop those that are too old to keep."""
        if now_s - self._taught_s > LESSON_S:
            self.trust.forget()
        idle = self._idle
        while idle:
            oldest = idle[0]
            age_s = now_s - oldest.idle_since_s
            if age_s <= self.trust.canary_s:
                if oldest.used and not oldest.readable():
                    self.trust.survived(age_s)
                return
            idle.popleft()
            oldest.close()

    def close(self) -> None:
        """Close what idles; connections in use close when they are done."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def network_check(networks: tuple[str, ...]) -> AddressCheck:
    """A check that an IP address lies in one of `networks`, and never in a link-local or unspecified range."""
    allowed = [ipaddress.ip_network(network) for network in networks]

    def check(address: str) -> bool:
        ip = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
            ip = ip.ipv4_mapped
        if ip.is_link_local or ip.is_unspecified or ip.is_multicast:
            return False
        return any(ip in network for network in allowed if network.version == ip.version)

    return check


def any_address(address: str) -> bool:
    """The check for backends that the operator declared in the configuration file."""
    return True
