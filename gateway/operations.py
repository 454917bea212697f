"""What an operator may do to a running gateway: add, change, drain and remove backends, and reload. Shell.

The admin REST face, SIGHUP and start-up all come through here, so that a change by any of them takes one path:
validate, build, swap, then let go of the old. Backends that came by REST are kept in the store and return after a
restart; declared ones are the file's.
"""

import dataclasses
from collections.abc import Callable
from urllib.parse import urlsplit

from gateway.addresses import AddressError, check_url
from gateway.config import BackendSpec, GatewayConfig
from gateway.fleet import Replica
from gateway.server import DataPlane
from gateway.store import BackendStore
from gateway.upkeep import Upkeep


class OperationError(Exception):
    """The operator asked for something that can't be; `status` is the HTTP status it maps to."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Operations:
    """See the module's words."""

    def __init__(
        self, plane: DataPlane, upkeep: Upkeep, store: BackendStore, load: Callable[[], GatewayConfig] | None = None
    ) -> None:
        self.plane = plane
        self._upkeep = upkeep
        self._store = store
        self._load = load

    def start(self) -> None:
        """Take in declared and stored backends. A stored one whose name was since declared gives way."""
        for spec in self.plane.config.backends:
            self.plane.add_backend(spec)
        for spec in self._store.all():
            if self.plane.fleet.get(spec.name) is None:
                self.plane.add_backend(spec)
        self._upkeep.start()

    def add(self, spec: BackendSpec) -> None:
        """Add a backend (it starts as `starting`). Raises OperationError: 409 for a name in use, 400 for a bad URL."""
        self._check(spec)
        if self.plane.fleet.get(spec.name) is not None:
            raise OperationError(409, "name_in_use", f"A backend named {spec.name!r} exists.")
        if len(self.plane.fleet) >= self.plane.config.admin.backends_max:
            raise OperationError(409, "too_many_backends", "The limit of backends is reached.")
        self._store.put(spec)
        self.plane.add_backend(spec)
        self._upkeep.watch(spec.name)
        self._log("added", spec.name)

    def replace(self, spec: BackendSpec) -> None:
        """Replace a backend's settings. Raises OperationError (404, 400, 409 for declared ones)."""
        self._known(spec.name, changing=True)
        self._check(spec)
        self._store.put(spec)
        self.plane.respecify_backend(spec)
        self._upkeep.watch(spec.name)
        self._log("replaced", spec.name)

    def drain(self, name: str, timeout_s: float) -> None:
        """No new requests for a backend. Raises OperationError (404)."""
        replica = self._known(name)
        self.plane.fleet.drain(replica, self.plane.now() + timeout_s)
        self._log("draining", name)

    def undrain(self, name: str) -> None:
        """Call a drain off. Raises OperationError (404, 409)."""
        replica = self._known(name)
        if replica.state != "draining":
            raise OperationError(409, "not_draining", f"Backend {name!r} is not draining.")
        self.plane.fleet.undrained(replica)
        self._upkeep.watch(name)

    def remove(self, name: str, timeout_s: float) -> None:
        """Drain, then remove once nothing is in flight or the time is over. Raises OperationError (404, 409)."""
        self._known(name, changing=True)
        self._store.delete(name)
        self.drain(name, timeout_s)
        self._upkeep.when_drained(name, lambda: self._gone(name))

    def _gone(self, name: str) -> None:
        if self.plane.fleet.get(name) is not None:
            self._upkeep.unwatch(name)
            self.plane.remove_backend(name)
            self._log("removed", name)

    def reload(self) -> None:
        """Read the configuration again and swap it in whole. Raises OperationError (422) and changes nothing if it is bad."""
        if self._load is None:
            raise OperationError(409, "no_file", "The gateway was not started from a file.")
        try:
            config = self._load()
        except ValueError as error:
            self.plane.logs.event("error", "reload refused", error=str(error))
            raise OperationError(422, "invalid_config", str(error)) from None
        self._apply(config)
        self.plane.logs.event("info", "reloaded", generation=self.plane.generation)

    def _apply(self, config: GatewayConfig) -> None:
        plane = self.plane
        plane.adopt(config)
        declared = {spec.name: spec for spec in config.backends}
        for replica in list(plane.fleet):
            if replica.spec.declared and replica.name not in declared:
                self.drain(replica.name, config.timeouts.drain_s)
                self._upkeep.when_drained(replica.name, lambda name=replica.name: self._gone(name))  # type: ignore[misc]
        for name, spec in declared.items():
            current = plane.fleet.get(name)
            if current is None:
                plane.add_backend(spec)
                self._upkeep.watch(name)
            elif current.spec != spec:
                plane.respecify_backend(spec)
                self._upkeep.watch(name)

    def _check(self, spec: BackendSpec) -> None:
        try:
            check_url(spec.url, guarded=True)
        except AddressError as error:
            raise OperationError(400, "invalid_url", str(error)) from None
        host = urlsplit(spec.url).hostname or ""
        if host.replace(".", "").isdigit() or ":" in host:
            try:
                allowed = self.plane.guarded_address(host)
            except ValueError:
                allowed = False
            if not allowed:
                raise OperationError(400, "address_not_allowed", "The address lies outside the allowed networks.")

    def _known(self, name: str, changing: bool = False) -> Replica:
        replica = self.plane.fleet.get(name)
        if replica is None:
            raise OperationError(404, "no_such_backend", f"No backend is named {name!r}.")
        if changing and replica.spec.declared:
            raise OperationError(409, "declared", f"Backend {name!r} is declared in the configuration file; change it there.")
        return replica

    def _log(self, what: str, name: str) -> None:
        self.plane.logs.event("info", f"backend {what}", name=name)


def patched(spec: BackendSpec, changes: dict[str, object]) -> BackendSpec:
    """`spec` with some fields replaced (values already validated)."""
    return dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
