"""Looks at who really lies where, so that what others move, or what crashed, is noticed. Shell.

Engines are asked side by side: one that does not answer hides nobody else. An answer counts only if nothing moved and no
settings changed while it was waited for. It must never move anything: what it finds is told to lodging and fleet.
"""

import asyncio
from collections.abc import Callable, Container, Mapping

from backends.moves import Mover
from gateway.lodging import Lodger
from gateway.replica import Replica
from gateway.server import DataPlane

GLANCE_S = 0.1


class Lookout:
    """See the module's words. `movers` are by lodger, `moving` are the devices on which something moves, `watch` has a
    backend probed from now on. `crashed` are lodgers that ended unasked; whoever brings them back takes them off."""

    def __init__(
        self, plane: DataPlane, movers: Mapping[str, Mover], moving: Container[str], watch: Callable[[str], None]
    ) -> None:
        self.crashed: set[str] = set()
        self._plane = plane
        self._movers = movers
        self._moving = moving
        self._watch = watch

    async def look(self) -> None:
        """Ask all whom nobody moves just now. A mistake of ours with one of them is raised once all others are looked at."""
        lodgers = self._plane.lodging.lodgers.values()
        still = [lodger for lodger in lodgers if lodger.name in self._movers and lodger.device not in self._moving]
        for error in await asyncio.gather(*map(self._look_at, still), return_exceptions=True):
            if error is not None:
                raise error

    async def glance(self, until_s: float) -> None:
        """Return then, or as soon as a process of ours has ended unasked."""
        lodging = self._plane.lodging
        while self._plane.now() < until_s:
            await asyncio.sleep(GLANCE_S)
            for name, mover in self._movers.items():
                lodger = lodging.lodgers.get(name)
                if lodger is not None and lodger.phase == "in" and lodger.device not in self._moving and mover.died():
                    return

    async def _look_at(self, lodger: Lodger) -> None:
        mover, before = self._movers[lodger.name], _moves_of(lodger)
        place, died = await mover.where(), mover.died()
        replica = self._plane.fleet.get(lodger.backend)
        asked = self._movers.get(lodger.name) is mover and self._plane.lodging.lodgers.get(lodger.name) is lodger
        if replica is None or not asked or lodger.device in self._moving or _moves_of(lodger) != before:
            return
        if lodger.phase == "out" and place != "gpu":
            lodger.place, lodger.stuck = mover.home, lodger.stuck and mover.holds
            if replica.state in ("starting", "down", "ready"):
                self._plane.fleet.slept(replica, "its model lies on no device")
        elif lodger.phase != "in" and place == "gpu":
            self._came(lodger, replica)
        elif lodger.phase != "out" and (died or place not in ("gpu", None)):
            self._went(lodger, replica, mover, died)

    def _came(self, lodger: Lodger, replica: Replica) -> None:
        now_s = self._plane.now()
        lodger.phase, lodger.place, lodger.since_s, lodger.kept, lodger.stuck = "in", "gpu", now_s, 0, False
        lodger.ours = False
        self._plane.fleet.awake(replica)
        self._plane.lodging.moved(lodger.model, now_s)
        self._watch(lodger.name)

    def _went(self, lodger: Lodger, replica: Replica, mover: Mover, died: str) -> None:
        """`died`: why, if it ended; else somebody else moved it."""
        plane, now_s = self._plane, self._plane.now()
        lodger.phase, lodger.place, lodger.stuck = "out", mover.home, mover.holds
        plane.fleet.slept(replica, died or "it left by itself")
        plane.lodging.moved(lodger.model, now_s)
        if died:
            plane.lodging.bar(lodger.model, lodger.device, died, now_s)
            self.crashed.add(lodger.name)
        plane.logs.event("error" if died else "warning", "model gone", backend=lodger.name, reason=replica.reason)


def _moves_of(lodger: Lodger) -> tuple[object, ...]:
    """Differs once it has moved, or was about to."""
    return lodger.phase, lodger.since_s, lodger.ready_s
