"""What lengths are worth, as the example finds it: every policy with the truth, two predictions and a constant."""

import json
import sys
from dataclasses import replace

import pytest

from examples.simulate.lengths import CONSTANT, HERE, ORACLE, _figures, _runs, main
from gateway.sim.scenario import load

TOLD = {ORACLE, "tagger", "cheap", CONSTANT}


def test_each_way_of_telling_lengths_is_compared_for_dispatch_and_for_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lengths.py", "--seeds", "1", "--requests", "60"])
    main()
    printed = capsys.readouterr().out.strip().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in printed if line.startswith("| p")][1:]
    policies = {policy for policy, _, _ in rows}
    assert policies == {"plan, sjf", "plan, fcfs", "po2"}
    assert {(policy, told) for policy, _, told in rows} == {(policy, told) for policy in policies for told in TOLD}
    figures = json.loads(printed[-1])
    assert {f"po2_{told}_15_ttft_gain" for told in TOLD - {CONSTANT}} <= figures.keys()


def test_past_capacity_the_truth_orders_the_line_better_than_a_constant() -> None:
    scenario = load(HERE / "lengths.toml")
    wanted = tuple([policy for policy in scenario.policies if policy.label in ("plan, sjf: oracle", "plan, sjf: constant")])
    workload = replace(scenario.workload, requests=1500)
    runs = _runs(replace(scenario, policies=wanted, workload=workload, seeds=(0,), rates_per_s=(17.0,)), 1)
    assert _figures(runs)["plan_sjf_oracle_17_ttft_gain"] > 0.05
