"""What is shown of models that share devices: relative to now, without infinities, and as a table that says why."""

import json
import math
from typing import Any

import orjson
import pytest

from gateway.config import GatewayConfig, ModelSpec
from gateway.lodging import Lodger, Lodging, Waiter
from gateway.moving import Moved
from gateway.plan_table import tables, verdict
from gateway.residency import NEVER, Action, Step, SwapPlan
from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps
from gateway.swap_metrics import prediction_errors
from gateway.swap_views import model_list, model_view, plan_view, situation
from gateway.what_if import Supposed, what_if
from predictor.hosts import host_profiles

NOW_S = 1000.0
DONE = Moved(990.0, "gpu0", "b", ("a",), "done", "", 3.0, 2.0, 4.0, "2 wait")


def lodging(*lodgers: Lodger, mode: str = "auto") -> Lodging:
    split = FootprintSpec(10.0, 100.0, 20_000, 10, 1.0, gpu_tokens_per_s=50.0, cpu_tokens_per_s=5.0)
    config = GatewayConfig(
        models=(ModelSpec("a", footprint=FootprintSpec(10.0, pinned=True)), ModelSpec("b", footprint=split)),
        devices=(DeviceSpec("gpu0", 16.0), DeviceSpec("gpu1", 8.0)),
        swaps=Swaps(mode=mode),  # type: ignore[arg-type]
    )
    made = Lodging(config, host_profiles)
    made.lodge(lodgers or (lies("a"), away("b")), NOW_S - 100)
    return made


def lies(model: str, device: str = "gpu0", fraction: float = 1.0, running: int = 0) -> Lodger:
    return Lodger(f"e-{model}", model, device, phase="in", place="gpu", since_s=900.0, fraction=fraction, running=running)


def away(model: str, device: str = "gpu0") -> Lodger:
    return Lodger(f"e-{model}", model, device, rest="asleep1", place="asleep1", parts=True)


def test_a_model_is_shown_with_who_waits_and_what_it_costs() -> None:
    waiters = [Waiter("b", 995.0, 1010.0), Waiter("b", 998.0, 1010.0), Waiter("a", 999.0, 1010.0)]
    shown = model_view(lodging(), "b", waiters, NOW_S)
    assert (shown.waiting, shown.oldest_s, shown.pinned, shown.pinned_by) == (2, 5.0, False, "file")
    assert (shown.footprint.kv_gb, shown.footprint.whole_gb, shown.footprint.can_split) == (2.0, 13.0, True)
    (lodger,) = shown.lodgers
    assert (lodger.here_s, lodger.ready_s, lodger.barred_s, lodger.why_barred) == (None, None, 0.0, "")
    assert lodger.into is not None
    assert lodger.out is not None
    assert (lodger.into.start, lodger.out.end, lodger.into.seen) == ("asleep1", "asleep1", 0)
    assert lodger.into.low_s < lodger.into.mean_s < lodger.into.high_s


def test_kept_requests_count_as_waiting_and_a_bar_is_told_while_it_lasts() -> None:
    held = lodging()
    held.lodgers["e-b"].kept = 3
    held.bar("b", "gpu0", "out of memory", NOW_S)
    shown = model_view(held, "b", [], NOW_S)
    assert (shown.waiting, shown.lodgers[0].barred_s, shown.lodgers[0].why_barred) == (3, 5.0, "out of memory")
    later = model_view(held, "b", [], NOW_S + 6)
    assert (later.lodgers[0].barred_s, later.lodgers[0].why_barred) == (0.0, "")


def test_an_operators_pin_is_told_from_the_files() -> None:
    held = lodging()
    assert [(one.model, one.pinned, one.pinned_by) for one in model_list(held, [], NOW_S).models] == [
        ("a", True, "file"),
        ("b", False, "file"),
    ]
    held.pins["a"] = False
    assert (model_view(held, "a", [], NOW_S).pinned, model_view(held, "a", [], NOW_S).pinned_by) == (False, "operator")


def test_one_that_never_moves_has_no_costs_and_no_arrival() -> None:
    held = lodging(Lodger("e-a:a", "a", "gpu0", moves=False, phase="in", place="gpu", since_s=-NEVER))
    (lodger,) = model_view(held, "a", [], NOW_S).lodgers
    assert (lodger.backend, lodger.into, lodger.out, lodger.here_s) == ("e-a", None, None, None)


@pytest.mark.parametrize(
    ("phases", "taken_gb"),
    [(("in", "out"), 10.0), (("leaving", "coming"), 10.0), (("out", "coming"), 13.0), (("out", "out"), 0.0)],
)
def test_a_devices_memory_is_taken_by_who_is_there(phases: tuple[str, str], taken_gb: float) -> None:
    held = lodging()
    for lodger, phase in zip(held.lodgers.values(), phases, strict=True):
        lodger.phase = phase  # type: ignore[assignment]
    first, second = situation(held, (), ("gpu1",), NOW_S).devices
    assert (first.taken_gb, first.free_gb) == (taken_gb, 16.0 - taken_gb)
    assert len(first.residents) == sum(phase != "out" for phase in phases)
    assert (first.moving, second.moving, second.residents) == (False, True, ())


def test_a_part_of_the_layers_takes_a_part_of_the_memory() -> None:
    (first, _) = situation(lodging(lies("b", fraction=0.5)), (), (), NOW_S).devices
    assert first.residents[0].memory_gb == 7.0


def test_a_plans_times_are_from_now_and_never_infinite() -> None:
    step = Step("gpu0", "b", 1.0, ("a",), "drain", 1.0, 4.0, NEVER, 3.0, 12.0, 2.0)
    acts = (Action("sleep", "a", "gpu0", 1.0, 1.0, "room"), Action("wake", "a", "gpu0", NEVER, 1.0, "comes back"))
    shown = plan_view(SwapPlan((step,), 20.0, 32.5, acts), age_s=1.5)
    assert (shown.steps[0].cut_s, shown.steps[0].ready_s, shown.steps[0].until_s) == (0.0, 2.5, None)
    assert [action.at_s for action in shown.actions] == [0.0, None]
    assert (shown.cost_s, shown.idle_cost_s, shown.saved_s) == (20.0, 32.5, 12.5)


def test_all_that_is_shown_is_json() -> None:
    held = lodging(lies("a"), away("b"), Lodger("s", "c", "gpu1", moves=False, phase="in", place="gpu", since_s=-NEVER))
    shown = json.loads(orjson.dumps([situation(held, [DONE], (), NOW_S), model_list(held, [], NOW_S)]))
    numbers = [value for value in _leaves(shown) if isinstance(value, float)]
    assert numbers
    assert all(math.isfinite(value) for value in numbers)


def _leaves(value: object) -> list[object]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if children is None else [leaf for child in children for leaf in _leaves(child)]


def test_the_last_steps_are_told_newest_first() -> None:
    failed = Moved(995.0, "gpu0", "a", ("b",), "failed", "out of memory", 3.0, 1.0, 0.0, "1 wait")
    shown = situation(lodging(), [DONE, failed], (), NOW_S)
    assert shown.age_s is None
    assert [(one.ago_s, one.outcome, one.why, one.reason) for one in shown.history] == [
        (5.0, "failed", "1 wait", "out of memory"),
        (10.0, "done", "2 wait", ""),
    ]


def test_errors_of_predictions_are_of_what_was_done() -> None:
    left = Moved(1.0, "gpu0", "", ("a",), "done", "", 1.0, 2.0, 0.0)
    failed = Moved(1.0, "gpu0", "b", (), "failed", "", 50.0, 1.0, 0.0)
    again = Moved(1.0, "gpu0", "b", (), "done", "", 2.0, 2.0, 0.0)
    assert prediction_errors([DONE, left, failed, again]) == {"b": 0.25, "a": 0.5}
    assert prediction_errors([failed]) == {}


# -- what if


def suppose(held: Lodging, supposed: dict[str, Supposed], pinned: set[str] | None = None) -> SwapPlan:
    return what_if(held.view([], NOW_S), supposed, pinned, held.costs, held.settings(wide=True))


def test_supposed_demand_replaces_what_is() -> None:
    held = lodging()
    assert suppose(held, {}, set()).steps == ()
    crowd = {"b": Supposed(waiting=20, rate_per_s=1.0, slack_s=2.0)}
    found = suppose(held, crowd, set())
    assert (found.steps[0].model, found.steps[0].leaves, found.steps[0].waiting) == ("b", ("a",), 20)
    assert found.cost_s < found.idle_cost_s
    assert not any("a" in step.leaves for step in suppose(held, crowd).steps), "the file pins it"
    assert suppose(held, crowd, {"a"}).idle_cost_s == found.idle_cost_s


def test_what_is_not_supposed_stays_as_it_is() -> None:
    held = lodging()
    waiters = [Waiter("b", NOW_S - 3, NOW_S + 9), Waiter("b", NOW_S, NOW_S + 30)]
    view = held.view(waiters, NOW_S)
    costs, settings = held.costs, held.settings(wide=True)
    same = what_if(view, {"b": Supposed()}, None, costs, settings)
    assert same == what_if(view, {}, None, costs, settings)
    assert same.idle_cost_s > 0
    late = what_if(view, {"b": Supposed(slack_s=-5.0)}, None, costs, settings)
    assert late.idle_cost_s != same.idle_cost_s
    none = what_if(view, {"b": Supposed(waiting=0, rate_per_s=0)}, None, costs, settings)
    assert (none.idle_cost_s, none.steps) == (0.0, ())
    assert view == held.view(waiters, NOW_S), "it is not changed"


# -- the table

Told = tuple[dict[str, Any], list[dict[str, Any]]]


def told(held: Lodging, plan: SwapPlan | None = None, history: tuple[Moved, ...] = ()) -> Told:
    if plan is not None:
        held.plan, held.planned_s = plan, NOW_S - 1.0
    shown = json.loads(orjson.dumps([situation(held, history, (), NOW_S), model_list(held, [], NOW_S)]))
    return shown[0], shown[1]["models"]


def test_the_table_says_who_lies_where_and_that_nothing_is_to_be_moved() -> None:
    plan, models = told(lodging(mode="dry"))
    found = {title: rows for title, _, rows in tables(plan, models)}
    assert list(found) == ["devices", "models"]
    assert found["devices"] == [("gpu0", "16 GB", "6 GB", "a (10 GB)"), ("gpu1", "8 GB", "8 GB", "nobody")]
    assert [row[:3] for row in found["models"]] == [("a", "10", "gpu0, pinned"), ("b", "13", "out (asleep1), gpu0")]
    assert verdict(plan) == "Nothing is to be moved. Nothing moves but by hand (swaps.mode)."


def test_the_table_gives_reasons() -> None:
    step = Step("gpu0", "b", 1.0, ("a",), "drain", 1.0, 4.0, NEVER, 3.0, 12.0, 2.0)
    acts = (Action("wake", "b", "gpu0", 3.0, 2.0, "2 wait", 0.5), Action("wake", "a", "gpu0", NEVER, 1.0, "comes back"))
    failed = Moved(995.0, "gpu0", "a", ("b",), "failed", "out of memory", 3.0, 1.0, 0.0, "1 wait")
    held = lodging(lies("a"), away("b"))
    held.bar("b", "gpu0", "no answer", NOW_S)
    plan, models = told(held, SwapPlan((step,), 20.0, 32.5, acts), (DONE, failed))
    found = {title: (head, rows) for title, head, rows in tables(plan, models)}
    assert all(len(row) == len(head) for head, rows in found.values() for row in rows)
    assert found["plan"][1] == [
        ("2.0 s", "wake 50%", "b", "gpu0", "2.0 s", "2 wait"),
        ("later", "wake", "a", "gpu0", "1.0 s", "comes back"),
    ]
    assert [row[-1] for row in found["last swaps"][1]] == ["1 wait; out of memory", "2 wait"]
    assert "barred for 5 s: no answer" in found["models"][1][1][2]
    assert verdict(plan) == "Expected cost 20.0 s of lateness, 32.5 s if nothing were moved (planned 1.0 s ago)."
