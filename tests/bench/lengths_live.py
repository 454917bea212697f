"""The tagger itself, as it serves: what shipped weights say of workloads they never saw, cold, after 30 answers, and while
it goes on learning from each answer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.tagger.shipped import Shipped
from predictor.length import Guess, LayerReport, LengthTagger
from predictor.lengths import UNKNOWN
from predictor.tagger_text import encoder_text
from predictor.trees import Trees
from tests.bench.lengths_data import Table
from tests.bench.lengths_scores import pinball, tau, within

MODELS = Path(__file__).resolve().parents[2] / "predictor" / "tagger_models"
DRAWS = 20
CALIBRATION = 30
COVERED_ROWS = 2000
UNKNOWN_LOG = math.log(UNKNOWN.q50)
Guesses = dict[str, Guess]


@dataclass(frozen=True, slots=True)
class Unseen:
    """One held-out source: errors cold, then after CALIBRATION answers (means over draws), by way of prediction."""

    source: str
    rows: int
    cold: dict[str, float]
    log_mae: dict[str, float]
    tau: dict[str, float]


@dataclass(frozen=True, slots=True)
class Stream:
    """A model's answers one after the other, each foretold before it is learnt."""

    name: str
    rows: int
    log_mae: float  # after the first 1,000
    log_mae_running: float
    tau: float
    coverage_q90: tuple[float, float]  # least and most over windows of COVERED_ROWS
    coverage_q10: float
    pinball: float
    pinball_running: float
    encoder: LayerReport  # how it stands at the end


class Told:
    """What shipped weights say of each prompt, worked out once."""

    def __init__(self, encode: Callable[[Table, np.ndarray], dict[int, Guess]] | None = None) -> None:
        self._trees = Trees.from_onnx((MODELS / "trees.onnx").read_bytes())
        self._encode = encode

    def of(self, table: Table) -> dict[int, Guesses]:
        """By a prompt's number."""
        numbers = np.unique(table.prompt)
        told: dict[int, Guesses] = {}
        for number in numbers:
            told[int(number)] = {"trees": Guess(*self._trees.quantiles(table.prompts[number].cues), "trees")}
        if self._encode is not None:
            for number, guess in self._encode(table, numbers).items():
                told[number]["encoder"] = guess
        return told


def encoded(table: Table, numbers: np.ndarray) -> dict[int, Guess]:
    """What the shipped encoder says, on one thread (2 ms each)."""
    shipped = Shipped()
    views = {int(number): table.prompts[number].view for number in numbers}
    return {number: Guess(*shipped.of_text(encoder_text(view)), "encoder") for number, view in views.items()}


def unseen(source: str, table: Table, told: dict[int, Guesses]) -> Unseen:
    """A workload that no weights have seen."""
    cold = _asked(LengthTagger(), table, told)
    trees = np.array([told[int(number)]["trees"].q50 for number in table.prompt])
    cold_errors = {
        "constant": float(np.abs(table.logs - UNKNOWN_LOG).mean()),
        "trees": float(np.abs(table.logs - trees).mean()),
        "tagger": float(np.abs(table.logs - cold[:, 1]).mean()),
    }
    errors: dict[str, list[float]] = {"constant": [], "trees": [], "tagger": []}
    ranks: dict[str, list[float]] = {"constant": [], "trees": [], "tagger": []}
    rng = np.random.default_rng(5)
    for _ in range(DRAWS):
        order = rng.permutation(len(table))
        seen, rest = table.rows(order[:CALIBRATION]), table.rows(order[CALIBRATION:])
        tagger = LengthTagger()
        _learnt(tagger, seen, told)
        left = np.median(seen.logs - trees[order[:CALIBRATION]])
        ways = {
            "constant": np.full(len(rest), np.median(seen.logs)),
            "trees": trees[order[CALIBRATION:]] + 0.9 * left,
            "tagger": _asked(tagger, rest, told)[:, 1],
        }
        for name, way in ways.items():
            errors[name].append(float(np.abs(rest.logs - way).mean()))
            ranks[name].append(tau(rest.logs, way))
    means = [{name: float(np.mean(values)) for name, values in found.items()} for found in (errors, ranks)]
    return Unseen(source, len(table), cold_errors, *means)


def _asked(tagger: LengthTagger, table: Table, told: dict[int, Guesses]) -> np.ndarray:
    """Quantiles, in logs, without learning."""
    found = []
    for number in table.prompt:
        tag = tagger.tag("model", "chat", table.prompts[number].cues, told[int(number)], -1)
        assert tag.mixed is not None
        found.append(tag.mixed.told)
    return np.array(found)


def _learnt(tagger: LengthTagger, table: Table, told: dict[int, Guesses]) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles told before each answer was learnt, and running quantiles at that time."""
    found, running = [], []
    for number, tokens in zip(table.prompt, table.tokens, strict=True):
        tag = tagger.tag("model", "chat", table.prompts[number].cues, told[int(number)], -1)
        assert tag.mixed is not None
        found.append(tag.mixed.told)
        running.append(tag.mixed.running)
        tagger.observe(tag, int(tokens), truncated=False)
    return np.array(found), np.array(running)


def stream(name: str, table: Table, told: dict[int, Guesses], *, drifting: bool = False) -> Stream:
    """In random order; drifting: one source after the other."""
    order = np.random.default_rng(0).permutation(len(table))
    if drifting:
        order = order[np.argsort(table.of("source")[order], kind="stable")]
    rows = table.rows(order)
    tagger = LengthTagger()
    quantiles, running = _learnt(tagger, rows, told)
    truth, late = rows.logs, slice(min(1000, len(rows) // 2), None)
    hits = truth <= quantiles[:, 2]
    starts = range(0, max(1, len(rows) - COVERED_ROWS + 1), 100)
    covered = [float(hits[at : at + COVERED_ROWS].mean()) for at in starts]
    return Stream(
        name,
        len(rows),
        float(np.abs(truth - quantiles[:, 1])[late].mean()),
        float(np.abs(truth - running[:, 1])[late].mean()),
        within(truth[late], quantiles[late, 1], rows.of("source")[late]) if drifting else tau(truth[late], quantiles[late, 1]),
        (min(covered), max(covered)),
        float((truth <= quantiles[:, 0]).mean()),
        pinball(truth, quantiles),
        pinball(truth, running),
        next(layer for layer in tagger.report("model").layers if layer.name == "encoder"),
    )


def show_unseen(found: list[Unseen]) -> None:
    """Print a table."""
    print(f"\nworkloads that no shipped weights saw ({DRAWS} draws of {CALIBRATION} answers)")
    print(f"{'':28s}{'':12s}   cold  log-MAE after 30   tau after 30")
    for one in found:
        for name in one.cold:
            print(f"{one.source:28s}{name:12s}{one.cold[name]:7.3f}{one.log_mae[name]:18.3f}{one.tau[name]:15.3f}")


def show_streams(found: list[Stream]) -> None:
    """Print a table."""
    print("\nlearning while serving (each answer foretold, then learnt; errors after the first 1,000)")
    print(f"{'':34s}  rows log-MAE (running)    tau   q90 covers (windows)  q10    pinball (running)")
    for one in found:
        low, high = one.coverage_q90
        errors = f"{one.log_mae:7.3f} ({one.log_mae_running:.3f}) {one.tau:8.3f}"
        covered = f"{low:.3f}..{high:.3f}  {one.coverage_q10:.3f}"
        print(f"{one.name:34s}{one.rows:6d} {errors}        {covered}     {one.pinball:.3f} ({one.pinball_running:.3f})")
        if one.encoder.answers:
            print(f"{'':34s}encoder {one.encoder.why}")
