"""The pools of a process: one for each backend in the table, and which addresses a backend may have. Shell.

Backends that the operator declared may be anywhere; those that came by REST only in the configured networks, and that is
asked again at each connection. A changed configuration counts for pools that are opened from then on.
"""

import ssl
from collections.abc import Callable, Iterator

from gateway.config import BackendSpec, GatewayConfig
from gateway.relay.pool import BackendPool, any_address, network_check


class Pools:
    """See the module's words. `now` tells the loop's time."""

    def __init__(self, config: GatewayConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._guard = network_check(config.admin.networks)
        self._now = now
        self._pools: dict[str, BackendPool] = {}
        self._tls: ssl.SSLContext | None = None

    def __iter__(self) -> Iterator[BackendPool]:
        return iter(tuple(self._pools.values()))

    def of(self, name: str) -> BackendPool:
        """The pool of a backend in the table."""
        return self._pools[name]

    def adopt(self, config: GatewayConfig) -> None:
        """Swap in a validated configuration."""
        self._config = config
        self._guard = network_check(config.admin.networks)

    def guarded_address(self, address: str) -> bool:
        """The rule for addresses that came by REST, as configured now."""
        return self._guard(address)

    def open(self, spec: BackendSpec) -> None:
        """For a backend that is new in the table, or at a new address."""
        allowed = any_address if spec.declared else self.guarded_address
        settings, limits = self._config.pool, self._config.limits
        pool = BackendPool(spec.url, spec.api_key, settings, limits, allowed, self._trust, self._now)
        pool.as_session = bool(spec.kv_events)
        self._pools[spec.name] = pool

    def respecified(self, before: BackendSpec, spec: BackendSpec) -> None:
        """A backend's settings were replaced; a new address gets a new pool."""
        if (before.url, before.api_key, before.declared) != (spec.url, spec.api_key, spec.declared):
            self._pools[spec.name].close()
            self.open(spec)
        self._pools[spec.name].as_session = bool(spec.kv_events)

    def remove(self, name: str) -> None:
        """Of a backend that left the table. Requests on its connections finish."""
        self._pools.pop(name).close()

    def close(self) -> None:
        """All of them."""
        for pool in self:
            pool.close()

    def _trust(self) -> ssl.SSLContext:
        """The trust store for https backends, read once."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
