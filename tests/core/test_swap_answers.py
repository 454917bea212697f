"""What may be asked of one model: its speed with a part of the layers, whether that fits, what taking it off now costs."""

import json
import xml.etree.ElementTree as ET

import orjson
import pytest

from gateway.config import GatewayConfig, ModelSpec
from gateway.lodging import Lodger, Lodging
from gateway.moving import Moved
from gateway.plan_picture import bars, picture, span
from gateway.plan_table import answered
from gateway.residency import NEVER, Step, SwapPlan
from gateway.swap_answers import ModelAnswer, answer_of
from gateway.swap_config import DeviceSpec, FootprintSpec
from gateway.swap_views import situation
from predictor.hosts import host_profiles

NOW_S = 1000.0
SPLIT = FootprintSpec(10.0, 100.0, 20_000, 10, 1.0, False, 50.0, 5.0, 2000.0, 100.0)


def lodging(*lodgers: Lodger, split: FootprintSpec = SPLIT, pinned: bool = False) -> Lodging:
    config = GatewayConfig(
        models=(ModelSpec("a", footprint=FootprintSpec(9.0, pinned=pinned)), ModelSpec("b", footprint=split)),
        devices=(DeviceSpec("gpu0", 16.0),),
    )
    made = Lodging(config, host_profiles)
    made.lodge(lodgers, NOW_S - 100)
    return made


def lies(model: str, running: int = 0, keeps: bool = False) -> Lodger:
    there = Lodger(f"e-{model}", model, "gpu0", phase="in", place="gpu", since_s=900.0, running=running, keeps=keeps)
    there.sent_s = (NOW_S,) * running
    return there


def away(model: str) -> Lodger:
    return Lodger(f"e-{model}", model, "gpu0", parts=True)


def asked(held: Lodging, model: str, fraction: float = 1.0, prompt_tokens: int = 0) -> ModelAnswer:
    return answer_of(held, [], model, fraction, prompt_tokens, NOW_S)


def test_the_rate_with_half_of_the_layers_is_harmonic_and_the_first_token_waits_for_its_prompt() -> None:
    half = asked(lodging(lies("a"), away("b")), "b", 0.5, 1000)
    assert half.decode_tokens_per_s == pytest.approx(2 / (1 / 50 + 1 / 5), rel=1e-3), "not the mean of 50 and 5"
    assert half.ttft_s == pytest.approx(1000 * (0.5 / 2000 + 0.5 / 100) + 0.11, rel=1e-3)
    assert asked(lodging(lies("a"), away("b")), "b", 1.0, 1000).ttft_s == pytest.approx(0.5 + 0.02, rel=1e-3)
    assert asked(lodging(away("b")), "b", 0.53).fraction == 0.5, "in whole layers"


def test_it_goes_by_what_streams_have_shown() -> None:
    held = lodging(away("b"))
    known = held.offload.of("b")
    assert known is not None
    before = asked(held, "b", 0.5).decode_tokens_per_s
    for _ in range(20):
        known.fit.observe(0.0, 10.0)
    after = asked(held, "b", 0.5).decode_tokens_per_s
    assert (before, after) == (pytest.approx(9.09, abs=0.1), pytest.approx(16.7, rel=0.1))


def test_what_is_not_configured_is_not_known() -> None:
    plain = asked(lodging(lies("a"), away("b")), "a")
    assert (plain.decode_tokens_per_s, plain.ttft_s) == (None, None)
    without = asked(lodging(away("b"), split=FootprintSpec(10.0, layers=10, gpu_tokens_per_s=50.0, cpu_tokens_per_s=5.0)), "b")
    assert (without.decode_tokens_per_s, without.ttft_s) == (50.0, None)


def test_whether_it_fits_now_how_much_of_it_and_once_others_left() -> None:
    (whole,) = asked(lodging(lies("a"), away("b")), "b").devices
    assert (whole.needs_gb, whole.free_gb, whole.fits, whole.could_fit) == (13.0, 7.0, False, True)
    assert whole.largest_fraction == 0.5, "1 GB beside, and 12 GB in ten layers"
    (half,) = asked(lodging(lies("a"), away("b")), "b", 0.5).devices
    assert (half.needs_gb, half.fits) == (7.0, True)
    (pinned,) = asked(lodging(lies("a"), away("b"), pinned=True), "b").devices
    assert (pinned.fits, pinned.could_fit) == (False, False)
    (own,) = asked(lodging(lies("a")), "a").devices
    assert (own.free_gb, own.fits) == (16.0, True), "its own memory counts as free"


def test_what_taking_it_off_now_costs() -> None:
    held = lodging(lies("a", running=2), away("b"))
    (place,) = asked(held, "a").devices
    cost = place.preempt
    assert cost is not None
    there_and_back = held.costs.preempt("a", 9e9, "generic", "disk")
    assert cost.mean_s == pytest.approx(there_and_back.mean_s, abs=1e-3)
    assert cost.low_s < cost.mean_s < cost.high_s
    assert (cost.running, cost.keeps, cost.seen) == (2, False, 0)
    assert cost.drain_s is not None
    assert cost.drain_s > 0
    for _ in range(5):
        held.costs.observe("a", 9e9, "generic", "gpu", "disk", 1.0)
        held.costs.observe("a", 9e9, "generic", "disk", "gpu", 40.0)
    learnt = asked(held, "a").devices[0].preempt
    assert learnt is not None
    assert (learnt.mean_s, learnt.seen) == (pytest.approx(41.0, rel=0.1), 5)
    assert asked(held, "b").devices[0].preempt is None, "it is not there"
    assert asked(lodging(lies("a"), pinned=True), "a").devices[0].preempt is None, "it never leaves"


def test_the_answer_in_words() -> None:
    held = lodging(lies("a", running=2, keeps=True), away("b"))
    said = {name: list(answered(json.loads(orjson.dumps(asked(held, name, 0.5, 1000))))) for name in ("a", "b")}
    assert said["b"] == [
        "b, 50% of its layers on the device with a prompt of 1000 tokens:",
        "  decodes 9.09 tokens per second",
        "  first token after 5.36 s",
        "  gpu0: needs 7 GB of 7 free: fits now",
    ]
    assert said["a"][1] == "  decodes at a rate that is not configured"
    assert said["a"][-1].startswith("  gpu0: off and back again takes ")
    assert said["a"][-1].endswith("; its 2 requests stay inside")


# -- the picture


def shown(*history: Moved, steps: tuple[Step, ...] = ()) -> dict[str, object]:
    held = lodging(lies("a"), away("b"))
    held.plan, held.planned_s = SwapPlan(steps, 1.0, 2.0), NOW_S
    found: dict[str, object] = json.loads(orjson.dumps(situation(held, history, (), NOW_S)))
    return found


HISTORY = (
    Moved(900.0, "gpu0", "b", ("a",), "done", "", 3.0, 2.0, 4.0, "2 wait"),
    Moved(940.0, "gpu0", "a", ("b",), "failed", "no <answer>", 3.0, 5.0, 0.0, "1 waits"),
    Moved(950.0, "gpu0", "a", ("b",), "done", "", 3.0, 2.0, 1.0, "1 waits"),
)
COMES = Step("gpu0", "b", 1.0, ("a",), "drain", 5.0, 8.0, NEVER, 3.0)


def test_who_lay_where_is_told_by_swaps_and_by_who_is_there_now() -> None:
    plan = shown(*HISTORY, steps=(COMES,))
    begin_s, end_s = span(plan)
    assert (begin_s, end_s) == (-100.0, pytest.approx(9.6))
    drawn = [(bar.place[1], bar.kind, bar.begin_s, bar.end_s) for bar in bars(plan)]
    assert drawn == [
        ("a", "there", -100.0, -96.0),
        ("b", "moving", -100.0, -94.0),
        ("a", "failed", -60.0, -55.0),
        ("b", "there", -94.0, -49.0),
        ("a", "moving", -50.0, -47.0),
        ("a", "there", -47.0, 0.0),
        ("b", "moving", 5.0, 8.0),
        ("b", "planned", 8.0, pytest.approx(9.6)),
    ]


def test_the_picture_is_xml_with_a_bar_for_each_stretch() -> None:
    root = ET.fromstring(picture(shown(*HISTORY, steps=(COMES,))))
    rects = [one for one in root if one.tag.endswith("rect")]
    assert len(rects) == 8
    assert all(200 <= float(one.get("x", "0")) <= 860 and float(one.get("width", "0")) > 0 for one in rects)
    assert any("no <answer>" in (one[0].text or "") for one in rects)
    quiet = ET.fromstring(picture(shown()))
    assert sum(one.tag.endswith("rect") for one in quiet) == 1, "who is there is drawn without any swap"
