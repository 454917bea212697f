"""What the late plan promises, on a small agents' trace made here: prefix hits survive late binding (T1), a hot prefix
does not pile up (T2), no tail is lost against the prefix rules of other routers (T3), stale reports cost nothing."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import mean

import pytest

from gateway.sim.cluster import Cluster
from gateway.sim.outcome import Outcome
from gateway.sim.report import figures
from gateway.sim.runner import requests_of
from gateway.sim.scenario import PolicySpec, ReplicaSpec, Scenario, SloSpec, ViewSpec
from gateway.sim.workload import WorkloadSpec
from predictor.profile import EngineLimits, StepProfile

BLOCK = 512
PROFILE = StepProfile(16.37e-3, 59.1e-6, 37.8e-6, 27.3e-9, 1236e-12, 128, 0.0, "h")  # Llama-3.1-70B TP4 on H100
LIMITS = EngineLimits(400, BLOCK, 64, 2048, 100_000, watermark_blocks=4)
REQUESTS = 900
HIGH, NORMAL = 5.1, 4.0  # about 90 and 70 % of what early binding holds
SEEDS = (0, 1)
PLAN = PolicySpec("plan", "plan")
EARLY = PolicySpec("early", "plan", binding="early")


def trace(path: Path) -> None:
    """Agents: each session begins with one of six long instructions and grows turn by turn; sessions overlap."""
    rng, turns, fresh = Random(11), [], 10_000
    for session in range(180):
        blocks = [100 * rng.randrange(6) + i for i in range(6)]
        at_s, output = 600.0 * rng.random(), 0
        for _ in range(rng.randint(2, 8)):
            grown = rng.randint(2, 14)
            blocks = [*blocks, *range(fresh, fresh + grown)]
            fresh += grown
            output = rng.randint(40, 260)
            turns.append((at_s, len(blocks) * BLOCK + rng.randrange(BLOCK), output, list(blocks), session))
            at_s += 4.0 + rng.expovariate(1 / 25.0)
    with path.open("w") as file:
        for at_s, prompt, output, blocks, _ in sorted(turns):
            row = {"timestamp": int(at_s * 1000), "input_length": prompt, "output_length": output, "hash_ids": blocks}
            file.write(json.dumps(row) + "\n")


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    path = tmp_path_factory.mktemp("agents") / "agents.jsonl"
    trace(path)
    work = WorkloadSpec(
        arrivals="trace",
        trace=str(path),
        format="mooncake",
        rate_per_s=HIGH,
        requests=REQUESTS,
        starts=(0, 150),
        length_error=0.25,
    )
    view = ViewSpec(dispatch_s=0.002, feedback_s=0.002)
    return Scenario("agents", work, (ReplicaSpec(PROFILE, LIMITS, 6),), (PLAN,), view=view, slo=SloSpec(ttft_s=5.0))


@cache
def ran(scenario: Scenario, policy: PolicySpec, seed: int) -> Outcome:
    return Cluster(scenario, policy, requests_of(scenario, seed), seed).run()


def share(scenario: Scenario, policy: PolicySpec) -> float:
    """Of all prompt tokens, how many the engines found cached."""
    runs = [ran(scenario, policy, seed) for seed in SEEDS]
    return sum(run.hit_tokens for run in runs) / sum(run.prompt_tokens for run in runs)


def ttft_s(scenario: Scenario, policy: PolicySpec) -> tuple[float, float]:
    """(mean, P99) over the seeds."""
    found = []
    for seed in SEEDS:
        sizes = [request.prompt_tokens + request.output_tokens for request in requests_of(scenario, seed)]
        run = figures(ran(scenario, policy, seed), scenario.slo, sizes, 6, 0.2, 0.05)
        found.append((run.ttft_mean_s, run.ttft_p99_s))
    return mean(one[0] for one in found), mean(one[1] for one in found)


def work_apart(scenario: Scenario, policy: PolicySpec) -> float:
    """The most prefill work of a replica over the mean."""
    worst = 0.0
    for seed in SEEDS:
        prompts = {request.id: request.prompt_tokens for request in requests_of(scenario, seed)}
        work = [0.0] * 6
        for sent in ran(scenario, policy, seed).sent:
            work[sent.replica] += prompts[sent.request_id] - sent.hit_tokens
        worst = max(worst, max(work) / mean(work))
    return worst


def test_hits_survive_late_binding(scenario: Scenario) -> None:
    """T1: at 90 % load the plan keeps at least 0.9 of early binding's hits, and both keep most of what there is."""
    late, early = share(scenario, PLAN), share(scenario, EARLY)
    blind = share(scenario, PolicySpec("least", "least_request"))
    assert late >= 0.9 * early
    assert early > 1.5 * blind


def test_a_hot_prefix_is_spread(scenario: Scenario) -> None:
    """T2: 40 % of the requests begin with one common prefix; no replica gets 1.2 times the mean of the prefill work."""
    hot = replace(scenario, workload=replace(scenario.workload, hot_share=0.4, hot_tokens=12 * BLOCK))
    assert work_apart(hot, PLAN) <= 1.2
    assert work_apart(hot, EARLY) <= 1.2


@pytest.mark.parametrize("rate_per_s", [NORMAL, HIGH])
@pytest.mark.parametrize("rival", ["llmd", "dynamo"])
def test_no_tail_is_lost_against_other_prefix_rules(rate_per_s: float, rival: str, scenario: Scenario) -> None:
    """T3: at 70 and 90 % load mean and P99 of the time to first token are no worse than under those rules."""
    at_rate = scenario.at_rate(rate_per_s)
    ours_mean_s, ours_p99_s = ttft_s(at_rate, PLAN)
    mean_s, p99_s = ttft_s(at_rate, PolicySpec(rival, rival))  # type: ignore[arg-type]
    assert ours_mean_s <= mean_s
    assert ours_p99_s <= p99_s


def test_old_reports_cost_nothing_once_own_dispatches_count(scenario: Scenario) -> None:
    """Engines that tell of themselves every 250 ms: a gateway that adds what it has sent since is none the worse for it. Who
    goes by what is up to 250 ms old alone herds."""
    polled = replace(scenario, view=replace(scenario.view, report_s=0.25))
    for policy in (PLAN, EARLY):
        always, seldom = ttft_s(scenario, policy), ttft_s(polled, policy)
        assert all(old_s <= 1.02 * fresh_s for old_s, fresh_s in zip(seldom, always, strict=True))
    old = replace(scenario, view=replace(scenario.view, snapshot_age_s=(0.0, 0.25)))
    adds = PolicySpec("adds", "fanout", objective="ttft", sidecar=True)
    blind = replace(adds, label="blind", own_dispatches=False)
    assert 2.0 * ttft_s(old, adds)[0] < ttft_s(old, blind)[0]


def test_the_plan_orders_what_cannot_be_served_at_once(scenario: Scenario) -> None:
    """Past capacity the order of the line decides: the mean under shortest first is well below first come, first served."""
    over = scenario.at_rate(2.2 * HIGH)
    fcfs, _ = ttft_s(over, PolicySpec("fcfs", "plan", order="fcfs"))
    sjf, _ = ttft_s(over, PLAN)
    assert sjf < 0.9 * fcfs
