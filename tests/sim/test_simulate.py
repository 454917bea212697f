"""`gateway simulate` from the outside, and campaigns that are taken up again."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import cli
from gateway.sim.campaign import Campaign, bare, sources_hash
from gateway.sim.scenario import load

ROOT = Path(__file__).parents[2]
TEXT = """
name = "small"
seeds = [0, 1]
rates_per_s = [2.0, 6.0]
[workload]
lengths = "lengths.csv"
requests = 40
[[replicas]]
count = 2
[replicas.profile]
base_s = 0.02
prefill_token_s = 7e-5
decode_seq_s = 7e-5
kv_token_s = 7e-7
[replicas.limits]
kv_blocks = 400
block_size = 16
max_num_seqs = 8
max_num_batched_tokens = 256
max_model_len = 2048
[slo]
ttft_s = 0.5
quantile = 0.9
[capacity]
low_per_s = 2
high_per_s = 10
step_per_s = 1
[[policies]]
label = "ours"
policy = "plan"
[[policies]]
label = "Po2"
policy = "po2"
sidecar = true
probe_s = 0.01
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "lengths.csv").write_text(
        "input_tokens,output_tokens\n" + "".join(f"{50 + 7 * i},{20 + i}\n" for i in range(60))
    )
    (tmp_path / "small.toml").write_text(TEXT)
    return tmp_path / "small.toml"


def test_table_json_and_page(path: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    arguments = ["simulate", str(path), "--quiet", "--json", str(out), "--html", str(page)]
    done = CliRunner().invoke(cli, arguments, env={"COLUMNS": "250"})
    assert done.exit_code == 0, done.output
    assert "simulation" in done.output
    assert done.output.count("Po2") == 2
    assert "P50" in done.output
    narrow = CliRunner().invoke(cli, ["simulate", str(path), "--quiet", "--seeds", "1"], env={"COLUMNS": "100"})
    assert "P50" not in narrow.output
    assert "P99" in narrow.output
    found = json.loads(out.read_text())
    assert [(run["policy"], run["rate_per_s"], run["seed"]) for run in found["runs"]] == [
        (policy, rate, seed) for policy in ("ours", "Po2") for rate in (2.0, 6.0) for seed in (0, 1)
    ]
    assert all(run["requests"] == 40 and run["ttft_mean_s"] > 0 for run in found["runs"])
    assert {search["policy"]: 2 <= search["rate_per_s"] <= 10 for search in found["capacity"]} == {"ours": True, "Po2": True}
    assert page.read_text().count("<svg") == 4


def test_fewer_seeds_and_requests(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    arguments = ["simulate", str(path), "--quiet", "--seeds", "1", "--requests", "10", "--jobs", "2", "--json", str(out)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    runs = json.loads(out.read_text())["runs"]
    assert [(run["seed"], run["requests"]) for run in runs] == [(0, 10)] * 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seeds = [0, 1]", "seed = 1", "small.toml: seed: unknown key"),
        ('"lengths.csv"', '"gone.csv"', "gone.csv: no such file"),
        ('"lengths.csv"', '"$LEEWAY_DATA/x"', "workload.lengths: $LEEWAY_DATA/x needs LEEWAY_DATA"),
    ],
)
def test_a_mistake_is_named_and_ends_with_1(old: str, new: str, words: str, path: Path) -> None:
    path.write_text(TEXT.replace(old, new))
    done = CliRunner().invoke(cli, ["simulate", str(path), "--quiet"], env={"LEEWAY_DATA": None})
    assert done.exit_code == 1
    assert words in done.output


def count(item: tuple[Path, int]) -> dict[str, int]:
    """Work that notes how often it is done."""
    folder, number = item
    place = folder / f"{number}.count"
    times = int(place.read_text()) + 1 if place.exists() else 1
    place.write_text(str(times))
    return {"times": times, "number": number}


def test_a_campaign_is_taken_up_where_it_stopped(tmp_path: Path) -> None:
    told: list[str] = []
    campaign = Campaign(tmp_path / "kept", "sources", 1, told.append)
    assert [one["number"] for one in campaign.collect(count, [(tmp_path, 1), (tmp_path, 2)])] == [1, 2]
    again = Campaign(tmp_path / "kept", "sources", 1, told.append)
    found = again.collect(count, [(tmp_path, 2), (tmp_path, 3), (tmp_path, 1)])
    assert [(one["number"], one["times"]) for one in found] == [(2, 1), (3, 1), (1, 1)]
    assert told == ["count 1 of 2", "count 2 of 2", "count 1 of 1"]
    changed = Campaign(tmp_path / "kept", "other sources", 1, told.append)
    assert changed.collect(count, [(tmp_path, 1)]) == [{"number": 1, "times": 2}]


def test_a_campaigns_figures_and_capacities(path: Path, tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "kept", "x", 1, lambda _: None)
    scenario = load(path)
    figures = campaign.figures(scenario, "ours", 6.0)
    assert len(figures["ttft_p99_s"]) == 2
    assert figures == campaign.figures(replace(scenario, note="other words", rates_per_s=()), "ours", 6.0)
    assert bare(scenario, "Po2") != bare(scenario, "ours")
    assert len(campaign.capacities(scenario, "Po2", (0,))) == 1


def test_the_sources_hash_follows_what_decides() -> None:
    assert sources_hash(ROOT) == sources_hash(ROOT)
    assert len(sources_hash(ROOT)) == 64


def test_the_paper_command_writes_a_report_and_one_line_of_figures(tmp_path: Path) -> None:
    arguments = ["--only", "e14,e0,herding", "--seeds", "1", "--requests", "90", "--jobs", "1"]
    command = [sys.executable, str(ROOT / "examples/papers/astrolabe/astrolabe_run.py"), *arguments]
    places = ["--kept", str(tmp_path / "kept"), "--out", str(tmp_path / "report.md")]
    done = subprocess.run([*command, *places], capture_output=True, text=True, check=True, cwd=ROOT)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert set(figures) == {"ours_ttft_mean_ratio", "ours_ttft_p99_ratio", "ours_preemptions_ratio"}
    report = (tmp_path / "report.md").read_text()
    assert [line for line in report.splitlines() if line.startswith("## ")] == [
        "## E14: the late plan near saturation",
        "## E0: run-time metrics and the true E2E",
        "## Herding",
    ]


SCENARIOS = [*(ROOT / "examples/simulate").glob("*.toml"), *(ROOT / "examples/papers/astrolabe").glob("*.toml")]


@pytest.mark.parametrize("name", sorted(str(path.relative_to(ROOT)) for path in SCENARIOS))
def test_the_scenarios_of_the_examples_are_read(name: str) -> None:
    scenario = load(ROOT / name, Path("data"))
    assert scenario.policies
