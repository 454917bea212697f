"""One aiohttp session for control requests (probes, admin routes): bounded answers, no redirects, no environment. Shell.

Every foreign exception becomes ProbeFailedError here and nowhere else. Addresses are checked by the given predicate:
literal ones before the request, names each time that they are resolved for a connection.
"""

import errno
import ipaddress
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import orjson
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from backends.base import ProbeFailedError, Reply

MAX_REPLY_BYTES = 4 * 1024 * 1024


class _CheckedResolver(AbstractResolver):
    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._inner = ThreadedResolver()
        self._allowed = allowed

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)  # type: ignore[arg-type]
        kept = [entry for entry in found if self._allowed(entry["host"])]
        if not kept:
            raise OSError(errno.EACCES, "the name resolves to no allowed address")
        return kept

    async def close(self) -> None:
        await self._inner.close()


class ControlSession:
    """The session behind every BackendControl that shares one address rule."""

    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._allowed = allowed
        connector = aiohttp.TCPConnector(resolver=_CheckedResolver(allowed), limit=256, ttl_dns_cache=10)
        self._tls: ssl.SSLContext | None = None
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=True, trust_env=False)

    async def request(self, method: str, url: str, key: str, timeout_s: float, body: bytes | None = None) -> Reply:
        """One control request. Raises ProbeFailedError."""
        host = urlsplit(url).hostname or ""
        try:
            literal = str(ipaddress.ip_address(host))
        except ValueError:
            literal = ""
        if literal and not self._allowed(literal):
            raise ProbeFailedError("the address is not allowed")
        headers = {"content-type": "application/json"}
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
