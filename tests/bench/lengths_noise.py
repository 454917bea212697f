"""How well lengths could be foretold at best: one sample of a model predicted by another sample, or by other models' answers.

A predictor that knew a prompt's mean length exactly would still miss by the noise of sampling; where two samples of the same
model have rank correlation r, no predictor is expected beyond the root of r by much.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tests.bench.lengths_data import Table
from tests.bench.lengths_scores import Scores, scores

CAP = 512
OWN = Path(__file__).resolve().parents[2] / "examples" / "lengths" / "smollm2.parquet"
HOSTS = ("Llama-3.1-405B-Instruct-Turbo", "Meta-Llama-3.1-405B-Instruct@hyperbolic", "Llama-3.1-405B-Inst@sambanova")


@dataclass(frozen=True, slots=True)
class Noise:
    """One sample predicted by something else that was sampled."""

    name: str
    rows: int
    scores: Scores


def of_samples(folder: Path) -> list[Noise]:
    """Vicuna on Alpaca prompts at several temperatures; rows at the cap left out."""
    path = folder / "traces" / "alpaca_vicuna_lengths_4temps.csv.gz"
    if not path.exists():
        return []
    with gzip.open(path, "rt") as lines:
        header = lines.readline().strip().split(",")
        rows = [line.strip().split(",") for line in lines]
    columns = [header.index(f"vicuna_t{heat}") for heat in ("0.7", "0.5")]
    tokens = np.array([[float(row[column] or 0) for column in columns] for row in rows])
    tokens = np.log(tokens[(tokens > 0).all(axis=1) & (tokens < CAP).all(axis=1)])
    alike = np.full(len(tokens), "alpaca")
    return [Noise("Vicuna at T 0.7 by its T 0.5 (Alpaca)", len(tokens), scores(tokens[:, 0], tokens[:, 1], alike))]


def of_hosts(table: Table) -> list[Noise]:
    """The same weights served by two hosts, on the workloads of the one-model rows."""
    pairs = [(one, other) for place, one in enumerate(HOSTS) for other in HOSTS[place + 1 :]]
    return [noise for one, other in pairs if (noise := between(table, one, other)) is not None]


def of_own() -> Noise:
    """SmolLM2 on our own 1,000 prompts, twice at T 0.7; prompts of which an answer was cut off are left out."""
    rows = pq.read_table(OWN, columns=["pid", "sample", "output_tokens", "finish_reason", "source"]).to_pylist()
    ended = [
        {row["pid"]: row for row in rows if row["sample"] == sample and row["finish_reason"] == "stop"} for sample in (0, 1)
    ]
    pids = sorted(ended[0].keys() & ended[1].keys())
    logs = np.log([[one[pid]["output_tokens"] for pid in pids] for one in ended])
    sources = np.array([ended[0][pid]["source"] for pid in pids])
    return Noise("SmolLM2-135M at T 0.7 by its other answer", len(pids), scores(logs[0], logs[1], sources))


def between(table: Table, one: str, other: str) -> Noise | None:
    """One model's answers predicted by another's to the same prompts, each source's offset removed."""
    left, right = (table.rows(table.models == name) for name in (one, other))
    answers = dict(zip(right.prompt.tolist(), right.logs.tolist(), strict=True))
    both = np.array([number in answers for number in left.prompt.tolist()], dtype=bool)
    if both.sum() < 200:
        return None
    rows = left.rows(both)
    told = np.array([answers[number] for number in rows.prompt.tolist()])
    sources = rows.of("source")
    for name in np.unique(sources):
        there = sources == name
        told[there] += np.median(rows.logs[there] - told[there])
    return Noise(f"{one} by {other}", len(rows), scores(rows.logs, told, sources))


def others_mean(table: Table, models: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Of each prompt the mean of all but those models' answers to it, their own levels removed, and how many there are."""
    kinds = np.char.add(np.char.add(table.models, "|"), table.of("source"))
    _, place = np.unique(kinds, return_inverse=True)
    sums = np.bincount(place, table.logs) / np.bincount(place)
    left = table.logs - sums[place]
    others = ~np.isin(table.models, models)
    count = np.bincount(table.prompt[others], minlength=len(table.prompts))
    mean = np.bincount(table.prompt[others], left[others], minlength=len(table.prompts)) / np.maximum(count, 1)
    return mean, count


def by_all_others(table: Table, models: tuple[str, ...], name: str) -> Noise:
    """A model's answers by the mean of all other models' answers to the same prompt, their own levels removed."""
    mean, count = others_mean(table, models)
    rows = table.rows(np.isin(table.models, models) & (count[table.prompt] > 0))
    sources = rows.of("source")
    told = mean[rows.prompt]
    for source in np.unique(sources):
        there = sources == source
        told[there] += np.median(rows.logs[there] - told[there])
    return Noise(f"{name} by the mean of all other models", len(rows), scores(rows.logs, told, sources))
