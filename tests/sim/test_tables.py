"""Scenario files: every mistake is named by file, key and reason; statistics and plots."""

import math
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from gateway.sim import html
from gateway.sim.scenario import Scenario, load, parse
from gateway.sim.stats import interval, jain, quantile, ratio_of_means, spearman, t90
from gateway.sim.tables import TableError

GOOD = """
name = "small"
seeds = [0, 1]
[workload]
lengths = "lengths.csv"
rate_per_s = 4
[[replicas]]
count = 2
[replicas.profile]
base_s = 0.02
prefill_token_s = 7e-5
decode_seq_s = 7e-5
kv_token_s = 7e-7
[replicas.limits]
kv_blocks = 1000
block_size = 16
max_num_seqs = 8
max_num_batched_tokens = 512
max_model_len = 4096
[[policies]]
label = "ours"
policy = "po2"
"""


def read(text: str, data: Path | None = None) -> Scenario:
    return parse(tomllib.loads(text), "s.toml", Path("folder"), data)


def test_a_scenario_is_read_with_its_defaults() -> None:
    scenario = read(GOOD)
    assert scenario.workload.rate_per_s == 4.0
    assert scenario.workload.lengths == "folder/lengths.csv"
    assert scenario.replicas[0].limits.kv_blocks == 1000
    assert scenario.policies[0].rule.d == 2
    assert (scenario.capacity, scenario.failures, scenario.seeds) == (None, (), (0, 1))
    assert scenario.at_rate(7.0).workload.rate_per_s == 7.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "small"', "", "s.toml: name: is missing"),
        ("seeds = [0, 1]", "sedes = [0]", "s.toml: sedes: unknown key; known: name, workload"),
        ("seeds = [0, 1]", "seeds = []", "s.toml: seeds: needs one at least"),
        ("seeds = [0, 1]", 'seeds = [0, "x"]', r"s.toml: seeds\[1\]: must be a whole number, not 'x'"),
        ("seeds = [0, 1]", "seeds = 3", "s.toml: seeds: must be a list"),
        ("rate_per_s = 4", 'rate_per_s = "4"', "s.toml: workload.rate_per_s: must be a number, not '4'"),
        ("rate_per_s = 4", "rate_per_s = true", "s.toml: workload.rate_per_s: must be a number"),
        ("rate_per_s = 4", "rate_per_s = -1", "s.toml: workload.rate_per_s: must be above 0"),
        ("count = 2", "count = 0", r"s.toml: replicas\[0\].count: must be at least 1"),
        ("kv_blocks = 1000", "kv_blocks = 1", r"s.toml: replicas\[0\].limits: kv_blocks \* block_size must hold"),
        ("kv_blocks = 1000", "", r"s.toml: replicas\[0\].limits.kv_blocks: is missing"),
        ('policy = "po2"', 'policy = "best"', r"s.toml: policies\[0\].policy: 'best' is none of"),
        ("[[policies]]", "[view]\nsnapshot_age_s = [1.0]\n[[policies]]", "s.toml: view.snapshot_age_s: must have 2 items"),
        ("[[policies]]", "[view]\nsnapshot_age_s = [2, 1]\n[[policies]]", "s.toml: view.snapshot_age_s: two ages"),
        ("[[policies]]", "[[failures]]\nreplica = 2\nat_s = 1\ndown_s = 1\n[[policies]]", "failures: there is no replica 2"),
        ("[[policies]]", "[capacity]\nlow_per_s = 3\nhigh_per_s = 2\n[[policies]]", "s.toml: capacity.low_per_s: must lie"),
        ("[[policies]]", "truth = 3\n[[policies]]", "s.toml: truth: must be a table"),
        ('"lengths.csv"', '"$LEEWAY_DATA/x.csv"', "s.toml: workload.lengths: .* needs LEEWAY_DATA"),
    ],
)
def test_a_mistake_is_named(old: str, new: str, message: str) -> None:
    text = GOOD.replace("truth = 3\n", "").replace(old, new, 1)
    if new.startswith("truth"):
        text = "truth = 3\n" + GOOD
    with pytest.raises(TableError, match=message):
        read(text)


def test_replicas_by_the_name_of_a_profile() -> None:
    head, rest = GOOD.split("[replicas.profile]")
    tail = rest.split("[[policies]]")[1]
    named = head + 'profile = "llama-2-7b/tp1/a30"\n[replicas.limits]\nkv_blocks = 700\n[[policies]]' + tail
    replica = read(named).replicas[0]
    assert (replica.profile.form, replica.profile.knee_tokens, replica.limits.kv_blocks, replica.limits.block_size) == (
        "h",
        96,
        700,
        16,
    )
    with pytest.raises(TableError, match=r"s.toml: replicas\[0\].profile: .*gpt-9"):
        read(named.replace("llama-2-7b/tp1/a30", "gpt-9"))


def test_the_data_folder_and_the_file_itself(tmp_path: Path) -> None:
    assert read(GOOD.replace("lengths.csv", "$LEEWAY_DATA/x.csv"), Path("d")).workload.lengths == "d/x.csv"
    with pytest.raises(TableError, match="No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(TableError, match=r"bad\.toml: Invalid value"):
        load(tmp_path / "bad.toml")


def test_quantiles_and_fairness() -> None:
    assert quantile([1.0, 2.0, 4.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 4.0], 0.75) == 3.0
    assert math.isnan(quantile([], 0.5))
    assert jain([1.0, 1.0, 1.0]) == 1.0
    assert jain([1.0, 0.0]) == 0.5
    assert jain([0.0, 0.0]) == 1.0


def test_intervals() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds) == (2.0, 3)
    assert found.high - found.mean == pytest.approx(1.886 / math.sqrt(3))
    assert interval([5.0]).high == 5.0
    assert t90(20) == pytest.approx(1.325, abs=2e-3)
    halves = ratio_of_means([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (halves.mean, halves.high) == (pytest.approx(0.5), pytest.approx(0.5))
    spread = ratio_of_means([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert spread.mean == 1.0
    assert spread.high == pytest.approx(math.exp(1.886 * math.sqrt(0.5 / 6)))
    assert spread.low == pytest.approx(1 / spread.high)
    assert ratio_of_means([3.0], [4.0]).high == 0.75
    assert math.isnan(ratio_of_means([1.0], [0.0]).mean)


def test_rank_correlation() -> None:
    assert spearman([1.0, 2.0, 3.0], [10.0, 20.0, 21.0]) == pytest.approx(1.0)
    assert spearman([1.0, 2.0, 3.0], [3.0, 2.0, 2.0]) == pytest.approx(-0.866, abs=1e-3)
    assert math.isnan(spearman([1.0, 1.0], [1.0, 2.0]))


@pytest.mark.parametrize(
    ("top", "ticks"),
    [(0.0, [0.0, 1.0]), (7.0, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), (33.0, [0, 5, 10, 15, 20, 25, 30, 35])],
)
def test_ticks(top: float, ticks: list[float]) -> None:
    assert html.nice_ticks(top) == ticks


def test_a_page_needs_nothing_else_and_its_plots_are_well_formed() -> None:
    line = html.Line("a < b", ((1.0, 2.0, 1.5, 2.5), (2.0, 3.0, 2.0, 4.0)))
    bar = html.Line("c", ((1.0, 2.0, -1.0, 2.5),))
    for plot in (html.Plot("T & U", "x", (line, line)), html.Plot("bars", "x", (bar, bar))):
        root: Any = ET.fromstring(html.svg(plot))
        assert root.tag.endswith("svg")
    text = html.page("t", "n", ["h"], [["<b>"]], [html.Plot("p", "x", (line,))])
    assert "&lt;b&gt;" in text
    assert "a &lt; b" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
