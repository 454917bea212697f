"""One aiohttp session for control requests (probes, admin routes): bounded answers, no redirects, no environment. Shell.

Every foreign exception becomes ProbeFailedError here and nowhere else. Addresses are checked by the given predicate:
literal ones before the request, names each time that they are resolved for a connection. A connection to a name is not kept for
ever, so that a name which moves is followed.
"""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult

from backends.base import ProbeFailedError, Reply
from backends.reach import Name

MAX_REPLY_BYTES = 4 * 1024 * 1024
NAMES_MAX = 4096
KEPT_S = 10.0


class _CheckedResolver(AbstractResolver):
    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._allowed = allowed
        self._names: dict[tuple[str, int], Name] = {}

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        name = self._names.get((host, port))
        if name is None:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            name = self._names[host, port] = Name(host, port, asyncio.get_running_loop().time)
        kept = [address for address in await name.addresses() if self._allowed(address)]
        if not kept:
            raise OSError(errno.EACCES, "the name resolves to no allowed address")
        return [_numeric(host, address, port) for address in kept]

    async def close(self) -> None:
        """Nothing is open."""


def _numeric(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


class ControlSession:
    """The session behind every BackendControl that shares one address rule."""

    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._allowed = allowed
        connector = aiohttp.TCPConnector(resolver=_CheckedResolver(allowed), limit=256, use_dns_cache=False)
        self._tls: ssl.SSLContext | None = None
        self._kept_s: dict[str, float] = {}  # since when connections are kept, by host and port of a name
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=True, trust_env=False)

    async def request(self, method: str, url: str, key: str, timeout_s: float, body: bytes | None = None) -> Reply:
        """One control request. Raises ProbeFailedError."""
        host = urlsplit(url).hostname or ""
        try:
            literal = str(ipaddress.ip_address(host))
        except ValueError:
            literal = ""
        headers = {"content-type": "application/json"}
        if not literal and self._kept_long(urlsplit(url).netloc):
            headers["connection"] = "close"
        if literal and not self._allowed(literal):
            raise ProbeFailedError("the address is not allowed")
        if key:
            headers["authorization"] = f"Bearer {key}"
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False, ssl=self._context(url)
            ) as response:
                return Reply(response.status, await _bounded(response))
        except TimeoutError:
            raise ProbeFailedError(f"no answer within {timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProbeFailedError(f"{type(error).__name__}: {_short(error)}") from None

    def _kept_long(self, place: str) -> bool:
        """True once in KEPT_S."""
        now_s = asyncio.get_running_loop().time()
        if len(self._kept_s) >= NAMES_MAX:
            self._kept_s.clear()
        if now_s - self._kept_s.setdefault(place, now_s) < KEPT_S:
            return False
        self._kept_s[place] = now_s
        return True

    def _context(self, url: str) -> ssl.SSLContext | bool:
        """The trust store, read when the first https URL is asked for, not when this module was imported."""
        if self._tls is None and url.startswith("https:"):
            self._tls = ssl.create_default_context()
        return self._tls or True

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_chunked(65536):
        size += len(part)
        if size > MAX_REPLY_BYTES:
            raise ProbeFailedError("the answer is too large")
        parts.append(part)
    return b"".join(parts)


def _short(error: Exception) -> str:
    """What went wrong, in words of the operating system's; never a peer's bytes."""
    for cause in (error.__cause__, error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return "the connection or the answer is not as it should be"


class BackendControl:
    """Control requests to one backend (satisfies base.ControlHttp)."""

    def __init__(self, session: ControlSession, url: str, key: str, timeout_s: float) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._key = key
        self._timeout_s = timeout_s

    async def get(self, path: str) -> Reply:
        """GET a path. Raises ProbeFailedError."""
        return await self._session.request("GET", self._url + path, self._key, self._timeout_s)

    async def post(self, path: str, body: dict[str, object]) -> Reply:
        """POST a JSON object. Raises ProbeFailedError."""
        return await self._session.request("POST", self._url + path, self._key, self._timeout_s, orjson.dumps(body))
