"""What is shown of models that share devices: who lies where, who waits, what moving costs, what is planned and why. Pure.

Records for the control plane's answers, made from the lodging; times come in as `now_s`, and all that is shown is relative
to now. Infinite times are shown as null, since JSON has no such number. It must never move anything or change the lodging.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.lodging import Lodger, Lodging, Phase, Waiter
from gateway.moving import Moved, Outcome
from gateway.residency import NEVER, Action, Kind, Mode, Step, SwapPlan
from predictor.cost import GB, Place


@dataclass(frozen=True, slots=True)
class MoveCost:
    """Predicted seconds of a move between two places, the 80 % interval, and how many such moves of this model were seen."""

    start: Place
    end: Place
    mean_s: float
    low_s: float
    high_s: float
    seen: int


@dataclass(frozen=True, slots=True)
class FootprintView:
    """What a model takes of a device, in GB (1e9 bytes); `whole_gb` is all of it. `can_split`: a part of its `layers` may
    lie on the device."""

    weight_gb: float
    kv_gb: float
    overhead_gb: float
    whole_gb: float
    layers: int
    can_split: bool


@dataclass(frozen=True, slots=True)
class OffloadView:
    """What is believed of a model that may be split: tokens per second of one sequence with all layers on the GPU and with
    none, the first over the second (`ratio`), each rate's relative standard deviation, the usual `context_tokens` that all
    this is for, and how many streams it rests on (0: the configured rates)."""

    gpu_tokens_per_s: float
    cpu_tokens_per_s: float
    ratio: float
    gpu_error: float
    cpu_error: float
    context_tokens: int
    seen: int


@dataclass(frozen=True, slots=True)
class LodgerView:
    """A backend of the model on a device. `place` is where its weights lie; `fraction` of its layers are (or were last) on the
    device; `running` requests are there, `kept` wait inside its engine while it is out. `stuck`: it is out, but a move of it
    stopped half way, so that its memory counts as taken. It is there for `here_s`, or expected in `ready_s` while it comes.
    `barred_s`: it is not brought there for so long, because of `why_barred`. `into` and `out` is what its next moves are
    expected to cost; null for one that never moves."""

    backend: str
    device: str
    moves: bool
    phase: Phase
    place: Place
    fraction: float
    usable: bool
    stuck: bool
    running: int
    kept: int
    here_s: float | None
    ready_s: float | None
    barred_s: float
    why_barred: str
    into: MoveCost | None
    out: MoveCost | None


@dataclass(frozen=True, slots=True)
class ModelView:
    """A model that shares a device. `pinned_by` says who has said whether it is pinned: the file, or an operator since the
    start. `waiting` requests wait for it, the oldest for `oldest_s`; `rate_per_s` come lately; a request takes `start_s` to its
    first token and `hold_s` in all. `expected_start_s` is 0 where it lies on a device. `offload`: null for a whole one."""

    model: str
    pinned: bool
    pinned_by: Literal["file", "operator"]
    footprint: FootprintView
    lodgers: tuple[LodgerView, ...]
    waiting: int
    oldest_s: float
    rate_per_s: float
    start_s: float
    hold_s: float
    expected_start_s: float | None
    offload: OffloadView | None


@dataclass(frozen=True, slots=True)
class ModelList:
    """All models that share devices, by name."""

    models: tuple[ModelView, ...]
    total: int


@dataclass(frozen=True, slots=True)
class ResidentView:
    """A model on a device, and the memory that it takes there, in GB: also of one that is out where that may not be all."""

    model: str
    backend: str
    phase: Phase
    fraction: float
    memory_gb: float
    running: int


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device, its memory in GB, and who lies there or is on its way there; who comes takes memory once who leaves has left.
    `moving`: something comes, leaves or is fetched just now."""

    name: str
    host: str
    memory_gb: float
    taken_gb: float
    free_gb: float
    moving: bool
    residents: tuple[ResidentView, ...]


@dataclass(frozen=True, slots=True)
class StepView:
    """A model is brought onto a device; `leaves` make room for it (model "": they only leave), cut off in `cut_s`, drained,
    waited for until idle, or paused (`mode`); who still runs `pause_s` after the cut is paused (null: nobody is). It is there
    in `ready_s`, and for a visit until `until_s` (null: it stays). `swap_s` is the time of moving weights, `saved_s` the
    expected lateness that it takes away."""

    device: str
    model: str
    fraction: float
    leaves: tuple[str, ...]
    mode: Mode
    cut_s: float
    pause_s: float | None
    ready_s: float
    until_s: float | None
    swap_s: float
    saved_s: float
    waiting: float


@dataclass(frozen=True, slots=True)
class ActionView:
    """One thing to do in `at_s` (null: not known yet), predicted to take `seconds`, and why."""

    kind: Kind
    model: str
    device: str
    at_s: float | None
    seconds: float
    reason: str
    fraction: float


@dataclass(frozen=True, slots=True)
class StepTaken:
    """A step that would be taken (`dry_run`) or is under way now."""

    dry_run: bool
    step: StepView


@dataclass(frozen=True, slots=True)
class PlanView:
    """Steps and their actions. `cost_s` is the expected lateness with them, in weighed seconds over the horizon, `idle_cost_s`
    with none, `saved_s` the difference."""

    steps: tuple[StepView, ...]
    actions: tuple[ActionView, ...]
    cost_s: float
    idle_cost_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class MovedView:
    """What became of a step `ago_s` ago (when it began): `why` it was taken, `reason` is what went wrong. Seconds predicted for
    the moves, taken by them, and waited before for requests to end."""

    ago_s: float
    device: str
    model: str
    leaves: tuple[str, ...]
    outcome: Outcome
    why: str
    reason: str
    predicted_s: float
    took_s: float
    drained_s: float


@dataclass(frozen=True, slots=True)
class Situation:
    """The devices, the plan made `age_s` ago (null: none yet) and the last steps, newest first."""

    mode: Literal["auto", "dry"]
    devices: tuple[DeviceView, ...]
    age_s: float | None
    plan: PlanView
    history: tuple[MovedView, ...]


def model_list(lodging: Lodging, waiters: Sequence[Waiter], now_s: float) -> ModelList:
    """All models as shown."""
    names = sorted({lodger.model for lodger in lodging.lodgers.values()})
    return ModelList(tuple(model_view(lodging, name, waiters, now_s) for name in names), len(names))


def model_view(lodging: Lodging, model: str, waiters: Sequence[Waiter], now_s: float) -> ModelView:
    """One model that has a lodger."""
    habits, mine = lodging.habits(model), [waiter for waiter in waiters if waiter.model == model]
    lodgers = sorted((one for one in lodging.lodgers.values() if one.model == model), key=lambda one: one.name)
    expected_s = lodging.expected_s(model, now_s)
    return ModelView(
        model=model,
        pinned=lodging.pinned(model),
        pinned_by="operator" if model in lodging.pins else "file",
        footprint=_footprint(lodging, model, any(lodger.parts for lodger in lodgers)),
        lodgers=tuple(_lodger(lodging, lodger, now_s) for lodger in lodgers),
        waiting=len(mine) + sum(lodger.kept for lodger in lodgers),
        oldest_s=_s(max((now_s - waiter.since_s for waiter in mine), default=0.0)),
        rate_per_s=round(habits.rate_per_s(now_s), 4),
        start_s=_s(habits.start_s),
        hold_s=_s(habits.hold_s),
        expected_start_s=None if expected_s is None else _s(expected_s),
        offload=_offload(lodging, model) if any(lodger.parts for lodger in lodgers) else None,
    )


def _offload(lodging: Lodging, model: str) -> OffloadView | None:
    known = lodging.offload.of(model)
    if known is None:
        return None
    fit, context, curve = known.fit, known.context_tokens, known.curve()
    return OffloadView(
        gpu_tokens_per_s=round(curve.rate_per_s(1.0), 3),
        cpu_tokens_per_s=round(curve.rate_per_s(0.0), 3),
        ratio=round(curve.ratio(), 3),
        gpu_error=round(fit.uncertainty(1.0, context), 3),
        cpu_error=round(fit.uncertainty(0.0, context), 3),
        context_tokens=round(context),
        seen=fit.seen,
    )


def _footprint(lodging: Lodging, model: str, parts: bool) -> FootprintView:
    spec = lodging.footprint(model)
    kv_gb = spec.kv_tokens * spec.kv_kb_per_token * 1e-6
    whole_gb = spec.weight_gb + kv_gb + spec.overhead_gb
    return FootprintView(
        spec.weight_gb, round(kv_gb, 3), spec.overhead_gb, round(whole_gb, 3), spec.layers, parts and spec.gpu_tokens_per_s > 0
    )


def _lodger(lodging: Lodging, lodger: Lodger, now_s: float) -> LodgerView:
    there, away = lodger.phase in ("in", "leaving"), lodger.phase == "out"
    start = lodger.rest if lodger.place == "gpu" else lodger.place
    barred_s = max(lodging.barred_s(lodger.model, lodger.device, now_s), 0.0)
    return LodgerView(
        backend=lodger.backend,
        device=lodger.device,
        moves=lodger.moves,
        phase=lodger.phase,
        place=lodger.place,
        fraction=round(lodger.fraction, 3),
        usable=lodger.usable,
        stuck=lodger.stuck,
        running=lodger.running,
        kept=lodger.kept,
        here_s=_s(now_s - lodger.since_s) if there and lodger.since_s > -NEVER else None,
        ready_s=None if there or away else _s(max(lodger.ready_s - now_s, 0.0)),
        barred_s=_s(barred_s),
        why_barred=lodging.why_barred(lodger.model, lodger.device) if barred_s else "",
        into=_cost(lodging, lodger, start, "gpu") if lodger.moves else None,
        out=_cost(lodging, lodger, "gpu", lodger.rest) if lodger.moves else None,
    )


def _cost(lodging: Lodging, lodger: Lodger, start: Place, end: Place) -> MoveCost | None:
    device = lodging.device(lodger.device)
    if device is None:
        return None
    found = lodging.costs.predict(lodger.model, lodging.bytes(lodger.model), device.host, start, end)
    return MoveCost(start, end, _s(found.mean_s), _s(found.low_s), _s(found.high_s), found.seen)


def situation(lodging: Lodging, history: Iterable[Moved], moving: Collection[str], now_s: float) -> Situation:
    """Devices, plan and last steps as shown. `moving` are the devices on which something moves."""
    age_s = None if lodging.planned_s == -NEVER else now_s - lodging.planned_s
    devices = tuple(_device(lodging, device.name, device.name in moving) for device in lodging.config.devices)
    plan = plan_view(lodging.plan, age_s or 0.0)
    taken = tuple(_moved(moved, now_s) for moved in reversed(tuple(history)))
    return Situation(lodging.config.swaps.mode, devices, None if age_s is None else _s(age_s), plan, taken)


def _device(lodging: Lodging, name: str, moving: bool) -> DeviceView:
    device = lodging.device(name)
    assert device is not None
    residents = tuple(
        ResidentView(
            lodger.model,
            lodger.backend,
            lodger.phase,
            round(lodger.fraction, 3),
            round(lodging.taken_bytes(lodger) / GB, 3),
            lodger.running,
        )
        for lodger in sorted(lodging.lodgers.values(), key=lambda one: one.name)
        if lodger.device == name and lodger.takes
    )
    leaving = any(resident.phase == "leaving" for resident in residents)
    taken_gb = sum(one.memory_gb for one in residents if one.phase != "coming" or not leaving)
    free_gb = max(device.memory_gb - taken_gb, 0.0)
    return DeviceView(name, device.host, device.memory_gb, round(taken_gb, 3), round(free_gb, 3), moving, residents)


def plan_view(plan: SwapPlan, age_s: float = 0.0) -> PlanView:
    """A plan that was made so long ago."""
    steps = tuple(step_view(step, age_s) for step in plan.steps)
    actions = tuple(_action(action, age_s) for action in plan.actions)
    return PlanView(steps, actions, _s(plan.cost_s), _s(plan.idle_cost_s), _s(plan.idle_cost_s - plan.cost_s))


def step_view(step: Step, age_s: float = 0.0) -> StepView:
    """A step of a plan that was made so long ago."""
    return StepView(
        device=step.device,
        model=step.model,
        fraction=round(step.fraction, 3),
        leaves=step.leaves,
        mode=step.mode,
        cut_s=_s(max(step.cut_s - age_s, 0.0)),
        pause_s=None if step.pause_s == NEVER else _s(step.pause_s),
        ready_s=_s(max(step.ready_s - age_s, 0.0)),
        until_s=None if step.until_s == NEVER else _s(max(step.until_s - age_s, 0.0)),
        swap_s=_s(step.swap_s),
        saved_s=_s(step.saved_s),
        waiting=_s(step.waiting),
    )


def _action(action: Action, age_s: float) -> ActionView:
    at_s = None if action.at_s == NEVER else _s(max(action.at_s - age_s, 0.0))
    return ActionView(
        action.kind, action.model, action.device, at_s, _s(action.seconds), action.reason, round(action.fraction, 3)
    )


def _moved(moved: Moved, now_s: float) -> MovedView:
    return MovedView(
        ago_s=_s(now_s - moved.at_s),
        device=moved.device,
        model=moved.model,
        leaves=moved.leaves,
        outcome=moved.outcome,
        why=moved.why,
        reason=moved.reason,
        predicted_s=_s(moved.predicted_s),
        took_s=_s(moved.took_s),
        drained_s=_s(moved.drained_s),
    )


def _s(value_s: float) -> float:
    return round(value_s, 3)
