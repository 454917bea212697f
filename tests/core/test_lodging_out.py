"""What a plan is made from of those who are out and take memory, who drain, and whose device is no longer configured."""

from dataclasses import replace

from gateway.config import GatewayConfig, ModelSpec
from gateway.lodging import DOWN_S, Lodger, Lodging, Waiter
from gateway.residency import NEVER
from gateway.swap_actions import plan
from gateway.swap_config import DeviceSpec, FootprintSpec
from gateway.swap_views import situation
from predictor.hosts import host_profiles


def lodging(*lodgers: Lodger, devices: tuple[str, ...] = ("g0",)) -> Lodging:
    rules = tuple(ModelSpec(one.model, footprint=FootprintSpec(weight_gb=16.0)) for one in lodgers)
    known = tuple(DeviceSpec(name, 20.0, "rtx-5000-ada") for name in devices)
    made = Lodging(GatewayConfig(devices=known, models=rules), host_profiles)
    made.lodge(lodgers, 0.0)
    return made


def away(model: str, device: str = "g0", **fields: object) -> Lodger:
    return replace(Lodger(f"e-{model}", model, device, place="asleep1", rest="asleep1"), **fields)  # type: ignore[arg-type]


def here(model: str, device: str = "g0", **fields: object) -> Lodger:
    return away(model, device, phase="in", place="gpu", **fields)


def test_who_stopped_half_way_takes_its_room_until_it_is_put_away() -> None:
    made = lodging(away("a", stuck=True), away("b"))
    view = made.view([Waiter("b", 0.0, NEVER)], 1.0)
    assert [(one.model, one.ready_s) for one in view.residents] == [("a", DOWN_S)]
    assert not [step for step in plan(view, made.costs, made.settings()).steps if step.cut_s < 1.0], "there is no room"
    (device,) = situation(made, (), (), 1.0).devices
    assert (device.taken_gb, [one.phase for one in device.residents]) == (16.0, ["out"])
    woken_s = made.expected_s("b", 1.0)
    assert woken_s is not None
    assert woken_s > made.load_s(made.lodgers["e-b"]), "it is put away first"


def test_who_does_not_answer_for_long_makes_room() -> None:
    made = lodging(here("a", usable=False, down_s=10.0), away("b"))
    for now_s, leaves in ((10.0 + DOWN_S / 2, False), (10.0 + DOWN_S, True)):
        view = made.view([Waiter("b", now_s - 1.0, NEVER)], now_s)
        steps = plan(view, made.costs, made.settings()).steps
        assert any(step.cut_s < 1.0 and step.leaves == ("a",) for step in steps) == leaves


def test_nobody_comes_to_a_replica_that_drains() -> None:
    made = lodging(here("a"), away("b", usable=False))
    view = made.view([Waiter("b", 0.0, NEVER)], 1.0)
    assert not plan(view, made.costs, made.settings()).steps
    made.lodgers["e-b"].usable = True
    assert plan(made.view([Waiter("b", 0.0, NEVER)], 1.0), made.costs, made.settings()).steps


def test_who_is_still_on_a_device_that_is_gone_is_not_planned_with() -> None:
    made = lodging(here("a", "gone"), here("b"), away("c"), devices=("g0",))
    view = made.view([Waiter("c", 0.0, NEVER), Waiter("a", 0.0, NEVER)], 1.0)
    assert [one.model for one in view.residents] == ["b"]
    assert [tenant.name for tenant in view.tenants] == ["b", "c"]
    assert [step.model for step in plan(view, made.costs, made.settings()).steps][:1] == ["c"]
