"""Predictions of prompts against the answers' lengths, source by source: cold, and calibrated by the first answers. Pure."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.tagger.records import Row
from gateway.tagger.scores import Scores, score

CALIBRATION = 30  # answers of a source and model after which they count as calibrated
CALIBRATED_SHARE = 0.9
Quantiles = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome: scores by source ("all" among them) of the test side, cold and calibrated."""

    cold: dict[str, Scores]
    calibrated: dict[str, Scores]


def scored(rows: Sequence[Row], found: Callable[[Row], Quantiles], known: Mapping[str, float], seed: int) -> Trained:
    """Scores of what was foretold for each row (`found`), with the models' known offsets added.

    Calibrated: most of the median error of the first answers of (source, model) is added.
    """
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    cold: dict[str, list[tuple[float, Quantiles]]] = defaultdict(list)
    warm: dict[str, list[tuple[float, Quantiles]]] = defaultdict(list)
    first: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in shuffled:
        y, shift = math.log(row.output_tokens), known.get(row.model, 0.0)
        q10, q50, q90 = (q + shift for q in found(row))
        for name in (row.source, "all"):
            cold[name].append((y, (q10, q50, q90)))
        errors = first[row.source, row.model]
        if len(errors) < CALIBRATION:
            errors.append(y - q50)
            continue
        more = CALIBRATED_SHARE * sorted(errors)[len(errors) // 2]
        for name in (row.source, "all"):
            warm[name].append((y, (q10 + more, q50 + more, q90 + more)))
    return Trained(
        {name: score(*zip(*pairs, strict=True)) for name, pairs in sorted(cold.items())},
        {name: score(*zip(*pairs, strict=True)) for name, pairs in sorted(warm.items())},
    )


def table(outcome: dict[str, Scores]) -> list[str]:
    """Lines of text, a source each."""
    lines = [
        f"{'':26}{'answers':>9}{'log-MAE':>9}{'x2':>7}{'tau':>7}{'q90':>7}{'pinball':>9}{'MAE':>8}{'Acc-50':>8}{'Acc-100':>9}"
    ]
    for name, s in outcome.items():
        line = (
            f"{name:26}{s.answers:>9}{s.log_mae:>9.3f}{s.within_x2:>7.3f}{s.tau:>7.3f}{s.coverage_q90:>7.3f}{s.pinball:>9.4f}"
        )
        lines.append(line + f"{s.mae_tokens:>8.0f}{s.acc_50:>8.3f}{s.acc_100:>9.3f}")
    return lines
