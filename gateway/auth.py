"""Client keys: known by hash, compared in constant time, refused all alike. Pure.

The digest of what the client sent is looked up among digests: the time of a dict look-up on SHA-256 output tells
nothing about a key's text, and the final comparison is hmac.compare_digest. The key itself is never kept.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.accounts import Account
from gateway.config import KeyLimits, KeySpec

if TYPE_CHECKING:
    from gateway.rates import Rates


@dataclass(slots=True)
class Client:
    """Who sends: a configured key, or the one nameless client of an open gateway."""

    spec: KeySpec
    in_flight: int = 0
    rates: "Rates | None" = None

    def left(self, account: Account) -> None:
        """One request is over; its tokens are known now."""
        self.in_flight -= 1
        if self.rates is not None:
            self.rates.settle(account.uncounted_tokens, account.finished_s)

    def enter(self) -> bool:
        """Count one more request, if the key's concurrency limit allows it."""
        limit = self.spec.limits.concurrent
        if limit and self.in_flight >= limit:
            return False
        self.in_flight += 1
        return True


def _rates(limits: KeyLimits) -> "Rates | None":
    """What counts them, where there is something to count."""
    if not limits.requests_per_min and not limits.tokens_per_min:
        return None
    from gateway.rates import Rates  # its library is large

    return Rates(limits)


class Keyring:
    """All client keys. Without any, everybody is let in as one client."""

    def __init__(self, keys: tuple[KeySpec, ...]) -> None:
        self._clients = {bytes.fromhex(key.sha256): Client(key, rates=_rates(key.limits)) for key in keys}
        self._open = Client(KeySpec(sha256="", name="anonymous")) if not keys else None

    def find(self, authorization: bytes | None, api_key: bytes | None) -> Client | None:
        """The client behind `Authorization: Bearer` or `x-api-key`, or None."""
        if self._open is not None:
            return self._open
        if authorization is not None and authorization[:7].lower() == b"bearer ":
            sent = authorization[7:].strip()
        elif api_key is not None:
            sent = api_key.strip()
        else:
            return None
        if len(sent) > 1024:
            return None
        digest = hashlib.sha256(sent).digest()
        client = self._clients.get(digest)
        if client is None or not hmac.compare_digest(digest.hex(), client.spec.sha256):
            return None
        return client

    def adopted_by(self, newer: "Keyring") -> None:
        """Hand the in-flight counts of the keys that stay to the keyring that replaces this one (a reload)."""
        for digest, client in self._clients.items():
            newer.take(digest, client)
        if self._open is not None:
            newer.take(b"", self._open)

    def take(self, digest: bytes, before: Client) -> None:
        """Go on counting on `before`, with the key's new settings, if the key is still here."""
        if not digest and self._open is not None:
            self._open = before
        elif digest in self._clients:
            after = self._clients[digest]
            if before.spec.limits != after.spec.limits:
                before.rates = after.rates
            before.spec = after.spec
            self._clients[digest] = before
