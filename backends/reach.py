"""Names to addresses, and connecting to the first of these that takes it: servers often listen on one family of addresses
only, while their name (localhost!) has both. Shell.

An address that is kept for a moment saves a question to the resolver's few threads for each connection of a burst.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from socket import EAI_AGAIN, SOCK_STREAM, gaierror
from typing import Final, TypeVar

ADDRESSES_TRIED: Final = 4
FRESH_S: Final = 1.0
PATIENCE_S: Final = 0.5
OUTAGE_S: Final = 300.0
_Made = TypeVar("_Made")


async def addresses_of(host: str, port: int, allowed: Callable[[str], bool] | None) -> list[str]:
    """The host's addresses that are allowed (None: any is), in the order of the resolver. Raises OSError where it has none,
    and UnicodeError for what can't be a name."""
    addresses = [address for address in await _resolved(host, port) if allowed is None or allowed(address)]
    if not addresses:
        raise OSError("the endpoint has no allowed address")
    return addresses


async def _resolved(host: str, port: int) -> list[str]:
    """An address is its own; asyncio's loop would ask a thread about it, too."""
    with suppress(ValueError):
        return [str(ip_address(host))]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def first_of(addresses: Sequence[str], within_s: float, connect: Callable[[str], Awaitable[_Made]]) -> _Made:
    """What `connect` makes at the first address that takes it; each but the last has its share of the time, since one may be
    silent. The whole is the caller's to bound. Raises OSError, of the last one tried."""
    tried = addresses[:ADDRESSES_TRIED]
    for address in tried[:-1]:
        with suppress(OSError):
            async with asyncio.timeout(within_s / len(tried)):
                return await connect(address)
    return await connect(tried[-1])


class Name:
    """A host's addresses, asked for again when they are older than FRESH_S. While the name service is slow or gone they are
    used on, for OUTAGE_S: the servers behind them may be well. A name that is no more is forgotten at once."""

    def __init__(self, host: str, port: int, now: Callable[[], float]) -> None:
        self._host = host
        self._port = port
        self._now = now
        self._found: list[str] = []
        self._found_s = 0.0
        self._error: OSError | UnicodeError | None = None
        self._asking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Name {self._host}:{self._port} {self._found}>"

    async def addresses(self) -> list[str]:
        """In the resolver's order. Raises OSError, UnicodeError."""
        age_s = self._now() - self._found_s
        if self._found and age_s < FRESH_S:
            return self._found
        asking = self._asking
        if asking is None:
            asking = self._asking = asyncio.create_task(self._ask())
        known = self._found if age_s < OUTAGE_S else []
        await asyncio.wait((asking,), timeout=PATIENCE_S if known else None)
        if asking.done() and self._error is not None and not (known and self._found):
            raise type(self._error)(*self._error.args)  # one for each who asked: a shared one would collect all their frames
        return self._found or known

    async def _ask(self) -> None:
        try:
            found = await _resolved(self._host, self._port)
        except (OSError, UnicodeError) as error:
            self._error = error
            if not isinstance(error, gaierror) or error.errno != EAI_AGAIN:
                self._found = []
        else:
            self._found, self._found_s, self._error = found, self._now(), None
        finally:
            self._asking = None
