"""Replicas as a table of states, changed only by the events below. Pure: time comes in as `now_s`.

Legal moves are data (replica.MOVES); an illegal move is an assertion. The breaker lives here too: only connect
failures, time-outs, resets and 5xx count, never a 4xx or a client that left, and a request that makes one backend
after another drop the connection or answer 5xx is held against itself, not against them (the poison rule).
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from backends.base import CANNOT, Identity, Kind
from gateway.config import BackendSpec, Health
from gateway.fitting import uneven
from gateway.replica import MOVES, REPEATS, Replica, State
from gateway.retry_after import overload_wait_s
from gateway.suspicion import Suspicion

Failure = Literal["connect", "timeout", "reset", "status"]

NEVER = float("inf")
ROUTES_CACHED = 4096
TRANSITIONS_KEPT = 256
SILENT = -1.0  # no byte since it was found wedged


@dataclass(frozen=True, slots=True)
class Transition:
    """One move of a replica, for the log."""

    name: str
    before: State
    after: State
    reason: str


class Fleet:
    """The table. `version` grows with each change of who may be routed to."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._replicas: dict[str, Replica] = {}
        self._routes: dict[tuple[str, Kind], tuple[Replica, ...]] = {}
        self._suspicion = Suspicion(health.poison_ttl_s)
        self.uneven = False  # whether a model's engines take requests of different lengths
        self.has_drops = False  # whether any body is under suspicion: only then is hashing bodies worth its cost
        self._transitions: deque[Transition] = deque(maxlen=TRANSITIONS_KEPT)
        self.version = 0

    def __repr__(self) -> str:
        return f"<Fleet {' '.join(f'{r.name}:{r.state}:{r.in_flight}' for r in self._replicas.values())}>"

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def __len__(self) -> int:
        return len(self._replicas)

    def get(self, name: str) -> Replica | None:
        """The replica of that name, if any."""
        return self._replicas.get(name)

    # -- views

    def routable(self, model: str, kind: Kind = "unknown") -> tuple[Replica, ...]:
        """Ready replicas that serve `model` with what the route needs of `kind` (cached until the table changes)."""
        found = self._routes.get((model, kind))
        if found is None:
            found = tuple(r for r in self._replicas.values() if r.state == "ready" and model in r.models and r.serves(kind))
            if len(self._routes) >= ROUTES_CACHED:
                self._routes.clear()
            self._routes[model, kind] = found
        return found

    def hopeful(self, model: str) -> bool:
        """Whether a replica that never failed yet may come to serve `model` soon: worth a wait in the queue."""
        return any(
            r.state in ("starting", "swapping", "asleep") and (model in r.models or not r.models) and r.failures == 0
            for r in self._replicas.values()
        )

    def knows(self, model: str) -> bool:
        """Whether some replica serves `model`, is declared to, or did until its drain."""
        return any(model in r.models for r in self._replicas.values())

    def models(self) -> tuple[str, ...]:
        """Every model that some replica serves or is declared to serve, sorted."""
        return tuple(sorted({m for r in self._replicas.values() if r.state != "draining" for m in r.models}))

    def transitions(self) -> tuple[Transition, ...]:
        """The moves since the last call."""
        taken = tuple(self._transitions)
        self._transitions.clear()
        return taken

    # -- events: who exists

    def added(self, spec: BackendSpec) -> Replica:
        """A backend was declared or added. The name must be free."""
        assert spec.name not in self._replicas, spec.name
        replica = self._replicas[spec.name] = Replica(spec)
        self._changed()
        return replica

    def respecified(self, name: str, spec: BackendSpec) -> Replica:
        """A backend's settings were replaced. Another address starts over; else state and counts stay."""
        old = self._replicas[name]
        if old.spec.url != spec.url or old.spec.engine != spec.engine or old.spec.models != spec.models:
            fresh = self._replicas[name] = Replica(spec)
            self._changed()
            return fresh
        old.respecified(spec)
        self._changed()
        return old

    def removed(self, name: str) -> None:
        """A backend left the table; requests in flight there finish on their own."""
        del self._replicas[name]
        self._changed()

    # -- events: state

    def _move(self, replica: Replica, state: State, reason: str) -> None:
        if replica.state != state:
            assert state in MOVES[replica.state], f"{replica.name}: {replica.state} -> {state}"
            self._transitions.append(Transition(replica.name, replica.state, state, reason))
            replica.state = state
            self._changed()
        replica.reason = reason

    def probed(self, replica: Replica, identity: Identity, now_s: float) -> None:
        """A probe succeeded: the backend answers. A wedged one is not used until it `revived` or `spoke`."""
        replica.last_probe_s = now_s
        if replica.identity != identity:
            replica.identity = identity
            self._changed()
        if replica.missed_probes:  # only those in a row count
            replica.failures = max(0, replica.failures - replica.missed_probes)
            replica.missed_probes = 0
            if replica.state == "ready" and not replica.failures:
                replica.reason = ""
        if replica.wedged and not self.spoke(replica):
            return
        replica.wedged = False
        if replica.state == "starting":
            self._move(replica, "ready", "")
        elif replica.state == "down":
            replica.failures = max(0, self._health.failures - 1)
            replica.trial, replica.trying = True, 0
            replica.ready_since_s = now_s
            self._move(replica, "ready", "on trial")

    def probe_failed(self, replica: Replica, reason: str, now_s: float) -> None:
        """A probe failed. One is enough before first use or when down, else it counts like a failed request."""
        replica.last_probe_s = now_s
        if replica.state in ("starting", "down"):
            replica.failures += 1
            if replica.state == "starting":
                self._move(replica, "down", reason)
            replica.reason = reason
        elif replica.state == "ready":
            replica.missed_probes += 1
            self._count_failure(replica, reason)

    def revived(self, replica: Replica, now_s: float) -> None:
        """A wedged backend produced a token again."""
        replica.wedged = False
        replica.last_byte_s = now_s
        if replica.state in ("down", "starting"):
            replica.failures = 0
            self._cleared(replica)
            replica.ready_since_s = now_s
            self._move(replica, "ready", "")

    @staticmethod
    def spoke(replica: Replica) -> bool:
        """Whether a wedged backend went on with an answer, and failed at none: it was only busy."""
        return replica.last_byte_s >= 0 and replica.failed_total == replica.failed_before

    def drain(self, replica: Replica, until_s: float) -> None:
        """No new requests; those in flight go on."""
        replica.drain_until_s = until_s
        if replica.state != "draining":
            self._move(replica, "draining", "asked to drain")

    def undrained(self, replica: Replica) -> None:
        """Draining was called off: it is used again once a probe finds it well, or once its model is back."""
        replica.drain_until_s = None
        self._move(replica, "starting", "not probed since it drained")
        if replica.moves and replica.away:
            self._move(replica, "asleep", "its model left while it drained")

    # -- events: models that share a device

    def cut(self, replica: Replica, reason: str) -> None:
        """Its model is to leave the device: no new requests, those there go on."""
        replica.away = True
        if replica.state in ("ready", "down", "starting"):
            self._move(replica, "swapping", reason)

    def reopened(self, replica: Replica) -> None:
        """It stays after all: used at once if it was well, else once a probe finds it so."""
        replica.away = False
        if replica.state == "swapping" and not (replica.wedged or replica.failures or replica.last_probe_s < 0):
            self._move(replica, "ready", "")
        elif replica.state in ("swapping", "asleep"):
            self._move(replica, "starting", "not probed since it was to leave")

    def slept(self, replica: Replica, reason: str) -> None:
        """Its model is off the device. What went wrong before says nothing of how it comes back."""
        replica.failures, replica.away = 0, True
        if replica.state not in ("asleep", "draining"):
            self._move(replica, "asleep", reason)
        replica.reason = reason

    def coming(self, replica: Replica, reason: str) -> None:
        """Its model is on its way to the device."""
        self._move(replica, "swapping", reason)

    def awake(self, replica: Replica) -> None:
        """Its model is on the device; a probe makes it ready."""
        replica.failures = 0
        replica.trial = replica.wedged = replica.paused = replica.away = False
        self._cleared(replica)
        if replica.state in ("asleep", "swapping"):
            self._move(replica, "starting", "not probed since it came")

    # -- events: requests

    def dispatched(self, replica: Replica, now_s: float, stream: bool) -> None:
        """A request goes there; counted before the first await so that concurrent ones do not herd."""
        replica.sent(now_s)
        replica.streams += stream

    def released(self, replica: Replica, stream: bool, sent_s: float = NEVER) -> None:
        """A request that was dispatched there, at `sent_s`, is over, however it ended."""
        replica.left()
        self.carried(replica, stream, sent_s)

    def carries(self, replica: Replica, stream: bool) -> None:
        """As `dispatched`, of a request that a desk has counted there already."""
        replica.streams += stream

    def carried(self, replica: Replica, stream: bool, sent_s: float = NEVER) -> None:
        """As `released`, of a request that a desk counts."""
        replica.streams -= stream
        if replica.trying and sent_s >= replica.ready_since_s:
            replica.trying -= 1

    def stalled(self, replica: Replica, stalled: bool, now_s: float) -> None:
        """The client of a stream there stopped reading (so nothing is read from the backend either), or reads again."""
        replica.stalled += 1 if stalled else -1
        if not replica.wedged:
            replica.last_byte_s = now_s

    def answered(self, replica: Replica, body_hash: int | None, now_s: float) -> None:
        """The first byte of an answer that is no failure arrived: the backend works."""
        replica.answered_s = now_s
        if not replica.wedged:  # else only a token counts
            replica.last_byte_s = now_s
        if replica.failures or replica.trial or replica.suspects:
            replica.failures = replica.missed_probes = 0
            replica.trial = False
            self._cleared(replica)
            if replica.state == "ready":
                replica.reason = ""
        if self.has_drops and body_hash is not None:
            droppers = self._suspicion.works(body_hash)
            self.has_drops = bool(self._suspicion)
            for name in droppers - {replica.name}:
                blamed = self._replicas.get(name)
                if blamed is not None and blamed.state == "ready":
                    self._count_failure(blamed, "failed at a request that works elsewhere")

    def responded(
        self, replica: Replica, status: int, values: Mapping[bytes, bytes], body_hash: int | None, now_s: float, sent_s: float
    ) -> None:
        """An answer's head is here. 429 and 503 are no failure: it is left alone for as long as it says."""
        if status == 429 or status == 503:
            wait_s = overload_wait_s(values.get(b"retry-after"), values.get(b"date"))
            replica.overloaded_until_s = max(replica.overloaded_until_s, now_s + wait_s)
        elif status == 508:
            self.failed(replica, "status", "answered 508: it leads back to a gateway before it", None, now_s, sent_s)
        elif status >= 500 and status not in CANNOT:
            self.failed(replica, "status", f"answered {status}", body_hash, now_s, sent_s)
        else:
            self.answered(replica, body_hash, now_s)

    def failed(
        self, replica: Replica, kind: Failure, reason: str, body_hash: int | None, now_s: float, sent_s: float = NEVER
    ) -> None:
        """A request failed there, sent at `sent_s`. `body_hash` names a request that had been sent whole, if its failure may be
        its own (a reset, a 5xx): then the same one again is no news, and only others count."""
        replica.failed_total += 1
        if sent_s < replica.ready_since_s:
            return  # lost in a breakdown that is over: no news about the backend as it is now
        replica.trial = False
        if body_hash is not None:
            self._suspicion.failed(body_hash, replica.name, now_s, dropped=kind == "reset")
            self.has_drops = True
            if body_hash in replica.suspects:
                replica.repeats += 1
                return  # the same request again: no news about the backend
            replica.suspects.add(body_hash)
            if len(replica.suspects) == 1 and replica.failures == 0:
                return  # it may be the request: only a second, different one counts
            if kind == "status" and replica.failures + 1 >= self._health.failures and not self._has_peer(replica):
                replica.repeats = REPEATS  # without it nobody would get an answer: first a token has to tell
                return
        if replica.state == "ready" and self._count_failure(replica, reason) and kind == "timeout":
            self._silenced(replica)

    def _has_peer(self, replica: Replica) -> bool:
        """Whether another one is ready for any model of its."""
        return any(
            other is not replica and other.state == "ready" and not set(other.models).isdisjoint(replica.models)
            for other in self._replicas.values()
        )

    def wedged(self, replica: Replica) -> None:
        """In flight, and no token for too long."""
        if replica.state == "ready":
            self._silenced(replica)
            self._move(replica, "down", "in flight but no token")

    def doubted(self, replica: Replica) -> bool:
        """Whether it fails at one body again and again, or is the only one for its models and fails at several, and answers
        nothing else: only a token tells whose fault that is."""
        return replica.state == "ready" and replica.repeats >= REPEATS

    def proven(self, replica: Replica) -> None:
        """A doubted one gave a token: it was the body."""
        if replica.state == "ready":
            replica.failures = 0
            self._cleared(replica)

    def unproven(self, replica: Replica) -> None:
        """A doubted one gave no token either."""
        if replica.state == "ready":
            self._silenced(replica)
            self._move(replica, "down", "fails at requests, and gives no token")

    @staticmethod
    def _silenced(replica: Replica) -> None:
        replica.wedged, replica.last_byte_s, replica.failed_before = True, SILENT, replica.failed_total

    @staticmethod
    def _cleared(replica: Replica) -> None:
        replica.suspects.clear()
        replica.repeats = 0

    def droppers(self, body_hash: int, now_s: float) -> frozenset[str]:
        """Backends that dropped this very body lately, as far as that speaks against the body."""
        return self._suspicion.droppers(body_hash, now_s)

    def refusers(self, body_hash: int, now_s: float) -> frozenset[str]:
        """Backends that answered 5xx to this very body lately."""
        return self._suspicion.refusers(body_hash, now_s)

    def forget(self, now_s: float) -> None:
        """Drop what is too old to matter."""
        self._suspicion.forget(now_s)
        self.has_drops = bool(self._suspicion)

    def _count_failure(self, replica: Replica, reason: str) -> bool:
        """True when that opened the breaker."""
        replica.failures += 1
        replica.reason = reason
        if replica.failures >= self._health.failures:
            replica.trial = False
            self._move(replica, "down", f"breaker: {reason}")
            return True
        return False

    def _changed(self) -> None:
        self.version += 1
        self._routes.clear()
        self.uneven = uneven(self._replicas.values())
