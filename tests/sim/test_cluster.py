"""The cluster: everything ends, delays and views are as the scenario says, failures lose what was there."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gateway.jobs import Job
from gateway.sim.capacity import capacity
from gateway.sim.cluster import Cluster
from gateway.sim.migration import MovableEngine
from gateway.sim.outcome import Outcome, Sent
from gateway.sim.probing import Sidecars
from gateway.sim.report import figures, longest_run, within
from gateway.sim.runner import Key, keys, requests_of, run_all, run_one
from gateway.sim.scenario import (
    CapacitySpec,
    FailureSpec,
    MigrationSpec,
    PolicySpec,
    ReplicaSpec,
    Scenario,
    SloSpec,
    TruthSpec,
    ViewSpec,
)
from gateway.sim.stalls import Clock
from gateway.sim.workload import WorkloadSpec
from predictor.profile import EngineLimits, StepProfile
from predictor.request import LengthEstimate, Request, Timeline
from predictor.snapshot import ProbeReply

PROFILE = StepProfile(0.02, 7e-5, 7e-5, 7e-7)
LIMITS = EngineLimits(400, 16, 16, 256, 2048, watermark_blocks=4)
PO2 = PolicySpec("po2", "po2", sidecar=True, own_dispatches=False, probe_s=0.03)


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    rng = Random(1)
    rows = "".join(f"{int(rng.expovariate(1 / 150)) + 1},{int(rng.expovariate(1 / 80)) + 1}\n" for _ in range(300))
    (tmp_path / "lengths.csv").write_text("input_tokens,output_tokens\n" + rows)
    work = WorkloadSpec(rate_per_s=9.0, requests=250, lengths=str(tmp_path / "lengths.csv"))
    return Scenario("small", work, (ReplicaSpec(PROFILE, LIMITS, 3),), (PolicySpec("ours", "plan"), PO2))


def ran(scenario: Scenario, policy: PolicySpec, seed: int = 0) -> Outcome:
    return Cluster(scenario, policy, requests_of(scenario, seed), seed).run()


@pytest.mark.parametrize(
    "policy", ["plan", "po2", "pod", "fanout", "llumnix", "infaas", "nosim", "round_robin", "least_request", "llmd"]
)
@pytest.mark.parametrize("sidecar", [True, False])
def test_every_request_ends_under_every_policy_and_a_run_repeats(policy: str, sidecar: bool, scenario: Scenario) -> None:
    spec = PolicySpec("p", policy, d=2, sidecar=sidecar)  # type: ignore[arg-type]
    one, two = ran(scenario, spec), ran(scenario, spec)
    assert one == two
    assert [line.request_id for line in one.timelines] == [str(i) for i in range(250)]
    for line in one.timelines:
        assert line.finished_s is not None
        assert line.first_token_s is not None
        assert line.arrived_s <= (line.dispatched_s or 0.0) <= line.first_token_s <= line.finished_s
    assert sorted(sent.request_id for sent in one.sent) == sorted(line.request_id for line in one.timelines)
    assert len({sent.replica for sent in one.sent}) == 3


def test_delays_are_those_of_the_scenario(scenario: Scenario) -> None:
    view = ViewSpec(dispatch_s=0.01)
    for line in ran(replace(scenario, view=view), PO2).timelines:
        assert (line.dispatched_s or 0.0) - line.arrived_s == pytest.approx(0.04)
    prompt = ran(scenario, PolicySpec("rr", "round_robin"))
    assert all(line.dispatched_s == line.arrived_s for line in prompt.timelines)


def test_late_feedback_costs_late_binding_something(scenario: Scenario) -> None:
    ours = PolicySpec("ours", "plan")
    at_once = figures(ran(scenario, ours), SloSpec(), [1] * 250, 3)
    late = figures(ran(replace(scenario, view=ViewSpec(feedback_s=0.3)), ours), SloSpec(), [1] * 250, 3)
    assert late.ttft_mean_s > at_once.ttft_mean_s


def test_a_failed_replica_loses_its_requests_and_gets_none_while_it_is_down(scenario: Scenario) -> None:
    broken = replace(scenario, failures=(FailureSpec(1, 8.0, 6.0),), view=ViewSpec(dispatch_s=0.005))
    for policy in (PO2, PolicySpec("ours", "plan")):
        outcome = ran(broken, policy)
        unfinished = [line for line in outcome.timelines if line.finished_s is None]
        assert outcome.lost == len(unfinished) > 0
        assert all((line.dispatched_s or 0.0) < 8.0 for line in unfinished)
        assert not [sent for sent in outcome.sent if sent.replica == 1 and 8.04 < sent.at_s < 14.0]
        assert [sent for sent in outcome.sent if sent.replica == 1 and sent.at_s > 14.0]
        assert figures(outcome, SloSpec(), [1] * 250, 3).violations >= len(unfinished) / 250


def test_a_refused_request_is_placed_elsewhere(scenario: Scenario) -> None:
    """The engine goes down while a dispatch is on its way: it did not run, so it is sent again."""
    arrival_s = requests_of(scenario, 0)[100].arrival_s
    broken = replace(scenario, failures=(FailureSpec(1, arrival_s + 0.25, 5.0),), view=ViewSpec(dispatch_s=0.5))
    outcome = ran(broken, PolicySpec("rr", "round_robin"))
    twice = {sent.request_id for sent in outcome.sent if sent.replica == 1 and 0 <= arrival_s + 0.25 - sent.at_s < 0.5}
    assert twice
    for line in outcome.timelines:
        if line.request_id in twice:
            assert line.finished_s is not None


def test_the_truth_may_differ_and_hardware_too(scenario: Scenario) -> None:
    stalled = replace(scenario, truth=TruthSpec(step_spread=0.15, stall_share=0.05, stall_s=0.2))
    plain = figures(ran(scenario, PO2), SloSpec(), [1] * 250, 3)
    assert figures(ran(stalled, PO2), SloSpec(), [1] * 250, 3).tpot_mean_s > 1.2 * plain.tpot_mean_s
    kinds = (ReplicaSpec(PROFILE, LIMITS, 1), ReplicaSpec(PROFILE, LIMITS, 1, slower=3.0))
    mixed = ran(
        replace(scenario, replicas=kinds, workload=replace(scenario.workload, rate_per_s=4.0)), PolicySpec("ours", "plan")
    )
    counts = [sum(sent.replica == i for sent in mixed.sent) for i in range(2)]
    assert counts[0] > 1.5 * counts[1]


def test_several_gateways_share_the_arrivals(scenario: Scenario) -> None:
    cluster = Cluster(replace(scenario, view=ViewSpec(gateways=4)), PO2, requests_of(scenario, 0), 0)
    assert len(cluster.fronts) == 4
    assert all(line.finished_s is not None for line in cluster.run().timelines)


def test_prefixes_are_followed_by_the_truth(scenario: Scenario, tmp_path: Path) -> None:
    rows = [
        f'{{"timestamp": {i * 100}, "input_length": 1100, "output_length": 20, "hash_ids": [{i % 7}, 0]}}' for i in range(120)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    work = WorkloadSpec("trace", 3.0, 1.0, 120, trace=str(tmp_path / "t.jsonl"), format="mooncake")
    limits = replace(LIMITS, kv_blocks=40, block_size=512, max_model_len=2048)
    warm = replace(scenario, workload=work, replicas=(ReplicaSpec(PROFILE, limits, 3),))
    found = run_one(warm, Key("ours", 3.0, 0)).figures
    assert found.hit_share > 0.3
    blind = replace(warm, workload=replace(work, unrecognised=1.0))
    assert run_one(blind, Key("ours", 3.0, 0)).figures.hit_share == 0.0


def test_migration_moves_requests_and_loses_none(scenario: Scenario) -> None:
    spec = MigrationSpec(every_s=0.2, kv_token_bytes=131072.0, link_bytes_per_s=1e9, gap_blocks=1.0)
    uneven = PolicySpec("random", "random")
    scenario = scenario.at_rate(22.0)
    cluster = Cluster(replace(scenario, migration=spec), uneven, requests_of(scenario, 0), 0)
    outcome = cluster.run()
    assert cluster.migrations > 10
    assert all(line.finished_s is not None for line in outcome.timelines)
    assert all((engine.running, engine.waiting) == (0, 0) for engine in cluster.engines)
    assert all(engine.free_blocks == LIMITS.kv_blocks for engine in cluster.engines)
    still = figures(ran(scenario, uneven), SloSpec(), [1] * 250, 3)
    moved = figures(outcome, SloSpec(), [1] * 250, 3)
    assert moved.ttft_mean_s < 0.8 * still.ttft_mean_s


def test_a_moved_request_goes_on_where_it_was() -> None:
    clock = Clock()
    flat = StepProfile(0.01, 0.0, 0.0, 0.0)
    one, two = MovableEngine(flat, LIMITS, clock), MovableEngine(flat, LIMITS, clock)
    one.submit(Request("a", 100, 200, 0.0), 0.0)
    clock.now_s = one.step_ends_at_s or -1.0
    one.finish_step(clock.now_s)
    clock.now_s = 0.515
    assert one.give("unknown", clock.now_s) is None
    given = one.give("a", clock.now_s)
    assert given is not None
    seq, at_s = given
    assert (seq.spent, seq.computed, at_s) == (52, 151, pytest.approx(0.52))
    clock.now_s = one.step_ends_at_s or -1.0
    one.finish_step(clock.now_s)
    assert (one.running, one.free_blocks) == (0, LIMITS.kv_blocks)
    two.take(seq, clock.now_s)
    assert (two.running, two.free_blocks) == (1, LIMITS.kv_blocks - LIMITS.blocks_for(152))
    assert two.step_ends_at_s == pytest.approx(0.52 + 148 * 0.01)


class Eye:
    """Records what probes answered."""

    def __init__(self) -> None:
        self.replies: dict[str, Mapping[str, ProbeReply | None]] = {}


def watched(cluster: Cluster) -> Eye:
    eye = Eye()
    for desk in (front.desk for front in cluster.fronts):
        original = desk.probed

        def probed(job_id: str, replies: Mapping[str, ProbeReply | None], now_s: float, original=original):  # type: ignore[no-untyped-def]
            eye.replies[job_id] = replies
            return original(job_id, replies, now_s)

        desk.probed = probed  # type: ignore[method-assign]
    return eye


def test_probes_see_snapshots_of_the_age_that_was_asked_for(scenario: Scenario) -> None:
    old = replace(scenario, view=ViewSpec(snapshot_age_s=(0.05, 0.25)))
    for policy in (PO2, PolicySpec("l", "llumnix", sidecar=True, own_dispatches=False)):
        cluster = Cluster(old, policy, requests_of(scenario, 0), 0)
        eye = watched(cluster)
        cluster.run()
        ages = [reply.snapshot_age_s for replies in eye.replies.values() for reply in replies.values() if reply is not None]
        later = ages[20:]
        assert min(later) >= 0.05 - 1e-9
        assert max(later) <= 0.25 + 1e-9
        assert max(later) - min(later) > 0.1


def test_a_prediction_on_the_true_state_with_true_lengths_comes_true(scenario: Scenario) -> None:
    """Each last request is followed by nobody, so its predicted times must be its times."""
    exact = PolicySpec("exact", "fanout", sidecar=True, own_dispatches=False, oracle=True)
    for seed in range(6):
        requests = requests_of(scenario, seed)[: 40 + 30 * seed]
        cluster = Cluster(scenario, exact, requests, seed)
        eye = watched(cluster)
        outcome = cluster.run()
        last, sent = outcome.timelines[-1], outcome.sent[-1]
        reply = eye.replies[last.request_id][f"r{sent.replica}"]
        assert reply is not None
        assert reply.estimate.ttft_s == pytest.approx(last.ttft_s)
        assert reply.estimate.e2e_s == pytest.approx(last.e2e_s)


def test_noise_blurs_what_probes_say_and_nothing_else(scenario: Scenario) -> None:
    def said(view: ViewSpec) -> float:
        noisy = replace(scenario, view=view)
        cluster = Cluster(noisy, PO2, requests_of(scenario, 0), 0)
        sidecars = Sidecars(noisy, PO2, cluster.engines, cluster.clock, Random(0))
        cluster.engines[0].submit(Request("there", 100, 50, 0.0), 0.0)
        job = Job("new", "model", 100, LengthEstimate(50, 50, 50, "test"), 0.0)
        reply = sidecars.reply(0, job)
        assert (reply.running, reply.waiting) == (1, 0)
        return reply.estimate.e2e_s

    plain = said(ViewSpec())
    assert said(ViewSpec(latency_noise=0.5)) != plain != said(ViewSpec(length_noise=0.5))


def test_runs_are_the_same_in_other_processes(scenario: Scenario) -> None:
    small = replace(scenario, workload=replace(scenario.workload, requests=60), rates_per_s=(5.0, 9.0))
    wanted = keys(small)
    assert len(wanted) == 4
    assert list(run_all(small, wanted, 2)) == list(run_all(small, wanted, 1))


def test_capacity_is_the_highest_rate_that_meets_the_slo(scenario: Scenario) -> None:
    search = replace(scenario, slo=SloSpec(ttft_s=0.2, quantile=0.9), capacity=CapacitySpec(4.0, 60.0, 1.0))
    found = capacity(search, "po2", 0)
    tried = dict(found.tried)
    assert tried[found.rate_per_s] <= 0.2 < tried[found.rate_per_s + 1.0]
    assert len(tried) <= 7
    assert capacity(replace(search, slo=SloSpec(ttft_s=1e-3)), "po2", 0).rate_per_s == 0.0
    assert capacity(replace(search, slo=SloSpec(ttft_s=1e3)), "po2", 0).rate_per_s == 60.0


def line(request_id: str, arrived_s: float, first_s: float | None, end_s: float | None, tokens: int) -> Timeline:
    return Timeline(request_id, arrived_s, arrived_s, first_s, end_s, tokens)


def test_figures_of_a_run_known_by_hand() -> None:
    lines = (
        line("a", 0.0, 1.0, 2.0, 11),
        line("b", 1.0, 4.0, 9.0, 11),
        line("c", 2.0, None, None, 0),
        line("d", 4.0, 5.0, 5.0, 1),
    )
    sent = (Sent(0.0, "a", 0, 10), Sent(1.0, "b", 1, 0), Sent(2.0, "c", 0, 0), Sent(4.0, "d", 0, 0))
    outcome = Outcome("p", 0, 1.0, lines, sent, 7, 1.5, 1, 100, 10)
    found = figures(outcome, SloSpec(ttft_s=2.0, tpot_s=0.2), [10, 20, 30, 40], 2)
    assert (found.requests, found.lost, found.preemptions, found.hit_share) == (4, 1, 7, 0.1)
    assert found.ttft_mean_s == pytest.approx(5 / 3)
    assert found.tpot_mean_s == pytest.approx(0.3)
    assert found.e2e_p50_s == 2.0
    assert found.goodput_per_s == pytest.approx(0.5)
    assert found.violations == 0.5
    assert found.jain_replicas == pytest.approx(0.8)
    assert found.jain_sizes == pytest.approx(0.5)
    assert figures(outcome, SloSpec(), [10, 20, 30, 40], 2, warmup=0.25, cooldown=0.25).requests == 2
    assert within(lines[0], SloSpec(e2e_s=2.0))
    assert not within(lines[1], SloSpec(e2e_s=2.0))


def test_the_longest_run_on_one_replica() -> None:
    places = [(0.0, 0), (0.1, 1), (0.2, 1), (0.3, 1), (0.9, 1), (1.0, 0), (1.1, 0)]
    sent = [Sent(at_s, str(i), replica, 0) for i, (at_s, replica) in enumerate(places)]
    assert longest_run(sent, 0.25) == 3
    assert longest_run(sent, 5.0) == 4
    assert longest_run(sent[:1], 1.0) == 1
