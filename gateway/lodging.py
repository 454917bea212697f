"""Models that share devices, as the swap planner sees them: who lies where, who waits, what was learned. Pure.

Whoever moves models (gateway.swapper) tells it what became of each; the data plane tells it of requests. It gives views
for planning, the instants when absent models are expected, and who is barred for a while because moving it failed. It must
never move anything, and without devices in the configuration it is off and costs nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.absences import Absences
from gateway.accounts import Account
from gateway.config import GatewayConfig
from gateway.habits import PATIENCE_S, Habits
from gateway.lateness import Demand, Prices
from gateway.offload_rates import OffloadRates
from gateway.residency import NEVER, Device, PlanSettings, Residency, Resident, SwapPlan, Tenant, narrow
from gateway.swap_config import DeviceSpec, FootprintSpec
from predictor.cost import GB, HostProfile, Place, SwapCosts

STARVE_MARGIN = 0.8
BAR_FIRST_S, BAR_LAST_S = 5.0, 300.0
HOPELESS = 2  # failures after the first one
SLOTS = 64
SOON_S = 0.2  # what comes, and is not there yet, needs so long at least
DOWN_S = 60.0  # who is down is expected back by then

Phase = Literal["in", "leaving", "out", "coming"]


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits for a replica: since when, and until when its first token is not late."""

    model: str
    since_s: float
    deadline_s: float


@dataclass(slots=True)
class Lodger:
    """A backend whose model shares a device. `place` is where its weights lie, `rest` where they go when it leaves; `since_s`
    is when it came, `ready_s` when it is expected while it comes; `running` requests are there, sent to it at `sent_s`, `kept`
    stay in its engine while it is out. `usable`: its engine answers, and takes requests; `down_s` is since when it does not.
    `stuck`: it is out, but memory of the device may be taken, for a move of it stopped half way. `fetches`: its weights can be
    brought nearer beforehand, so far as known. `ours`: a move of ours put it there, so that the `fraction` is known."""

    name: str
    model: str
    device: str
    moves: bool = True
    rest: Place = "disk"
    parts: bool = False
    keeps: bool = False
    phase: Phase = "out"
    place: Place = "disk"
    fraction: float = 1.0
    since_s: float = 0.0
    ready_s: float = 0.0
    running: int = 0
    sent_s: tuple[float, ...] = ()
    kept: int = 0
    kept_s: float = 0.0
    usable: bool = True
    down_s: float = 0.0
    stuck: bool = False
    fetches: bool = True
    ours: bool = False
    slots: int = SLOTS

    @property
    def backend(self) -> str:
        """The name of its backend; where that has several models, each is a lodger of its own."""
        return self.name.partition(":")[0]

    @property
    def takes(self) -> bool:
        """Whether it takes memory of its device."""
        return self.stuck or self.phase != "out"


@dataclass(slots=True)
class Bar:
    """Why a model is not brought to a device for now, and until when; each failure doubles the time."""

    until_s: float
    count: int
    reason: str


class Lodging:
    """See the module's words. `nudge` is called when somebody waits for what lies nowhere."""

    def __init__(self, config: GatewayConfig, hosts: Callable[[], Mapping[str, HostProfile]]) -> None:
        self.on = False
        self.nudge: Callable[[], None] = _nothing
        self.offload = OffloadRates(self.footprint)
        self.lodgers: dict[str, Lodger] = {}
        self.pins: dict[str, bool] = {}  # by hand, over what the file says
        self.plan = SwapPlan((), 0.0, 0.0)
        self.planned_s = -NEVER
        self._hosts = hosts
        self._costs: SwapCosts | None = None
        self._habits: dict[str, Habits] = {}
        self._absences: dict[str, Absences] = {}
        self._bars: dict[tuple[str, str], Bar] = {}
        self._turned_away: dict[str, float] = {}
        self.adopt(config)

    def adopt(self, config: GatewayConfig) -> None:
        """The configuration is, from now on, this one."""
        self.config = config
        self.on = bool(config.devices)

    @property
    def costs(self) -> SwapCosts:
        """What moves cost, as learned so far."""
        if self._costs is None:
            self._costs = SwapCosts(self._hosts())
        return self._costs

    # -- what requests tell

    def habits(self, model: str) -> Habits:
        """Of a model with a lodger."""
        found = self._habits.get(model)
        if found is None:
            found = self._habits[model] = Habits()
        return found

    def lodges(self, model: str) -> bool:
        """Whether a model shares a device."""
        return model in self._absences

    def arrived(self, model: str, now_s: float, deadline_s: float) -> None:
        """A request for a model came; its first token is late from that instant on."""
        if model in self._absences:
            self.habits(model).arrived(now_s, deadline_s)

    def over(self, account: Account) -> None:
        """A request is over."""
        model, start_s = account.model, account.first_byte_s - account.dispatched_s
        if model not in self._absences:
            return
        mine = next((one for one in self.lodgers.values() if (one.backend, one.model) == (account.backend, model)), None)
        others = [one for one in self.lodgers.values() if mine is not None and one.device == mine.device and one is not mine]
        slower = self._slower(mine) if mine is not None else 1.0
        if account.end == "complete" and start_s >= 0:
            shared = (1 + sum(one.running > 0 for one in others)) * slower
            self.habits(model).over(start_s, account.finished_s - account.dispatched_s, shared)
        if mine is not None:
            fraction = mine.fraction if mine.parts and mine.ours else None
            self.offload.over(account, mine.device, fraction, mine.since_s, {one.backend for one in (mine, *others)})

    def _slower(self, lodger: Lodger) -> float:
        return self.offload.slowdown(lodger.model, lodger.fraction) if lodger.parts else 1.0

    def waited_s(self, model: str, from_s: float, until_s: float) -> float:
        """Of that stretch, the seconds in which the model lay on no device."""
        absences = self._absences.get(model)
        return absences.within_s(from_s, until_s) if absences is not None else 0.0

    def expected_s(self, model: str, now_s: float, hopeful: bool = False) -> float | None:
        """Seconds until a model that lies nowhere is expected on a device; 0 if it is on one, None if it shares none. One that
        is overdue is expected to be so for as long again; to be `hopeful` is to expect it any moment."""
        mine = [lodger for lodger in self.lodgers.values() if lodger.model == model]
        if not mine:
            return None
        if any(lodger.phase == "in" and lodger.usable for lodger in mine):
            return 0.0
        left = float if hopeful else abs
        coming = [left(lodger.ready_s - now_s) for lodger in mine if lodger.phase == "coming"]
        planned: list[float] = []
        if self.config.swaps.mode == "auto":  # else nobody carries it out
            planned = [step.ready_s - (now_s - self.planned_s) for step in self.plan.steps if step.model == model]
        if coming or planned:
            return max(min([*coming, *planned]), SOON_S)
        return min(self._unplanned_s(lodger, now_s) for lodger in mine)

    def _unplanned_s(self, lodger: Lodger, now_s: float) -> float:
        """Were it brought now: who leaves for it soonest is let finish, and goes out."""
        others = [one for one in self.lodgers.values() if one.device == lodger.device and one.takes and one is not lodger]
        device, free = self.device(lodger.device), 0.0
        if device is not None:
            free = device.memory_gb * GB - sum(self.taken_bytes(one) for one in others) - self.taken_bytes(lodger, 1.0)
        whole = not lodger.parts or self.offload.of(lodger.model) is None  # else a part of it may do
        leave_s = self._leave_s(others, -free if whole else 0.0, now_s)
        return max(self.barred_s(lodger.model, lodger.device, now_s), leave_s, 0.0) + self.load_s(lodger)

    def _leave_s(self, others: Sequence[Lodger], missing: float, now_s: float) -> float:
        """Until so many bytes are free: the soonest whose leaving alone is enough, else one after the other, else for long."""
        if missing <= 0:
            return 0.0
        movable = [one for one in others if one.phase == "leaving" or (one.moves and not self.pinned(one.model))]
        drained = {
            one.name: max(one.ready_s - now_s, 0.0) if one.phase == "leaving" else self._drain(one, now_s)[0] for one in movable
        }
        moved = {one.name: 0.0 if one.phase == "leaving" else self.move_s(one, "gpu", one.rest) for one in movable}
        alone_s = [drained[one.name] + moved[one.name] for one in movable if self.taken_bytes(one) >= missing]
        leave_s = 0.0
        for one in sorted(movable, key=lambda one: drained[one.name]):
            if missing > 0:
                missing -= self.taken_bytes(one)
                leave_s = max(leave_s, drained[one.name]) + moved[one.name]
        return BAR_LAST_S if missing > 0 and not alone_s else min([leave_s, *alone_s])

    def too_far_s(self, model: str, now_s: float, due_s: float) -> float:
        """Seconds until the model comes, where that is later than a request may begin; else 0. The request is turned away
        then, but counts as one that waits until it may come again."""
        hoped_s = (self.expected_s(model, now_s, hopeful=True) or 0.0) if self.on else 0.0
        if not hoped_s or (now_s + hoped_s <= due_s and not self.hopeless(model)):
            return 0.0
        wait_s = self.expected_s(model, now_s) or hoped_s
        self._turned_away[model] = now_s + wait_s + PATIENCE_S
        self.nudge()
        return wait_s

    def turned_away(self, now_s: float) -> list[Waiter]:
        """Those that will come again."""
        self._turned_away = {model: until_s for model, until_s in self._turned_away.items() if until_s > now_s}
        return [Waiter(model, now_s, until_s) for model, until_s in self._turned_away.items()]

    # -- what moves tell

    def lodge(self, lodgers: Iterable[Lodger], now_s: float) -> None:
        """These are all there are, from now on."""
        self.lodgers = {lodger.name: lodger for lodger in lodgers}
        models = {lodger.model for lodger in self.lodgers.values()}
        self._absences = {model: self._absences.get(model, Absences()) for model in models}
        self._habits = {model: habits for model, habits in self._habits.items() if model in models}
        places = {(lodger.model, lodger.device) for lodger in self.lodgers.values()}
        self._bars = {place: bar for place, bar in self._bars.items() if place in places}
        self._turned_away = {model: until_s for model, until_s in self._turned_away.items() if model in models}
        self.pins = {model: pinned for model, pinned in self.pins.items() if model in models}
        self.offload.only(models, {lodger.device for lodger in self.lodgers.values()})
        for model in models:
            self.moved(model, now_s)

    def moved(self, model: str, now_s: float) -> None:
        """A lodger of this model came or went."""
        absences = self._absences.get(model)
        if absences is None:
            return  # the last backend of it was removed while it moved
        there = any(lodger.phase == "in" for lodger in self.lodgers.values() if lodger.model == model)
        if there and absences.since_s < NEVER:
            absences.closed.append((absences.since_s, now_s))
            absences.since_s = NEVER
        elif not there and absences.since_s == NEVER:
            absences.since_s = now_s

    def bar(self, model: str, device: str, reason: str, now_s: float, counts: bool = True, lost_s: float = 0.0) -> None:
        """Bringing it there failed, after `lost_s` in which the device served nobody: others have it for as long. A failure
        that `counts` makes the next bar longer, and in the end hopeless."""
        before = self._bars.get((model, device))
        count = before.count + counts if before is not None else 0
        bar_s = max(min(BAR_FIRST_S * 2.0 ** min(count, 16), BAR_LAST_S), lost_s)
        self._bars[model, device] = Bar(now_s + bar_s, count, reason)

    def unbar(self, model: str, device: str) -> None:
        """It came there."""
        self._bars.pop((model, device), None)

    def barred_s(self, model: str, device: str, now_s: float) -> float:
        """Seconds for which it is not brought there; 0 or less: it may be."""
        found = self._bars.get((model, device))
        return found.until_s - now_s if found is not None else 0.0

    def hopeless(self, model: str) -> bool:
        """Whether bringing it failed again and again, wherever it may lie."""
        bars = [self._bars.get((model, lodger.device)) for lodger in self.lodgers.values() if lodger.model == model]
        return all(bar is not None and bar.count >= HOPELESS for bar in bars)

    def why_barred(self, model: str, device: str) -> str:
        """What went wrong when it was last brought there; "" if nothing did since it last came."""
        found = self._bars.get((model, device))
        return found.reason if found is not None else ""

    # -- sizes and times

    def footprint(self, model: str) -> FootprintSpec:
        """As configured."""
        return self.config.model(model).footprint

    def taken_bytes(self, lodger: Lodger, fraction: float | None = None) -> float:
        """The memory that it takes where it lies, or would with that part of its layers."""
        spec = self.footprint(lodger.model)
        return spec.size().resident_bytes(lodger.fraction if fraction is None else fraction, float(spec.kv_tokens))

    def device(self, name: str) -> DeviceSpec | None:
        """As configured; None if it is gone."""
        return next((device for device in self.config.devices if device.name == name), None)

    def bytes(self, model: str) -> float:
        """Of its weights."""
        return self.footprint(model).weight_gb * GB

    def move_s(self, lodger: Lodger, start: Place, end: Place) -> float:
        """Expected seconds of that move of it."""
        device = self.device(lodger.device)
        return self.costs.predict(lodger.model, self.bytes(lodger.model), device.host, start, end).mean_s if device else 0.0

    def load_s(self, lodger: Lodger) -> float:
        """Expected seconds of bringing it onto its device."""
        return self.move_s(lodger, lodger.place if lodger.place != "gpu" else lodger.rest, "gpu")

    def observe(self, lodger: Lodger, start: Place, end: Place, took_s: float) -> None:
        """That move of it took so long."""
        device = self.device(lodger.device)
        if device is not None and lodger.fraction >= 1.0:
            self.costs.observe(lodger.model, self.bytes(lodger.model), device.host, start, end, took_s)

    def pinned(self, model: str) -> bool:
        """Whether it is never to leave."""
        return self.pins.get(model, self.footprint(model).pinned)

    # -- views

    def settings(self, wide: bool = False) -> PlanSettings:
        """Of a plan: narrow for one that is made each second, wide for one that is looked at."""
        swaps = self.config.swaps
        prices = Prices(horizon_s=swaps.horizon_s, starve_s=swaps.starve_s * STARVE_MARGIN)
        preempt = any(lodger.moves for lodger in self.lodgers.values()) and all(
            lodger.keeps for lodger in self.lodgers.values() if lodger.moves
        )
        found = PlanSettings(prices=prices, dwell_s=swaps.dwell_s, preempt=preempt)
        return found if wide else narrow(found)

    def view(self, waiters: Sequence[Waiter], now_s: float) -> Residency:
        """All that a plan is made from."""
        devices = tuple(Device(d.name, d.host, d.memory_gb * GB) for d in self.config.devices)
        busy_s: dict[str, float] = {}
        for lodger in self.lodgers.values():
            if lodger.phase in ("coming", "leaving"):
                busy_s[lodger.device] = max(lodger.ready_s - now_s, busy_s.get(lodger.device, 0.0), SOON_S)
        here = [one for one in self.lodgers.values() if self.device(one.device) is not None]  # the others are on their way out
        residents = tuple(self._resident(one, now_s) for one in here if one.stuck or one.phase in ("in", "coming"))
        tenants = tuple(self._tenant(model, waiters, now_s) for model in sorted({one.model for one in here}))
        ram = {d.name: d.ram_gb * GB for d in self.config.devices if d.ram_gb}
        return Residency(devices, tenants, residents, busy_s, ram)

    def _resident(self, lodger: Lodger, now_s: float) -> Resident:
        coming = lodger.phase == "coming"
        hold_s = self.habits(lodger.model).hold_s * self._slower(lodger)
        pause_s = hold_s if lodger.keeps else NEVER  # who still runs then is one of those that run for long
        drain_s, left = self._drain(lodger, now_s, pause_s)
        there = lodger.usable and not lodger.stuck
        ready_s = max(lodger.ready_s - now_s, SOON_S) if coming else 0.0 if there else DOWN_S
        since_s = 0.0 if coming else now_s - lodger.since_s
        lost = not (coming or lodger.usable or now_s < lodger.down_s + DOWN_S)
        return Resident(
            lodger.model, lodger.device, lodger.fraction, lodger.running, drain_s, since_s, ready_s, 0.0, lost, pause_s, left
        )

    def _drain(self, lodger: Lodger, now_s: float, until_s: float = NEVER) -> tuple[float, float]:
        """Seconds until its requests of now are over, at most `until_s`, and how many run on then."""
        ages = [now_s - sent_s for sent_s in lodger.sent_s] + [0.0] * (lodger.running - len(lodger.sent_s))
        busy = sum(one.running > 0 for one in self.lodgers.values() if one.device == lodger.device)
        return self.habits(lodger.model).drain(ages, self._slower(lodger) * max(busy, 1), until_s)

    def _tenant(self, model: str, waiters: Sequence[Waiter], now_s: float) -> Tenant:
        mine = [one for one in self.lodgers.values() if one.model == model and self.device(one.device) is not None]
        spec, habits = self.footprint(model), self.habits(model)
        service = habits.service(float(max(lodger.slots for lodger in mine)))
        hosts = {device.host for lodger in mine if (device := self.device(lodger.device)) is not None}
        places = {
            device.host: lodger.place
            for lodger in mine
            if lodger.phase != "in" and (device := self.device(lodger.device)) is not None and lodger.place != "gpu"
        }
        split = self.offload.of(model) if any(lodger.parts for lodger in mine) else None
        homes = [one for one in mine if one.kept] or mine  # requests that an engine keeps go on nowhere else
        allowed = [one.device for one in homes if one.phase in ("in", "coming") or self._may_come(one, now_s)]
        waiting = [(waiter.since_s, waiter.deadline_s) for waiter in waiters if waiter.model == model]
        kept = [(lodger.kept, lodger.kept_s) for lodger in mine if lodger.kept]
        stays = not any(lodger.moves for lodger in mine)
        return Tenant(
            model,
            spec.size(),
            dict.fromkeys(hosts, service),
            habits.demand(waiting, kept, now_s) if allowed else Demand(),
            float(spec.kv_tokens),
            tuple(allowed or [one.device for one in mine]),
            stays or self.pinned(model),
            places,
            mine[0].rest,
            split.curve() if split is not None else None,
            tuple(one.device for one in mine if one.fetches),
        )

    def _may_come(self, lodger: Lodger, now_s: float) -> bool:
        return lodger.usable and not lodger.stuck and self.barred_s(lodger.model, lodger.device, now_s) <= 0


def _nothing() -> None:
    return
