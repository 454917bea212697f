"""Every figure that a bar names stands in the line of JSON of the command that measures it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.sim.scenario import PolicySpec, ReplicaSpec, Scenario
from gateway.sim.workload import WorkloadSpec
from predictor.profile import EngineLimits, StepProfile
from tests.bench import simulator

ROOT = Path(__file__).parents[2]
ASTROLABE = ROOT / "examples" / "papers" / "astrolabe"
CAPACITIES = {"capacity_po2", "capacity_oracle", "capacity_llumnix", "ours_capacity_ratio"}
ROBUST = {"robust_ttft_mean_ratio", "robust_ttft_p99_ratio", "robust_preemptions_ratio", "past_capacity_p99_against_fcfs"}
RATES = (4.0, 6.0, 7.0)
TRACE = WorkloadSpec(arrivals="trace", trace="x", format="mooncake")
KIND = ReplicaSpec(StepProfile(0.02, 7e-5, 7e-5, 7e-7), EngineLimits(400, 16, 16, 256, 2048))


def test_capacities_and_another_truth_are_told(tmp_path: Path) -> None:
    arguments = ["--only", "e1,robust", "--seeds", "1", "--requests", "40", "--jobs", "1"]
    places = ["--kept", str(tmp_path / "kept"), "--out", str(tmp_path / "report.md")]
    command = [sys.executable, str(ASTROLABE / "astrolabe_run.py"), *arguments, *places]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert set(figures) >= CAPACITIES | ROBUST


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ASTROLABE))
    import peers

    return peers


def cells(**factors: float) -> dict[tuple[str, float], dict[str, list[float]]]:
    """Figures of three seeds by rule and rate, each rule's so many times ours."""
    own = {"ttft_mean_s": [1.0, 1.1, 0.9], "ttft_p99_s": [5.0, 5.5, 4.5]}
    by_label = {"ours": 1.0, **{label.replace("_", " "): factor for label, factor in factors.items()}}
    return {
        (label, rate): {key: [factor * value for value in values] for key, values in own.items()}
        for label, factor in by_label.items()
        for rate in RATES
    }


def test_a_rule_that_is_better_on_a_trace_is_one_cell_with_its_figures_listed(peers: Any) -> None:
    labels = ("ours", "early, same price", "better", "worse")
    scenario = Scenario("s", TRACE, (KIND,), tuple(PolicySpec(label, "plan") for label in labels), rates_per_s=RATES)
    found = cells(better=0.8, worse=1.3)
    for rate in RATES:
        found["early, same price", rate] = found["better", rate]
    lost = peers.lost_cells("A trace", scenario, found)
    assert {(trace, rule) for trace, rule, _ in lost} == {("A trace", "better")}, "our own are no rivals"
    assert [words for _, _, words in lost][:2] == ["70 %, mean x 1.25", "70 %, P99 x 1.25"]
    assert len(lost) == 2 * len(RATES)
    assert peers.gain_90(scenario, found) == pytest.approx(1 - 1 / 0.8), "against the best rule"


def test_the_simulators_cost_is_told_for_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    simulator.main(["--requests", "30"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    wanted = {"po2", "po2_true_lengths", "po4", "po8", "fan_out", "llumnix", "ours"}
    assert set(figures) >= {f"simulate_{name}_s" for name in wanted}
    assert figures["simulate_max_s"] == max(figures[f"simulate_{name}_s"] for name in wanted)
    assert (figures["requests"], figures["replicas"]) == (30, 12)
