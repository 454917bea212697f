"""One step of a swap plan carried out on one device: cut off, drained, out, in; undone where it fails. Shell.

Nobody's stream is broken: a model leaves when its requests are over, or with them paused inside its engine where that is
able to. Each move is tried again before it counts as failed; then what had left comes back, unless the failed move may
have left memory taken, and the model is barred from the device for a while. What each move took goes into the costs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from backends.moves import MoveError, Mover
from gateway.lodging import Lodger
from gateway.replica import Replica
from gateway.residency import NEVER, Step
from gateway.server import DataPlane

DRAIN_LOOK_S = 0.02
WANTED_LOOK_S = 0.25
GONE = "its backend is gone"
TOO_LONG = "the requests there did not end in time"
Outcome = Literal["done", "failed", "given up"]


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of a step that was taken for `why`. Seconds: predicted for the moves, taken by them, and waited for requests
    before."""

    at_s: float
    device: str
    model: str
    leaves: tuple[str, ...]
    outcome: Outcome
    reason: str
    predicted_s: float
    took_s: float
    drained_s: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Hands:
    """What steps are carried out with: movers by lodger, the replica that has a lodger's requests, and what has a backend
    probed from now on."""

    movers: Mapping[str, Mover]
    home: Callable[[Lodger], Replica | None]
    watch: Callable[[str], None]


class Move:
    """See the module's words. One for each step; `wanted` says whether it still serves a purpose. One that is to `insist` cuts
    off requests that do not end in time, others are given up."""

    def __init__(self, plane: DataPlane, hands: Hands, step: Step, wanted: Callable[[], bool], insist: bool = False) -> None:
        self._plane = plane
        self._lodging = plane.lodging
        self._movers = hands.movers
        self._replica = hands.home
        self._watch = hands.watch
        self._step = step
        self._wanted = wanted
        self._insist = insist

    async def run(self) -> Moved:
        """Carry it out. Raises nothing but CancelledError."""
        plane, step = self._plane, self._step
        began_s = plane.now()
        leavers = [lodger for name in step.leaves if (lodger := self._lodger(name)) is not None]
        target = self._lodger(step.model) if step.model else None
        pause_s = step.pause_s if all(lodger.keeps for lodger in leavers) else NEVER
        predicted_s = sum(self._lodging.move_s(lodger, "gpu", lodger.rest) for lodger in leavers)
        if target is not None:
            predicted_s += self._lodging.load_s(target)
        self._cut(leavers, target, predicted_s)
        problem = GONE if step.model and target is None else await self._drained(leavers, pause_s)
        drained_s = plane.now() - began_s
        outcome: Outcome = "given up"
        if problem:
            self._reopen(leavers, target)
            if target is not None and problem == TOO_LONG:  # else they would be cut off again at once, and for good
                self._lodging.bar(target.model, target.device, problem, plane.now(), counts=False)
        else:
            problem = await self._swap(leavers, target, keep=pause_s < NEVER)
            outcome = "failed" if problem else "done"
        took_s = plane.now() - began_s - drained_s
        return Moved(began_s, step.device, step.model, step.leaves, outcome, problem, predicted_s, took_s, drained_s)

    def _lodger(self, model: str) -> Lodger | None:
        found = [one for one in self._lodging.lodgers.values() if one.model == model and one.device == self._step.device]
        return found[0] if found else None

    # -- the leavers' requests

    def _cut(self, leavers: Sequence[Lodger], target: Lodger | None, predicted_s: float) -> None:
        """No new requests for them; from now on the target counts as on its way."""
        reason = f"makes room for {self._step.model}" if self._step.model else "asked to leave"
        now_s = self._plane.now()
        ready_s = now_s + max(self._step.ready_s - self._step.cut_s, predicted_s)
        if target is not None and target.phase == "out":
            target.phase, target.ready_s = "coming", ready_s
        for lodger in leavers:
            if lodger.phase == "out":
                continue  # what is left of it is only put back
            lodger.phase, lodger.ready_s = "leaving", ready_s
            replica = self._replica(lodger)
            if replica is not None:
                self._plane.fleet.cut(replica, reason)
            self._lodging.moved(lodger.model, now_s)

    async def _drained(self, leavers: Sequence[Lodger], pause_s: float) -> str:
        """Wait until nothing is in flight there, or what is may be paused; why not, if that is given up."""
        began_s = now_s = asked_s = self._plane.now()
        due_s = now_s + self._plane.config.swaps.drain_s
        while any(replica.in_flight for lodger in leavers if (replica := self._replica(lodger)) is not None):
            if now_s >= began_s + pause_s:
                return ""
            if now_s >= asked_s:  # all who wait are looked through for it
                asked_s = now_s + WANTED_LOOK_S
                if not self._wanted():
                    return "nobody waits for it any more"
            if now_s >= due_s:
                return "" if self._insist else TOO_LONG
            await asyncio.sleep(DRAIN_LOOK_S)
            now_s = self._plane.now()
        return ""

    def _reopen(self, leavers: Sequence[Lodger], target: Lodger | None) -> None:
        """They stay, if they have not left yet, and the target where it is."""
        if target is not None and target.phase == "coming":
            target.phase = "out"
        for lodger in leavers:
            if lodger.phase == "leaving":
                lodger.phase = "in"
                replica = self._replica(lodger)
                if replica is not None:
                    self._plane.fleet.reopened(replica)
                self._lodging.moved(lodger.model, self._plane.now())

    # -- the moves

    async def _swap(self, leavers: Sequence[Lodger], target: Lodger | None, keep: bool) -> str:
        """Out and in; what went wrong, if anything did, with all as it was as far as that was possible."""
        began_s = self._plane.now()
        gone: list[tuple[Lodger, float]] = []  # with the part of its layers that lay there
        try:
            for lodger in leavers:
                was_there = lodger.phase != "out"
                await self._out(lodger, keep)
                if was_there:
                    gone.append((lodger, lodger.fraction))
            if target is not None:
                await self._into(target, self._step.fraction)
        except MoveError as error:
            self._reopen(leavers, target)
            if target is not None:
                self._bar(target, error, self._plane.now() - began_s)
            if target is None or not target.stuck:  # else there may be no room for them
                await self._return(gone)
            return str(error)
        return ""

    async def _return(self, gone: Sequence[tuple[Lodger, float]]) -> None:
        for lodger, fraction in gone:
            try:
                await self._into(lodger, fraction)
            except MoveError as error:
                self._bar(lodger, error)

    def _bar(self, lodger: Lodger, error: MoveError, lost_s: float = 0.0) -> None:
        """It failed to move. Requests that are kept in an engine which does not come back end by their own time limits."""
        self._lodging.bar(lodger.model, lodger.device, str(error), self._plane.now(), lost_s=lost_s)
        replica = self._replica(lodger)
        if replica is not None and self._lodging.hopeless(lodger.model):
            replica.paused, lodger.kept = False, 0

    async def _out(self, lodger: Lodger, keep: bool) -> None:
        mover = self._movers[lodger.name]
        try:
            took_s = await self._tried(lodger, lambda: mover.out(keep))
        except MoveError as error:
            place = await mover.where()
            if place != "gpu":
                self._left(lodger, mover, str(error))
            if place is None and not mover.holds:
                return  # nobody is there any more
            if lodger.stuck:
                self._bar(lodger, error)
            raise
        if lodger.phase != "out":
            self._lodging.observe(lodger, "gpu", mover.home, took_s)
        replica = self._replica(lodger)
        if keep and replica is not None and replica.in_flight:
            replica.paused, lodger.kept, lodger.kept_s = True, replica.in_flight, self._plane.now()
        self._left(lodger, mover, f"left for {self._step.model}" if self._step.model else "asked to leave")

    def _left(self, lodger: Lodger, mover: Mover, reason: str) -> None:
        lodger.phase, lodger.place, lodger.stuck = "out", mover.home, mover.holds
        replica = self._replica(lodger)
        if replica is not None:
            self._plane.fleet.slept(replica, reason)
        self._lodging.moved(lodger.model, self._plane.now())

    async def _into(self, lodger: Lodger, fraction: float) -> None:
        plane, mover, start = self._plane, self._movers[lodger.name], lodger.place
        replica = self._replica(lodger)
        if replica is not None and replica.state == "asleep":
            plane.fleet.coming(replica, "on its way")
        lodger.phase, lodger.fraction, lodger.ready_s = "coming", fraction, plane.now() + self._lodging.load_s(lodger)
        try:
            took_s = await self._tried(lodger, lambda: mover.into(fraction))
        except MoveError as error:
            with suppress(MoveError):  # half of it may be there, where what left is to come back
                await mover.out(mover.keeps and lodger.kept > 0)
            await mover.where()  # who is gone holds nothing
            self._left(lodger, mover, str(error))
            raise
        now_s = plane.now()
        self._lodging.observe(lodger, start, "gpu", took_s)
        lodger.phase, lodger.place, lodger.since_s, lodger.kept, lodger.stuck = "in", "gpu", now_s, 0, False
        lodger.ours = True
        lodger.rest = mover.home  # nearer than before, where it has just been read
        self._lodging.unbar(lodger.model, lodger.device)
        self._lodging.moved(lodger.model, now_s)
        if replica is not None:
            plane.fleet.awake(replica)
            self._watch(lodger.name)

    async def _tried(self, lodger: Lodger, act: Callable[[], Awaitable[None]]) -> float:
        """The seconds of the attempt that worked: those before it tell nothing of how long a move takes. Raises the last
        one's MoveError."""
        attempt, attempts = 1, self._plane.config.swaps.attempts
        while True:
            began_s = self._plane.now()
            try:
                await act()
                return self._plane.now() - began_s
            except MoveError as error:
                if attempt >= attempts:
                    raise
                self._plane.logs.event("warning", "move tried again", backend=lodger.name, reason=str(error))
            attempt += 1
