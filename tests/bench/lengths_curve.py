"""What more answers to learn from would be worth, and what an understanding of the prompt would be.

The first: ours, trained on a part of the rows and asked about the same ones each time. The second: boosted trees that are
also told how long other models' answers to the very prompt were, which nobody can know before dispatch.
"""

import numpy as np

from gateway.tagger.trees import ROWS_MIN
from tests.bench.lengths_data import Table, folds
from tests.bench.lengths_models import Part, boosted, gateway_trees_with_text
from tests.bench.lengths_noise import others_mean
from tests.bench.lengths_scores import Scores, scores

SHARES = (0.125, 0.25, 0.5, 1.0)
SEED = 5  # of which groups are learnt from


def curve(part: Part, count: int) -> dict[str, Scores]:
    """By the share of the training rows that is learnt from, whole groups each; of `count` parts each is asked once."""
    return dict([_learnt_from(share, part, count) for share in SHARES])


def _learnt_from(share: float, part: Part, count: int) -> tuple[str, Scores]:
    fold, told, learnt = folds(part.groups, count, 0), np.zeros(len(part.truth)), 0
    for number in range(count):
        there = fold == number
        seen = _some(part.rows(~there), share)
        learnt += len(seen.truth)
        assert len(seen.truth) >= ROWS_MIN, f"{len(seen.truth)} rows"
        told[there] = gateway_trees_with_text(seen, part.rows(there))
    return f"ours with text, from {learnt // count} answers", scores(part.truth, told, part.sources)


def _some(part: Part, share: float) -> Part:
    names, place = np.unique(part.groups, return_inverse=True)
    order = np.random.default_rng(SEED).permutation(len(names))
    return part.rows(order[place] < round(share * len(names)))


def told_by_others(everybody: Table, part: Part, models: tuple[str, ...], count: int) -> Scores:
    """Features, and the mean of the answers of all but `models` to the prompt, of those rows that have one."""
    mean, known = others_mean(everybody, models)
    part = part.rows(known[part.table.prompt] > 0)
    numbers = np.column_stack([part.numbers, mean[part.table.prompt]])
    fold, told = folds(part.groups, count, 0), np.zeros(len(part.truth))
    for number in range(count):
        there = fold == number
        told[there] = boosted(numbers[~there], part.truth[~there], numbers[there])
    return scores(part.truth, told, part.sources)
