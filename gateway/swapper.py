"""Carries out swap plans: plans while somebody waits for a model that lies nowhere, one step at a time on each device. Shell.

It owns the movers and, through them, the processes that the gateway starts. Who really lies where is looked up again and
again (gateway.lookout); a process that crashed comes back by itself, later after each crash. What an operator asks for goes
the same way as what the planner wants. Judgement is the planner's (gateway.swaps), never here.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from backends.moves import MoveError, Mover
from gateway.endless import endless
from gateway.lodgers import Lodgers
from gateway.lodging import DOWN_S, STARVE_MARGIN, Lodger, Waiter
from gateway.lookout import Lookout
from gateway.moving import Hands, Move, Moved
from gateway.operator_errors import OperationError
from gateway.residency import NEVER, Step, SwapPlan
from gateway.server import DataPlane
from gateway.swap_actions import plan, read_ahead, why
from gateway.swaps import Planner
from gateway.upkeep import Upkeep

LOOK_S = 2.0
DUE_S = 0.05  # a step so near is carried out now
IDLE_S = 10.0  # while nobody waits, what could be read ahead is looked at so often
HISTORY = 64


class Swapper:
    """See the module's words. Touched only by the event loop. `history` are the last steps, newest last."""

    def __init__(self, plane: DataPlane, upkeep: Upkeep) -> None:
        self._plane = plane
        self._upkeep = upkeep
        self._moving: dict[str, asyncio.Task[None]] = {}  # by device
        self._steps: dict[str, Step] = {}  # what they carry out
        self._fetching: dict[str, asyncio.Task[None]] = {}  # reads ahead, which make way for moves
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._lodgers = Lodgers(plane, upkeep, self._steps, self._send_away)
        self._movers = self._lodgers.movers
        self._lookout = Lookout(plane, self._movers, self._moving, upkeep.watch)
        self._nudged = asyncio.Event()
        self._looked = asyncio.Event()
        self.history: deque[Moved] = deque(maxlen=HISTORY)
        self.counts: Counter[tuple[str, str]] = Counter()  # steps by model and outcome
        self.moved_s: defaultdict[str, float] = defaultdict(float)  # seconds of moves by model

    # -- life

    def start(self) -> None:
        """Begin, if there are devices."""
        if self._plane.lodging.on and not self._tasks:
            self._plane.lodging.nudge = self._nudged.set
            self._lodgers.sync()
            works = {"planning swaps": self._plan_on, "looking who lies where": self._look_on}
            self._tasks = [asyncio.create_task(endless(work, what)) for what, work in works.items()]

    def adopt(self) -> None:
        """The configuration changed."""
        if not self._closed:
            self.start()
            self._lodgers.sync()
            self._nudged.set()

    async def close(self) -> None:
        """Stop, and end the processes that were started."""
        self._closed = True
        tasks = [*self._tasks, *self._moving.values(), *self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lodgers.close()

    # -- planning

    async def _look_on(self) -> None:
        while True:
            self._lodgers.sync()
            try:
                await self._lookout.look()
            finally:
                self._looked.set()
                self._nudged.set()
            await self._lookout.glance(self._plane.now() + LOOK_S)

    async def _plan_on(self) -> None:
        await self._looked.wait()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._plane.config.swaps.plan_s):
                    await self._nudged.wait()
            self._nudged.clear()
            wait_s = self._plane.lodging.planned_s + self._plane.config.swaps.plan_s - self._plane.now()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            if self._plane.lodging.on:
                self._plan_once()

    def _plan_once(self) -> None:
        plane, lodging = self._plane, self._plane.lodging
        self._lodgers.sync()
        self.see()
        if plane.config.swaps.mode == "auto":
            self._bring_back()
            self._put_right()
            self._end_the_silent()
        waiters, now_s = self.waiters(), plane.now()
        if self._wants(waiters):
            found = plan(lodging.view(waiters, now_s), lodging.costs, lodging.settings())
        elif now_s < lodging.planned_s + IDLE_S or not any(device.ram_gb for device in plane.config.devices):
            lodging.plan = SwapPlan((), 0.0, 0.0)
            return
        else:  # nobody waits: nothing is moved, but what may be asked for next is read ahead
            found = SwapPlan((), 0.0, 0.0, read_ahead(lodging.view(waiters, now_s), lodging.costs))
        lodging.plan, lodging.planned_s = found, now_s
        if plane.config.swaps.mode != "auto":
            return
        first = {step.device: step for step in reversed(found.steps)}  # what comes after it rests on it
        for step in first.values():
            if step.device not in self._moving and (step.cut_s <= DUE_S or self._starves(step, waiters)):
                self._carry_out(step, why(step))
        for action in found.actions:
            if action.kind == "prefetch" and action.device not in self.moving:
                self._prefetch(action.model, action.device)

    def _starves(self, step: Step, waiters: Iterable[Waiter]) -> bool:
        """Whether a moment when nobody is there, which may never come, is waited for no longer."""
        since_s = min((waiter.since_s for waiter in waiters if waiter.model == step.model), default=NEVER)
        left_s = self._plane.config.swaps.starve_s * STARVE_MARGIN - (step.ready_s - step.cut_s)
        return step.mode == "idle" and self._plane.now() - since_s >= left_s

    def see(self) -> None:
        """Take in what the fleet knows of lodgers. Who came and was not probed yet has not been there for anybody."""
        sent_s = self._plane.underway.sent_s()
        for lodger in self._plane.lodging.lodgers.values():
            replica = self._lodgers.home(lodger)
            if replica is not None:
                lodger.running, lodger.sent_s = replica.in_flight, tuple(sent_s.get(lodger.backend, ()))
                usable = replica.state not in ("down", "draining")
                if lodger.usable and not usable:
                    lodger.down_s = self._plane.now()
                lodger.usable = usable
                lodger.kept = min(lodger.kept, replica.in_flight)  # clients may have left
                if lodger.phase == "in" and replica.state == "starting":
                    lodger.since_s = self._plane.now()

    def waiters(self) -> list[Waiter]:
        """Requests that wait for any model, and those turned away that will come again."""
        return [*self._plane.waiters(), *self._plane.lodging.turned_away(self._plane.now())]

    def _wants(self, waiters: Iterable[Waiter]) -> bool:
        """Whether anybody waits for what lies nowhere, inside an engine, or for a slot beside others."""
        lodging = self._plane.lodging
        if any(lodging.lodges(waiter.model) for waiter in waiters) or any(one.kept for one in lodging.lodgers.values()):
            return True
        there = {lodger.model for lodger in lodging.lodgers.values() if lodger.phase in ("in", "coming")}
        return any(lodging.pinned(lodger.model) and lodger.model not in there for lodger in lodging.lodgers.values())

    def _bring_back(self) -> None:
        """Who crashed comes back once it may, where there is still room."""
        lodging, now_s = self._plane.lodging, self._plane.now()
        for name in list(self._lookout.crashed):
            lodger = lodging.lodgers.get(name)
            if lodger is None or lodger.phase in ("in", "coming"):
                self._lookout.crashed.discard(name)
            elif lodging.barred_s(lodger.model, lodger.device, now_s) <= 0 and lodger.device not in self._moving:
                self._lookout.crashed.discard(name)
                step = self._step_for(lodger.model, lodger.device, alone=True)
                if step is not None:
                    self._carry_out(step, "it crashed, and may come back")

    def _put_right(self) -> None:
        """Whose move stopped half way comes if somebody waits for it, or else is put back; again later, where that fails."""
        lodging, now_s = self._plane.lodging, self._plane.now()
        for one in lodging.lodgers.values():
            if one.stuck and one.device not in self._moving and lodging.barred_s(one.model, one.device, now_s) <= 0:
                load_s = lodging.load_s(one)
                come = Step(one.device, one.model, 1.0, (), "drain", 0.0, load_s, NEVER, load_s)
                self._carry_out(come if self._wanted(one.model) else self._step_out(one), "a move of it stopped half way", True)

    def _end_the_silent(self) -> None:
        """A process of ours that answers nobody for long is ended, and comes anew when somebody waits for it."""
        now_s = self._plane.now()
        for one in self._plane.lodging.lodgers.values():
            home = self._lodgers.home(one)
            ours = home is not None and home.state == "down" and home.spec.swap.way == "process"
            if ours and one.phase == "in" and now_s >= one.down_s + DOWN_S and one.device not in self._moving:
                self._carry_out(self._step_out(one), "it answers nobody any more", by_hand=True, insist=True)

    # -- acting

    def _send_away(self, lodger: Lodger) -> None:
        self._carry_out(self._step_out(lodger), "its settings changed", by_hand=True, insist=True)

    def _carry_out(self, step: Step, reason: str, by_hand: bool = False, insist: bool = False) -> None:
        if self._closed:
            return
        hands = Hands(self._movers, self._lodgers.home, self._upkeep.watch)
        move = Move(self._plane, hands, step, lambda: by_hand or self._wanted(step.model), insist)
        fetch = self._fetching.get(step.device)
        task = asyncio.create_task(self._moved_by(move, reason, fetch), name=f"swap-{step.device}")
        self._moving[step.device], self._steps[step.device] = task, step
        task.add_done_callback(partial(self._over, step.device))

    def _over(self, device: str, task: asyncio.Task[None]) -> None:
        if self._moving.get(device) is task:
            del self._moving[device], self._steps[device]
        if self._fetching.get(device) is task:
            del self._fetching[device]
        self._nudged.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._plane.loop.call_exception_handler({"message": "a swap failed", "exception": error})

    async def _moved_by(self, move: Move, reason: str, fetch: asyncio.Task[None] | None) -> None:
        if fetch is not None:
            fetch.cancel()
            await asyncio.wait((fetch,))
        told = replace(await move.run(), why=reason)
        self.history.append(told)
        self.counts[told.model or ",".join(told.leaves), told.outcome] += 1
        self.moved_s[told.model or ",".join(told.leaves)] += told.took_s
        self._plane.logs.event(
            "warning" if told.outcome == "failed" else "info", "swap", device=told.device, model=told.model,
            leaves=told.leaves, outcome=told.outcome, why=reason, reason=told.reason, predicted_s=round(told.predicted_s, 2),
            took_s=round(told.took_s, 2), drained_s=round(told.drained_s, 2),
        )  # fmt: skip

    def _wanted(self, model: str) -> bool:
        """Whether anybody still waits for that model."""
        lodging = self._plane.lodging
        mine = [lodger for lodger in lodging.lodgers.values() if lodger.model == model]
        return lodging.pinned(model) or any(lodger.kept for lodger in mine) or any(w.model == model for w in self.waiters())

    def _prefetch(self, model: str, device: str) -> None:
        for lodger in self._plane.lodging.lodgers.values():
            mover = self._movers.get(lodger.name)
            if (lodger.model, lodger.device) == (model, device) and lodger.fetches and mover is not None:
                task = self._fetching[device] = asyncio.create_task(self._fetch(lodger, mover), name=f"fetch-{device}")
                task.add_done_callback(partial(self._over, device))

    async def _fetch(self, lodger: Lodger, mover: Mover) -> None:
        before, began_s = lodger.place, self._plane.now()
        try:
            await mover.prefetch()
        except MoveError as error:
            lodger.fetches = False  # nor tried again: this only saves time
            self._plane.logs.event("warning", "prefetch", backend=lodger.name, reason=str(error))
            return
        lodger.place = lodger.rest = mover.home
        lodger.fetches = lodger.place != before
        if lodger.fetches:
            self._plane.lodging.observe(lodger, before, "ram", self._plane.now() - began_s)

    # -- what an operator may ask for

    @property
    def moving(self) -> frozenset[str]:
        """The devices on which something moves or is fetched just now."""
        return frozenset((*self._moving, *self._fetching))

    def load(self, model: str, device: str = "", dry_run: bool = False) -> Step:
        """Bring a model onto a device (""; the best one), whoever must leave for it. Raises OperationError."""
        self._known(model)
        step = self._step_for(model, device)
        if step is None:
            raise OperationError(
                409, "no_room", f"No device can take {model!r}: it is there already, or what lies there is pinned."
            )
        self._begin(step, dry_run)
        return step

    def unload(self, model: str, device: str = "", dry_run: bool = False) -> Step:
        """Take a model off its device once its requests are over. Raises OperationError."""
        self._known(model)
        for lodger in self._plane.lodging.lodgers.values():
            there = lodger.phase == "in" or lodger.stuck
            if lodger.model == model and there and lodger.moves and device in ("", lodger.device):
                step = self._step_out(lodger)
                self._begin(step, dry_run)
                return step
        raise OperationError(409, "not_loaded", f"{model!r} lies on no such device, or cannot leave it.")

    def _step_out(self, lodger: Lodger) -> Step:
        seconds = self._plane.lodging.move_s(lodger, "gpu", lodger.rest)
        return Step(lodger.device, "", 1.0, (lodger.model,), "drain", 0.0, seconds, NEVER, seconds)

    def pin(self, model: str, pinned: bool | None) -> None:
        """Pin it where it is, let it go, or (None) as the file says. Raises OperationError."""
        self._known(model)
        if pinned is None:
            self._plane.lodging.pins.pop(model, None)
        else:
            self._plane.lodging.pins[model] = pinned
        self._nudged.set()

    def _begin(self, step: Step, dry_run: bool) -> None:
        if step.device in self._moving:
            raise OperationError(409, "device_busy", f"Something moves on {step.device!r} just now.")
        if not dry_run:
            self._carry_out(step, "asked for by an operator", by_hand=True)

    def _known(self, model: str) -> None:
        if not self._plane.lodging.lodges(model):
            raise OperationError(404, "no_such_model", f"No model {model[:200]!r} shares a device.")

    def _step_for(self, model: str, device: str, alone: bool = False) -> Step | None:
        """The cheapest way to have it there now; with `alone`, only where nobody must leave."""
        self.see()
        now_s, lodging = self._plane.now(), self._plane.lodging
        view = lodging.view([*self.waiters(), Waiter(model, now_s, now_s)], now_s)
        planner = Planner(view, lodging.costs, lodging.settings(wide=True))
        options = [
            option
            for option in planner.options_for(planner.root, model)
            if option.mode != "preempt"
            and not option.visit
            and device in ("", option.device.name)
            and not (alone and option.leaves)
        ]
        states = [planner.after(planner.root, option) for option in options]
        if not states:
            return None
        return replace(min(states, key=lambda state: state.cost_s).steps[-1], cut_s=0.0)
