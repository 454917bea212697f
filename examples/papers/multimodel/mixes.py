"""Mixes of models and their schedulers: scenarios, requests and runs, and the bars that compare ours with the best rule.

Everything is paired by seed: all rules see the same requests and the same truth. `measure` is what a campaign keeps.
"""

import csv
import gzip
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from gateway.sim.scenario_file import read_table
from gateway.sim.swap_ours import ours
from gateway.sim.swap_rules import RULES, collate_by_turn
from gateway.sim.swap_run import figures, requests, run
from gateway.sim.swap_scenario import SwapScenario
from gateway.sim.swap_world import Job, World
from predictor.cost import GB, HostProfile
from predictor.hosts import host_profiles

HERE = Path(__file__).parent
MIXES = ("one-3", "two-5", "three-8", "ram-6", "servegen-5", "gentd26")
LABELS = {
    "fifo": "FIFO",
    "collate": "llama-swap collation",
    "partition": "static partition",
    "lru": "LRU with dwell",
    "qlm": "QLM-like",
    "ours": "ours",
}
EXTRA = {"ours-fcfs": "ours, as they came", "collate-turn": "collation, our order"}  # to tell the order's part; no rivals
LOADS = "traces/gentd26_load_and_queue_ms.csv.gz"


@dataclass(frozen=True, slots=True)
class Run:
    """What a campaign names: one rule in one mix with one seed."""

    mix: str
    rule: str
    seed: int
    duration_s: float
    data: str


def scenario(mix: str) -> SwapScenario:
    """A mix of this folder."""
    return read_table(SwapScenario, HERE / f"{mix}.toml")


def measure(job: Run) -> dict[str, float]:
    """The figures of a run."""
    return figures(world_of(job), scenario(job.mix)).named()


def world_of(job: Run) -> World:
    """The run itself."""
    spec, hosts = scenario(job.mix), dict(host_profiles())
    if spec.arrivals == "trace":
        hosts["gentd26"] = recorded_host(Path(job.data))
        jobs = recorded(spec, Path(job.data), job.seed)
    else:
        jobs = requests(spec, Random(job.seed), rates(spec) if spec.rates else None)
    own = {"ours": ours(hosts), "ours-fcfs": ours(hosts, by_turn=False), "collate-turn": collate_by_turn}
    return run(spec, {**RULES, **own}[job.rule], job.seed, jobs, hosts)


def rates(spec: SwapScenario) -> Mapping[str, list[float]]:
    """Each model's rate per second by window: the file's course about the mean that the share gives."""
    lines = (HERE / spec.rates).read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    total = sum(model.share for model in spec.models)
    means = {model.name: spec.rate_per_s * model.share / total for model in spec.models}
    return {name: [float(row[name]) * mean for row in rows] for name, mean in means.items()}


def recorded_host(data: Path) -> HostProfile:
    """A host whose loads take what the recorded ones take: the fastest as the start, the median as the whole."""
    with gzip.open(data / LOADS, "rt", encoding="utf-8") as packed:
        loads = sorted(float(row["ms"]) / 1000 for row in csv.DictReader(packed) if row["kind"] == "basemodel")
    start_s = loads[len(loads) // 20]
    speed = 7.0 * GB / (statistics.median(loads) - start_s)
    return HostProfile("gentd26", 16 * GB, speed, speed, speed, 12 * GB, start_s, 0.4, 0.3, start_s)


def recorded(spec: SwapScenario, data: Path, seed: int) -> list[Job]:
    """A stretch of the recorded arrivals of the most wanted models, begun at a random place, pressed to the mix's rate.

    An answer's length is its service time in tenths of a second.
    """
    with gzip.open(data / spec.trace, "rt", encoding="utf-8") as packed:
        rows = [row for row in csv.DictReader(packed) if row["predict_status"] == "SUCCEED" and row["exec_time_seconds"]]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["checkpoint_model_version_id"]] = counts.get(row["checkpoint_model_version_id"], 0) + 1
    wanted = sorted(counts, key=lambda name: -counts[name])[: len(spec.models)]
    names = dict(zip(wanted, spec.models, strict=True))
    kept = [row for row in rows if row["checkpoint_model_version_id"] in names]
    count = int(spec.rate_per_s * spec.duration_s)
    begin = Random(seed).randrange(len(kept) - count)
    part = kept[begin : begin + count]
    first_s, last_s = float(part[0]["arrival_s"]), float(part[-1]["arrival_s"])
    press = spec.duration_s / max(last_s - first_s, 1.0)
    jobs = []
    for row in part:
        model = names[row["checkpoint_model_version_id"]]
        tokens = max(int(float(row["exec_time_seconds"]) * 10), 1)
        at_s = (float(row["arrival_s"]) - first_s) * press
        jobs.append(Job(model.name, at_s, 1, tokens, model.ttft_s, model.tpot_ms * 1e-3))
    return jobs
