"""What an operator may do to a running gateway: add, change, drain and remove backends, and reload. Shell.

The admin REST face, SIGHUP and start-up all come through here, so that a change by any of them takes one path:
validate, build, swap, then let go of the old. Backends that came by REST are kept in the store and return after a
restart; declared ones are the file's. What is refused leaves everything as it was.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.addresses import AddressError, check_publisher, check_url
from gateway.config import BackendSpec, GatewayConfig
from gateway.fleet import Fleet
from gateway.operator_errors import OperationError
from gateway.replica import Replica
from gateway.server import DataPlane
from gateway.store import BackendStore, StoreError, StoreTakenError
from gateway.upkeep import Upkeep

if TYPE_CHECKING:
    from gateway.swapper import Swapper

# What only a restart applies: None stands for a whole section.
FIXED: dict[str, tuple[str, ...] | None] = {
    "listen": None,
    "queue": None,
    "retry": None,
    "pool": None,
    "log": None,
    "limits": ("response_ids", "model_labels"),
    "health": ("failures", "poison_ttl_s"),
    "admin": ("key", "key_file", "state_file", "learnt_file"),
}
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Retirement:
    """A backend that a reload dropped stays while it is needed, until `until_s`; `newcomers` came with that reload."""

    until_s: float
    newcomers: frozenset[str]


class Operations:
    """See the module's words."""

    def __init__(
        self, plane: DataPlane, upkeep: Upkeep, store: BackendStore, load: Callable[[], GatewayConfig] | None = None
    ) -> None:
        self.plane = plane
        self._upkeep = upkeep
        self._store = store
        self._load = load
        self._started_with = plane.config
        self._reloading = asyncio.Lock()
        self._retiring: dict[str, Retirement] = {}
        self._store_taken = False
        self.swapper: Swapper | None = None  # once there are devices that models share
        upkeep.each_round(self._round)

    def start(self) -> None:
        """Take in declared and stored backends; the file takes over a name that both have. Raises StoreError."""
        for spec in self.plane.config.backends:
            self.plane.add_backend(spec)
        if holder := self._store.taken():
            self._store_taken = True
            file = self.plane.config.admin.state_file
            self.plane.logs.event("error", "state file in use", file=file, by=holder, until="it ends, nothing is kept")
        self._take_stored()
        self._upkeep.start()
        self._begin_swaps()

    def _take_stored(self) -> list[str]:
        """The names of those that were not here."""
        stored, problems = self._store.read()
        for problem in problems:
            self.plane.logs.event("error", "stored backend skipped", problem=problem)
        fresh = []
        for spec in stored:
            found = self.plane.fleet.get(spec.name)
            if found is None:
                self.plane.add_backend(spec)
                fresh.append(spec.name)
            elif found.spec.declared:
                self._forget_stored(spec.name)
        return fresh

    def _round(self, now_s: float) -> None:
        self._retire(now_s)
        if self._store_taken and not self._store.taken():
            self._store_taken = False
            self.plane.logs.event("info", "state file taken over", file=self.plane.config.admin.state_file)
            try:
                for name in self._take_stored():
                    self._upkeep.watch(name)
            except StoreError as error:
                self.plane.logs.event("error", "state file", error=str(error))

    def ending(self) -> None:
        """The gateway drains: its successor may have the state file."""
        self._store.let_go()

    async def close(self) -> None:
        """End the processes that were started."""
        if self.swapper is not None:
            await self.swapper.close()

    def _begin_swaps(self) -> None:
        if self.swapper is not None:
            self.swapper.adopt()
        elif self.plane.lodging.on:
            from gateway.swapper import Swapper  # most gateways never need it

            self.swapper = Swapper(self.plane, self._upkeep)
            self.swapper.start()

    def leaving(self, name: str) -> bool:
        """Whether the backend is on its way out: it will be removed once its drain is over."""
        return name in self._retiring or self._upkeep.leaving(name)

    def add(self, spec: BackendSpec) -> None:
        """Add a backend (it starts as `starting`). Raises OperationError: 409 for a name in use, 400 for a bad URL."""
        self._check(spec)
        if self.leaving(spec.name):
            raise OperationError(409, "being_removed", f"Backend {spec.name!r} is still being removed.", "name")
        if self.plane.fleet.get(spec.name) is not None:
            raise OperationError(409, "name_in_use", f"A backend named {spec.name!r} exists.", "name")
        if len(self.plane.fleet) >= self.plane.config.admin.backends_max:
            raise OperationError(409, "too_many_backends", "The limit of backends is reached.")
        self._keep(spec)
        self.plane.add_backend(spec)
        self._upkeep.watch(spec.name)
        self._log("added", spec.name)

    def changeable(self, name: str) -> BackendSpec:
        """The settings of a backend that may be changed. Raises OperationError (404; 409 when declared or leaving)."""
        return self._known(name, changing=True).spec

    def replace(self, spec: BackendSpec) -> None:
        """Replace a backend's settings. Raises OperationError (404, 400, 409 as `changeable`)."""
        self.changeable(spec.name)
        self._check(spec)
        self._keep(spec)
        self._respecify(spec)
        self._log("replaced", spec.name)

    def drain(self, name: str, timeout_s: float) -> None:
        """No new requests for a backend. Raises OperationError (404)."""
        replica = self._known(name)
        self.plane.fleet.drain(replica, self.plane.now() + timeout_s)
        self._log("draining", name)

    def undrain(self, name: str) -> None:
        """Call a drain off. Raises OperationError (404, 409: not draining, or draining because it is to go)."""
        replica = self._known(name)
        if self.leaving(name):
            raise OperationError(409, "being_removed", f"Backend {name!r} is being removed.")
        if replica.state != "draining":
            raise OperationError(409, "not_draining", f"Backend {name!r} is not draining.")
        self._undrain(replica)

    def remove(self, name: str, timeout_s: float) -> None:
        """Drain, then remove once nothing is in flight or the time is over; again: with the new time.

        Raises OperationError (404, 409 for declared ones, 503).
        """
        if self._known(name).spec.declared:
            raise _declared(name)
        try:
            self._store.delete(name)
        except StoreError as error:
            raise self._unwritable(error) from None
        self._let_go(name, timeout_s)

    # -- reload

    async def reload(self) -> tuple[str, ...]:
        """Read the configuration again, beside the loop, and swap it in whole; one at a time.

        Returns the changed settings that only a restart applies. Raises OperationError (409, or 422 with every reason);
        then nothing has changed.
        """
        if self._load is None:
            raise OperationError(409, "no_file", "The gateway was not started from a file.")
        async with self._reloading:
            try:
                config = await asyncio.to_thread(self._load)
            except ValueError as error:
                self.plane.logs.event("error", "reload refused", error=str(error))
                raise OperationError(422, "invalid_config", str(error)) from None
            self._apply(config)
        waiting = needs_restart(self._started_with, config)
        self.plane.logs.event("info", "reloaded", generation=self.plane.generation, needs_restart=waiting)
        return waiting

    def _apply(self, config: GatewayConfig) -> None:
        plane = self.plane
        plane.adopt(config)
        declared = {spec.name: spec for spec in config.backends}
        newcomers = frozenset(name for name in declared if plane.fleet.get(name) is None)
        for spec in declared.values():
            self._declare(spec)
        until_s = plane.now() + config.timeouts.drain_s
        for replica in plane.fleet:
            if replica.spec.declared and replica.name not in declared and not self.leaving(replica.name):
                self._retiring[replica.name] = Retirement(until_s, newcomers)
        self._retire(plane.now())
        self._begin_swaps()

    def _retire(self, now_s: float) -> None:
        """Let go of what a reload dropped, but not before what it brought can take over."""
        for name, retirement in list(self._retiring.items()):
            replica = self.plane.fleet.get(name)
            if replica is None or not still_needed(replica, self.plane.fleet, retirement, frozenset(self._retiring), now_s):
                del self._retiring[name]
                if replica is not None:
                    self._let_go(name, self.plane.timeouts.drain_s)

    def _declare(self, spec: BackendSpec) -> None:
        current = self.plane.fleet.get(spec.name)
        if current is None:
            self.plane.add_backend(spec)
            self._upkeep.watch(spec.name)
            return
        self._retiring.pop(spec.name, None)
        if self._upkeep.leaving(spec.name):
            self._upkeep.stay(spec.name)
            self._undrain(current)
        if not current.spec.declared:
            self._forget_stored(spec.name)
        if current.spec != spec:
            self._respecify(spec)

    def _forget_stored(self, name: str) -> None:
        try:
            self._store.delete(name)
        except StoreError as error:
            # it would only come back at a restart after the file dropped the name: not worth refusing the reload
            self.plane.logs.event("error", "state file", error=str(error))
        self._log("taken over by the file", name)

    # -- parts

    def _let_go(self, name: str, timeout_s: float) -> None:
        self.drain(name, timeout_s)
        self._upkeep.when_drained(name, partial(self._gone, name))

    def _gone(self, name: str) -> None:
        if self.plane.fleet.get(name) is not None:
            self._upkeep.unwatch(name)
            self.plane.remove_backend(name)
            self._log("removed", name)

    def _undrain(self, replica: Replica) -> None:
        self.plane.fleet.undrained(replica)
        self._upkeep.watch(replica.name)
        self._log("undrained", replica.name)

    def _respecify(self, spec: BackendSpec) -> None:
        """Swap settings in. A draining backend stays draining, whatever else changes."""
        old = self._known(spec.name)
        until_s = old.drain_until_s if old.state == "draining" else None
        replica = self.plane.respecify_backend(spec)
        if until_s is not None:
            self.plane.fleet.drain(replica, until_s)
        self._upkeep.watch(spec.name)

    def _keep(self, spec: BackendSpec) -> None:
        try:
            self._store.put(spec)
        except StoreError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: StoreError) -> OperationError:
        self.plane.logs.event("error", "state file", error=str(error))
        if isinstance(error, StoreTakenError):
            message = "Another gateway uses the state file (see the log); nothing was changed."
            return OperationError(503, "state_file_in_use", message)
        return OperationError(503, "state_not_written", "The state file could not be written; nothing was changed.")

    def _check(self, spec: BackendSpec) -> None:
        self._check_url(spec.url, "url")
        if spec.sidecar:
            self._check_url(spec.sidecar, "sidecar")
        for param, endpoint in (("kv_events", spec.kv_events), ("kv_replay", spec.kv_replay)):
            if endpoint:
                self._check_host(check_publisher, endpoint, param)

    def _check_url(self, url: str, param: str) -> None:
        def host(text: str) -> str:
            check_url(text, guarded=True)
            return urlsplit(text).hostname or ""

        self._check_host(host, url, param)

    def _check_host(self, host: Callable[[str], str], text: str, param: str) -> None:
        """`host` finds it in the text, or raises AddressError."""
        try:
            address = literal_address(host(text))
        except AddressError as error:
            raise OperationError(400, "invalid_url", str(error), param) from None
        if address and not self.plane.pools.guarded_address(address):
            raise OperationError(400, "address_not_allowed", "The address lies outside the allowed networks.", param)

    def _known(self, name: str, changing: bool = False) -> Replica:
        replica = self.plane.fleet.get(name)
        if replica is None:
            raise OperationError(404, "no_such_backend", f"No backend is named {name[:64]!r}.")
        if changing and replica.spec.declared:
            raise _declared(name)
        if changing and self.leaving(name):
            raise OperationError(409, "being_removed", f"Backend {name!r} is being removed.")
        return replica

    def _log(self, what: str, name: str) -> None:
        self.plane.logs.event("info", f"backend {what}", name=name)


def _declared(name: str) -> OperationError:
    return OperationError(409, "declared", f"Backend {name!r} is declared in the configuration file; change it there.")


def literal_address(host: str) -> str:
    """The IP address that a URL's host is, or "" for a name. Raises AddressError for the notations that only C knows.

    A host whose last part is a number is an address to resolvers (127.1, 2130706433, 0x7f000001, 0177.0.0.1), so it
    must be one in the plain notation: then what is checked here is what is connected to.
    """
    numeric = _NUMERIC_LABEL.fullmatch(host.rstrip(".").rpartition(".")[2])
    if not numeric and ":" not in host:
        return ""
    try:
        return str(ip_address(host))
    except ValueError:
        raise AddressError("The URL's host is a number; write an IP address in the plain notation.") from None


def still_needed(replica: Replica, fleet: Fleet, retirement: Retirement, retiring: frozenset[str], now_s: float) -> bool:
    """Whether a model of the replica has nobody else yet while a newcomer that may serve it is on its way."""
    if now_s >= retirement.until_s or replica.state != "ready":
        return False
    newcomers = [found for found in map(fleet.get, retirement.newcomers) if found is not None]
    coming = [newcomer for newcomer in newcomers if newcomer.state in ("starting", "down")]
    for model in replica.models:
        covered = any(other.name not in retiring for other in fleet.routable(model))
        if not covered and any(model in newcomer.models or not newcomer.models for newcomer in coming):
            return True
    return False


def needs_restart(old: GatewayConfig, new: GatewayConfig) -> tuple[str, ...]:
    """The settings that differ and that a reload can't apply, as `section.key`."""
    found: list[str] = []
    for section, names in FIXED.items():
        before, after = getattr(old, section), getattr(new, section)
        names = names or tuple(field.name for field in fields(before))
        found += [f"{section}.{name}" for name in names if getattr(before, name) != getattr(after, name)]
    if "admin.key" in found and not old.admin.key and old.admin.key_file:
        found.remove("admin.key")  # the gateway made that key itself and kept it in the file
    return tuple(found)
