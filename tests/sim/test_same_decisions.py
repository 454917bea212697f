"""One seed, two drivers of the desk: the simulator's heap and an asyncio shell in virtual time decide the same."""

import asyncio
from dataclasses import replace
from pathlib import Path

import looptime
import pytest

from gateway.sim.cluster import Cluster
from gateway.sim.runner import requests_of
from gateway.sim.scenario import PolicySpec, ReplicaSpec, Scenario
from gateway.sim.workload import WorkloadSpec
from predictor.profile import EngineLimits, StepProfile
from tests.sim.shell import Shell

COUNT = 170
LIMITS = EngineLimits(300, 16, 16, 256, 2048, watermark_blocks=3)
PROFILE = StepProfile(0.0188, 1.18e-4, 2.07e-6, 7.11e-7, 1.12e-8, 24, 5.2e-4, "h")
POLICIES = (
    PolicySpec("late plan", "plan"),
    PolicySpec("late plan, order of arrival", "plan", order="fcfs"),
    PolicySpec("early plan", "plan", binding="early"),
    PolicySpec("Po2", "po2", sidecar=True, own_dispatches=False, probe_s=0.03),
    PolicySpec("Po2 by mirrors", "po2"),
    PolicySpec("fan-out with own dispatches", "fanout", sidecar=True, probe_s=0.05),
    PolicySpec("Llumnix-", "llumnix", sidecar=True, own_dispatches=False, probe_s=0.02),
    PolicySpec("least requests", "least_request"),
)


def in_shell(scenario: Scenario, policy: PolicySpec, seed: int) -> Shell:
    """The shell after its last request has ended."""

    async def drive() -> Shell:
        shell = Shell(scenario, policy, requests_of(scenario, seed), seed)
        await shell.run()
        return shell

    loop = looptime.new_event_loop(start=0.0, end=10_000.0, resolution=1e-12)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(drive())


CASES = [(policy, False) for policy in POLICIES] + [(policy, True) for policy in POLICIES[:4]]


@pytest.mark.parametrize(("policy", "prefixes"), CASES, ids=[f"{policy.label}-{warm}" for policy, warm in CASES])
def test_the_same_decisions(policy: PolicySpec, prefixes: bool, tmp_path: Path) -> None:
    rows = [
        f'{{"timestamp": {i * 90}, "input_length": {40 + (i * 137) % 700}, "output_length": {1 + (i * 61) % 150}, '
        f'"hash_ids": [{i % 11}, {i % 3}]}}'
        for i in range(COUNT)
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(rows))
    work = WorkloadSpec(rate_per_s=15.0, requests=COUNT, trace=str(tmp_path / "trace.jsonl"), format="mooncake")
    scenario = Scenario("same", work, (ReplicaSpec(PROFILE, LIMITS, 2), ReplicaSpec(PROFILE.scaled(1.5), LIMITS)), (policy,))
    if prefixes:
        large = replace(LIMITS, block_size=512, kv_blocks=16)
        scenario = replace(scenario, replicas=(ReplicaSpec(PROFILE, large, 2), ReplicaSpec(PROFILE.scaled(1.5), large)))
    else:
        (tmp_path / "l.csv").write_text(
            "input_tokens,output_tokens\n" + "".join(f"{9 + 3 * i},{1 + i % 180}\n" for i in range(COUNT))
        )
        scenario = replace(scenario, workload=WorkloadSpec(rate_per_s=14.0, requests=COUNT, lengths=str(tmp_path / "l.csv")))
    outcome = Cluster(scenario, policy, requests_of(scenario, 0), 0).run()
    shell = in_shell(scenario, policy, 0)
    assert shell.sent == [(one.request_id, one.replica, one.hit_tokens) for one in outcome.sent]
    for line in outcome.timelines:
        there = shell.timelines[line.request_id]
        assert (there.first_token_s, there.finished_s) == pytest.approx((line.first_token_s, line.finished_s), abs=1e-5)
        assert there.preemptions == line.preemptions
    waited = [line for line in outcome.timelines if (line.ttft_s or 0.0) > 0.2]
    assert len(waited) > 10, "too little load to show anything"
