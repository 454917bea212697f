"""One seed through the simulator and through the live gateway's desks over simulated engines in virtual time."""

import asyncio
from dataclasses import replace
from pathlib import Path

import looptime
import pytest

import predictor.memory
import predictor.mirror
from gateway.config import OrderName
from gateway.sim.cluster import Cluster
from gateway.sim.runner import requests_of
from gateway.sim.scenario import PolicySpec, ReplicaSpec, Scenario
from gateway.sim.workload import SimRequest, WorkloadSpec
from predictor.profile import EngineLimits, preset
from tests.sim.live import LiveDesks

LIMITS = EngineLimits(300, 16, 16, 256, 2048)
POLICIES = (
    PolicySpec("late plan", "plan"),
    PolicySpec("late plan, by size and age alone", "plan", turn_after=0.0),
    PolicySpec("late plan, order of arrival", "plan", order="fcfs", margin=0.05),
    PolicySpec("late plan, bounded overtaking", "plan", overtaking_s=2.0),
    PolicySpec("late plan, by deadlines", "plan", order="mh"),
    PolicySpec("late plan, by budgets", "plan", order="lrb"),
    PolicySpec("early plan", "plan", binding="early"),
    PolicySpec("Po2 by mirrors", "po2"),
)


def requests(scenario: Scenario, policy: PolicySpec) -> list[SimRequest]:
    """What arrives; every second one is promised its first token soon, where the order goes by that."""
    made = requests_of(scenario, 0)
    if policy.order == "sjf":
        return made
    return [replace(one, deadline_s=one.arrival_s + 0.3 + i % 5) if i % 2 else one for i, one in enumerate(made)]


def live(scenario: Scenario, policy: PolicySpec) -> LiveDesks:
    """The gateway after its last request has ended."""

    async def drive() -> LiveDesks:
        served = LiveDesks(scenario, policy, requests(scenario, policy), 0, "demo-slow")
        await served.run()
        return served

    loop = looptime.new_event_loop(start=0.0, end=10_000.0, resolution=1e-12)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(drive())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.label)
def test_the_same_decisions_as_live(policy: PolicySpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A multiple of the sweep's period would make a refresh fall due at the very instant of a sweep: a matter of the last bit.
    # So would a picture of who is there that is taken at the instant of a token: which of the two comes first is chance.
    monkeypatch.setattr(predictor.mirror, "REFRESH_S", 0.083)
    monkeypatch.setattr(predictor.memory, "CURVE_S", 0.513)
    monkeypatch.setattr(predictor.memory, "WAIT_S", 0.431)
    rows = "".join(f"{9 + 3 * i},{1 + i % 180}\n" for i in range(200))
    (tmp_path / "l.csv").write_text("input_tokens,output_tokens\n" + rows)
    work = WorkloadSpec(rate_per_s=14.0, requests=200, lengths=str(tmp_path / "l.csv"))
    scenario = Scenario("same", work, (ReplicaSpec(preset("demo-slow").profile, LIMITS, 3),), (policy,))
    outcome = Cluster(scenario, policy, requests(scenario, policy), 0).run()
    served = live(scenario, policy)
    assert served.sent == [(one.request_id, one.replica, one.hit_tokens) for one in outcome.sent]
    for line in outcome.timelines:
        there = served.timelines[line.request_id]
        assert (there.first_token_s, there.finished_s) == pytest.approx((line.first_token_s, line.finished_s), abs=1e-5)
    assert sum((line.ttft_s or 0.0) > 0.2 for line in outcome.timelines) > 10, "too little load to show anything"


def test_without_deadlines_every_order_with_tiers_is_the_shortest_first(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text(
        "input_tokens,output_tokens\n" + "".join(f"{9 + 3 * i},{1 + i % 180}\n" for i in range(200))
    )
    work = WorkloadSpec(rate_per_s=14.0, requests=200, lengths=str(tmp_path / "l.csv"))

    def sent(order: OrderName) -> list[tuple[str, int, int]]:
        policy = PolicySpec(order, "plan", order=order)
        scenario = Scenario("same", work, (ReplicaSpec(preset("demo-slow").profile, LIMITS, 3),), (policy,))
        outcome = Cluster(scenario, policy, requests_of(scenario, 0), 0).run()
        return [(one.request_id, one.replica, one.hit_tokens) for one in outcome.sent]

    shortest = sent("sjf")
    assert sent("mh") == sent("lrb") == shortest
    assert sent("fcfs") != shortest, "too little load to show anything"
