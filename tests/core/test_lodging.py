"""Who lies where and who waits, as the planner is told it: sizes, demand, absences, bars, and when what is expected."""

from dataclasses import replace

import pytest

from gateway.accounts import Account
from gateway.config import GatewayConfig, ModelSpec
from gateway.habits import PATIENCE_S, START_PRIOR_S
from gateway.lodging import Lodger, Lodging, Waiter
from gateway.residency import NEVER, Step, SwapPlan
from gateway.swap_actions import plan
from gateway.swap_config import DeviceSpec, FootprintSpec, Swaps
from predictor.cost import GB
from predictor.hosts import host_profiles


def lodging(*lodgers: Lodger, now_s: float = 0.0, swaps: Swaps = Swaps(), **sizes: FootprintSpec) -> Lodging:
    rules = tuple(ModelSpec(one.model, footprint=sizes.get(one.model, FootprintSpec(weight_gb=16.0))) for one in lodgers)
    devices = tuple(DeviceSpec(name, 20.0, "rtx-5000-ada") for name in sorted({one.device for one in lodgers}))
    made = Lodging(GatewayConfig(devices=devices, models=rules, swaps=swaps), host_profiles)
    made.lodge(lodgers, now_s)
    return made


def here(model: str, device: str = "g0", **fields: object) -> Lodger:
    return replace(Lodger(f"e-{model}", model, device, phase="in", place="gpu", rest="asleep1"), **fields)  # type: ignore[arg-type]


def away(model: str, device: str = "g0", **fields: object) -> Lodger:
    return replace(Lodger(f"e-{model}", model, device, place="asleep1", rest="asleep1"), **fields)  # type: ignore[arg-type]


def test_without_devices_it_is_off() -> None:
    made = Lodging(GatewayConfig(), host_profiles)
    made.arrived("m", 1.0, NEVER)
    assert (made.on, made.lodges("m"), made.expected_s("m", 1.0), made.too_far_s("m", 1.0, 2.0)) == (False, False, None, 0.0)


def test_a_plan_brings_the_model_that_somebody_waits_for() -> None:
    made = lodging(here("a"), away("b"))
    view = made.view([Waiter("b", 0.0, NEVER)], 1.0)
    assert [(one.model, one.device) for one in view.residents] == [("a", "g0")]
    step = plan(view, made.costs, made.settings()).steps[0]
    assert (step.model, step.device, step.leaves, step.cut_s) == ("b", "g0", ("a",), 0.0)


def test_groups_of_waiters_by_what_slack_they_have() -> None:
    made = lodging(here("a"), away("b"))
    waiters = [Waiter("b", 5.0, 11.6), Waiter("b", 6.0, 11.0), Waiter("b", 7.0, NEVER), Waiter("a", 0.0, NEVER)]
    (demand,) = [tenant.demand for tenant in made.view(waiters, 10.0).tenants if tenant.name == "b"]
    assert demand.waiting == ((2.0, 2.0), (1.0, 28.0)), "none has more slack than somebody who was promised nothing"
    assert demand.oldest_s == 5.0
    assert 7.0 + PATIENCE_S - 10.0 < 28.0


def test_requests_kept_in_an_engine_wait_too() -> None:
    made = lodging(away("a", kept=3, kept_s=4.0), here("b"))
    (demand,) = [tenant.demand for tenant in made.view([], 10.0).tenants if tenant.name == "a"]
    assert demand.count == 3.0
    assert demand.oldest_s == 6.0


def test_absences_are_told_apart_from_other_waits() -> None:
    lodger = here("a")
    made = lodging(lodger)
    lodger.phase = "leaving"
    made.moved("a", 10.0)
    assert made.waited_s("a", 8.0, 12.0) == 2.0, "still gone"
    lodger.phase = "in"
    made.moved("a", 15.0)
    assert [made.waited_s("a", *span) for span in ((8.0, 12.0), (8.0, 20.0), (16.0, 20.0), (11.0, 12.0))] == [
        2.0,
        5.0,
        0.0,
        1.0,
    ]
    assert made.waited_s("unknown", 0.0, 9.0) == 0.0


def test_when_it_is_expected() -> None:
    made = lodging(here("a"), away("b"), here("c", "g1"), away("d", "g1", phase="coming", ready_s=7.5))
    assert made.expected_s("a", 5.0) == 0.0
    assert made.expected_s("d", 5.0) == 2.5
    woken_s = made.expected_s("b", 5.0)
    assert woken_s == pytest.approx(2 * (0.3 + 16.0 / 16.0)), "out and in: wake_s and the weights over the bus, twice"
    made.plan, made.planned_s = SwapPlan((Step("g0", "b", 1.0, ("a",), "drain", 4.0, 9.0, NEVER, 1.3),), 1.0, 9.0), 4.0
    assert made.expected_s("b", 5.0) == 8.0, "as planned a second ago"


def test_a_model_that_comes_too_late_is_asked_for_all_the_same() -> None:
    made = lodging(here("a"), away("b"))
    nudged: list[int] = []
    made.nudge = lambda: nudged.append(1)
    assert made.too_far_s("b", 0.0, 60.0) == 0.0
    assert not made.turned_away(0.0)
    wait_s = made.too_far_s("b", 0.0, 0.5)
    assert wait_s == pytest.approx(2.6)
    assert [waiter.model for waiter in made.turned_away(1.0)] == ["b"]
    assert nudged
    assert not made.turned_away(wait_s + PATIENCE_S + 0.1), "who does not come again is waited for no longer"


def test_who_fails_to_come_is_barred_for_longer_each_time() -> None:
    made = lodging(here("a"), away("b"))
    waits = []
    for _ in range(8):
        made.bar("b", "g0", "out of memory", 100.0)
        waits.append(made.barred_s("b", "g0", 100.0))
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert made.why_barred("b", "g0") == "out of memory"
    view = made.view([Waiter("b", 99.0, NEVER)], 100.0)
    assert not plan(view, made.costs, made.settings()).steps, "nobody leaves for one that may not come"
    assert made.too_far_s("b", 100.0, NEVER) > 300.0, "hopeless: nobody is kept waiting"
    made.unbar("b", "g0")
    assert made.barred_s("b", "g0", 100.0) == 0.0
    assert made.why_barred("b", "g0") == ""


def test_who_failed_after_long_leaves_the_device_to_others_for_as_long() -> None:
    made = lodging(here("a"), away("b"))
    made.bar("b", "g0", "was not ready within 600 s", 100.0, lost_s=1200.0)
    assert made.barred_s("b", "g0", 100.0) == 1200.0
    made.bar("b", "g0", "out of memory", 100.0, lost_s=2.0)
    assert made.barred_s("b", "g0", 100.0) == 10.0


def test_who_has_no_room_for_as_long_as_others_are_pinned_is_told_so() -> None:
    made = lodging(here("a"), away("b"))
    made.pins["a"] = True
    assert made.expected_s("b", 0.0) == pytest.approx(300.0 + made.load_s(made.lodgers["e-b"]))
    assert made.too_far_s("b", 0.0, 60.0) > 300.0, "nobody is kept waiting for it"
    made.pins["a"] = False
    assert made.too_far_s("b", 0.0, 60.0) == 0.0


def test_what_is_overdue_is_expected_to_be_so_for_as_long_again() -> None:
    made = lodging(here("a"), away("b"))
    lodger = made.lodgers["e-b"]
    lodger.phase, lodger.ready_s = "coming", 30.0
    assert [made.expected_s("b", now_s) for now_s in (20.0, 29.9, 50.0)] == [10.0, 0.2, 20.0]
    assert made.too_far_s("b", 50.0, 60.0) == 0.0, "who waits for it may wait on: it may come any moment"
    assert made.too_far_s("b", 59.9, 60.0) == pytest.approx(29.9), "who is turned away is told no fairy tales"


def test_costs_follow_what_moves_took() -> None:
    made = lodging(here("a"), away("b"))
    lodger = made.lodgers["e-b"]
    before_s = made.load_s(lodger)
    for _ in range(4):
        made.observe(lodger, "asleep1", "gpu", 6.0)
    assert abs(made.load_s(lodger) - 6.0) < abs(before_s - 6.0) / 4
    seen = made.costs.predict("b", made.bytes("b"), "rtx-5000-ada", "asleep1", "gpu").seen
    lodger.fraction = 0.5
    made.observe(lodger, "asleep1", "gpu", 60.0)
    assert made.costs.predict("b", 16.0 * GB, "rtx-5000-ada", "asleep1", "gpu").seen == seen, "a part is no whole"


def test_pins_of_the_file_and_by_hand() -> None:
    made = lodging(here("a"), away("b"), a=FootprintSpec(weight_gb=16.0, pinned=True))
    assert made.pinned("a")
    assert not plan(made.view([Waiter("b", 0.0, NEVER)], 1.0), made.costs, made.settings()).steps
    made.pins["a"] = False
    assert plan(made.view([Waiter("b", 0.0, NEVER)], 1.0), made.costs, made.settings()).steps


def test_habits_learn_from_answers_that_were_whole() -> None:
    made = lodging(here("a"))
    for end, status in (("complete", 200), ("client_gone", 0)):
        account = Account(0.0)
        account.model, account.dispatched_s, account.first_byte_s, account.finished_s = "a", 1.0, 2.0, 21.0
        account.end, account.status = end, status  # type: ignore[assignment]
        made.over(account)
    assert made.habits("a").seen == 5.0
    assert made.habits("a").hold_s == pytest.approx(5.0 + (20.0 - 5.0) / 5)
    for _ in range(30):
        made.arrived("a", 10.0, NEVER)
    assert made.habits("a").rate_per_s(10.0) == pytest.approx(0.25)
    assert made.habits("a").rate_per_s(130.0) == pytest.approx(0.25 / 2.718281828)


def test_each_kind_of_request_has_its_own_slack() -> None:
    made = lodging(here("a"))
    for number in range(400):
        made.arrived("a", 10.0, 10.0 + (6.0 if number % 4 else 90.0))
    classes = made.habits("a").classes()
    assert [slack_s for _, slack_s in classes] == [6.0 - START_PRIOR_S, 90.0 - START_PRIOR_S]
    assert [share for share, _ in classes] == pytest.approx([0.75, 0.25], abs=0.02)
    for _ in range(600):
        made.arrived("a", 20.0, 21.0)
    assert made.habits("a").classes() == ((1.0, pytest.approx(0.0, abs=2.0)),), "what does not come any more is forgotten"


def test_what_neighbours_cost_is_not_learnt_as_the_models_own_time() -> None:
    made = lodging(here("a"), here("b", running=2), here("c", "g1", running=5))
    account = Account(0.0)
    account.model, account.backend, account.end = "a", "e-a", "complete"
    account.dispatched_s, account.first_byte_s, account.finished_s = 1.0, 2.0, 21.0
    made.over(account)
    assert made.habits("a").hold_s == pytest.approx(5.0 + (10.0 - 5.0) / 5)


def test_in_dry_mode_nothing_is_expected_as_planned() -> None:
    step = Step("g0", "b", 1.0, ("a",), "drain", 4.0, 9.0, NEVER, 1.3)
    for mode, expected_s in (("auto", 8.0), ("dry", 2 * (0.3 + 16.0 / 16.0))):
        made = lodging(here("a"), away("b"), swaps=Swaps(mode=mode))  # type: ignore[arg-type]
        made.plan, made.planned_s = SwapPlan((step,), 1.0, 9.0), 4.0
        assert made.expected_s("b", 5.0) == pytest.approx(expected_s)


def test_nobody_is_thought_to_leave_who_need_not() -> None:
    small = FootprintSpec(weight_gb=5.0)
    both = lodging(here("a", running=9), away("b"), a=small, b=small)
    assert both.expected_s("b", 0.0) == pytest.approx(both.load_s(both.lodgers["e-b"])), "there is room for both"
    sizes = {"a": small, "b": FootprintSpec(weight_gb=12.0), "c": FootprintSpec(weight_gb=14.0)}
    one = lodging(here("a"), here("b", running=1), away("c"), **sizes)
    made_s = one.move_s(one.lodgers["e-b"], "gpu", "asleep1") + one.load_s(one.lodgers["e-c"])
    assert one.expected_s("c", 0.0) == pytest.approx(one.habits("b").drain([0.0], 1.0)[0] + made_s), "the small one may stay"


def test_requests_that_an_engine_keeps_bind_their_model_to_its_device() -> None:
    kept = replace(away("a", kept=2, kept_s=1.0), name="e-a")
    made = lodging(kept, here("b"), replace(away("a", "g1"), name="e2-a"))
    tenant = next(one for one in made.view([], 5.0).tenants if one.name == "a")
    assert tenant.devices == ("g0",)
    assert tenant.demand.waiting == ((2.0, 2.0),)
    assert tenant.demand.oldest_s == 4.0


def test_weights_are_read_ahead_only_where_the_mover_can() -> None:
    made = lodging(away("a"), replace(away("a", "g1", fetches=False), name="e2-a"))
    assert made.view([], 5.0).tenants[0].fetches == ("g0",)


def test_what_is_gone_is_forgotten() -> None:
    made = lodging(here("a"), away("b"))
    made.bar("b", "g0", "out of memory", 0.0)
    made.pins.update(a=True, b=True)
    assert made.too_far_s("b", 0.0, 0.5)
    made.lodge([made.lodgers["e-a"]], 1.0)
    assert made.pins == {"a": True}
    assert made.barred_s("b", "g0", 1.0) == 0.0
    assert not made.turned_away(1.0)
