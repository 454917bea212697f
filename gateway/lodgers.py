"""Follows the fleet: a lodger and a mover for each backend that shares a device, as its settings are now. Shell.

What changed of a backend whose process runs has to wait: its requests are let finish, then the process ends, and only then
are there a lodger and a mover by the new settings. Until then the old ones stand, with the replica that has those requests,
also where the fleet has another one by that name already. It must never decide who comes or leaves otherwise.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from backends.movers import mover_for
from backends.moves import Mover, MoverSpec
from gateway.config import BackendSpec
from gateway.lodging import SLOTS, Lodger
from gateway.replica import Replica
from gateway.residency import NEVER, Step
from gateway.server import DataPlane
from gateway.upkeep import Upkeep

CONTROL_SLACK_S = 5.0

Way = tuple[object, ...]


class Lodgers:
    """See the module's words. `moves` are the steps under way, by device; `send_away` has one taken out. `movers` are by
    lodger."""

    def __init__(
        self, plane: DataPlane, upkeep: Upkeep, moves: Mapping[str, Step], send_away: Callable[[Lodger], None]
    ) -> None:
        self.movers: dict[str, Mover] = {}
        self._plane = plane
        self._upkeep = upkeep
        self._moves = moves
        self._send_away = send_away
        self._known: dict[str, tuple[BackendSpec, Replica]] = {}  # as it is, or was when what changed has to wait
        self._ways: dict[str, Way] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Let go of all movers: the processes that were started end."""
        await asyncio.gather(*self._closing, *(mover.close() for mover in self.movers.values()), return_exceptions=True)

    def home(self, lodger: Lodger) -> Replica | None:
        """The replica that has its requests."""
        known = self._known.get(lodger.backend)
        return known[1] if known is not None else None

    def sync(self) -> None:
        """Take in what the fleet has now."""
        plane, lodging = self._plane, self._plane.lodging
        found = {r.name: (r.spec, r) for r in plane.fleet if r.spec.swap.device and lodging.device(r.spec.swap.device)}
        ways = {name: self._way(spec) for name, (spec, _) in found.items()}
        if found == self._known and ways == self._ways:
            return
        anew = {name for name in self._ways if ways.get(name) != self._ways[name]}
        for name in sorted(anew):
            if self._stays(name):
                found[name], ways[name] = self._known[name], self._ways[name]
                anew.discard(name)
            else:
                self._let_go(name)
        lodgers: list[Lodger] = []
        for name, (spec, replica) in found.items():
            mine = [] if name in anew else [one for one in lodging.lodgers.values() if one.backend == name]
            for lodger in mine:
                lodger.slots = _slots(spec)
                if lodger.phase == "in" and replica is not self._known[name][1]:
                    plane.fleet.awake(replica)  # it came back under its name, and is where it was
            lodgers += mine or self._made(spec)
        self._known, self._ways = found, ways
        lodging.lodge(lodgers, plane.now())

    def _stays(self, name: str) -> bool:
        """Whether what changed of that backend has to wait: for the end of a move, or of its requests, which are let finish
        before a process of ours ends."""
        old_spec, old = self._known[name]
        now = self._plane.fleet.get(name)
        for lodger in self._plane.lodging.lodgers.values():
            if lodger.backend != name or not lodger.moves:
                continue
            step = self._moves.get(lodger.device)
            if step is not None and lodger.model in (step.model, *step.leaves):
                return True
            if old_spec.swap.way == "process" and lodger.phase == "in" and now is not None:
                if now is not old and now.spec.url == old_spec.url:
                    self._plane.fleet.cut(now, "its old process is still there")
                if step is None:
                    self._send_away(lodger)
                return True
        return False

    def _let_go(self, name: str) -> None:
        mover, replica = self.movers.pop(name, None), self._plane.fleet.get(name)
        if mover is not None:
            task = asyncio.create_task(mover.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        if replica is not None and not replica.moves and replica.state in ("asleep", "swapping"):
            self._plane.fleet.awake(replica)  # nobody moves it any more: it is what its probe says

    def _made(self, spec: BackendSpec) -> Iterator[Lodger]:
        swap, slots = spec.swap, _slots(spec)
        if swap.way == "none":
            for model in spec.models:
                key = spec.name if len(spec.models) == 1 else f"{spec.name}:{model}"
                yield Lodger(key, model, swap.device, moves=False, phase="in", place="gpu", since_s=-NEVER, slots=slots)
            return
        (model,) = spec.models
        http = self._upkeep.control(spec, max(swap.start_s, swap.stop_s) + CONTROL_SLACK_S)
        layers = self._plane.lodging.footprint(model).layers
        mover = self.movers[spec.name] = mover_for(MoverSpec(swap, spec.url, model, layers), http)
        yield Lodger(spec.name, model, swap.device, True, mover.home, mover.parts, mover.keeps, place=mover.home, slots=slots)

    def _way(self, spec: BackendSpec) -> Way:
        """What its mover is made from: other settings change without a move."""
        layers = self._plane.lodging.footprint(spec.models[0]).layers if spec.swap.way != "none" else 0
        return spec.url, spec.engine, spec.models, spec.swap, spec.api_key, layers


def _slots(spec: BackendSpec) -> int:
    """Requests at once."""
    return min(spec.max_in_flight, spec.max_num_seqs or SLOTS)
