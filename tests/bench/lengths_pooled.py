"""Many models' answers in one table (`make eval-length`): every baseline and ours on prompts that training has not seen.

Of each source at most PROMPTS prompts, of each prompt at most ANSWERS answers; parts by group, one of five is asked. All but
the constant are trained on lengths without the model's own level, which is added again: the shrunk median of what the model
said beyond the others, 0 of a model that training has not seen. Of sources held out the answers are asked, too: after 30 of
each, 0.9 x the median of what was missed is added.
"""

from dataclasses import dataclass, replace

import numpy as np

from tests.bench import lengths_models as models
from tests.bench.lengths_data import HELD_OUT, Prompt, Table, folds
from tests.bench.lengths_scores import Scores, gain, scores

PROMPTS = 600
HELD_OUT_PROMPTS = 400
ANSWERS = 4
LEVEL_PRIOR = 20.0  # answers without a level of their own that a model begins with
CALIBRATION = 30
CALIBRATED = 0.9
OURS = "ours, from a log with text"
MODEL_ALONE = "the model's level alone"


@dataclass(frozen=True, slots=True)
class Pooled:
    """Scores by predictor, on unseen prompts and on sources held out, and ours less the best baseline in tau."""

    known: dict[str, Scores]
    held_out: dict[str, Scores]
    best: str
    gain: tuple[float, float, float]


def chosen(rows: Table) -> dict[str, list[Prompt]]:
    """The prompts that are used, by source."""
    found = {}
    answered = set(rows.prompt.tolist())
    by_source: dict[str, list[Prompt]] = {}
    for number, prompt in enumerate(rows.prompts):
        if number in answered:
            by_source.setdefault(prompt.source, []).append(prompt)
    for source, prompts in sorted(by_source.items()):
        most = HELD_OUT_PROMPTS if source in HELD_OUT else PROMPTS
        order = np.random.default_rng(7).permutation(len(prompts))[:most]
        found[source] = [prompts[number] for number in sorted(order)]
    return found


def answers(rows: Table, prompts: dict[str, list[Prompt]]) -> Table:
    """Some of the answers to these prompts, at most ANSWERS to each."""
    pids = {prompt.pid for some in prompts.values() for prompt in some}
    used = np.array([prompt.pid in pids for prompt in rows.prompts])
    left = np.zeros(len(rows.prompts), dtype=int)
    taken = []
    for row in np.random.default_rng(8).permutation(len(rows)):
        number = rows.prompt[row]
        if used[number] and left[number] < ANSWERS:
            left[number] += 1
            taken.append(row)
    return rows.rows(np.sort(np.array(taken)))


def pooled(rows: Table, vectors: dict[str, np.ndarray]) -> Pooled:
    """`vectors`: embeddings by pid; baselines that need one are left out where any is missing."""
    part = models.part_of(rows, vectors)
    held = np.isin(part.sources, HELD_OUT)
    test = held | (folds(part.groups, 5, 3) == 0)
    seen, asked, out = part.rows(~test), part.rows(test), held[test]
    level = _levels(seen)
    levels = [np.array([level.get(name, 0.0) for name in one.table.models]) for one in (seen, asked)]
    plain = _less(seen, levels[0])
    told = {"constant median": models.constant(seen, asked), MODEL_ALONE: models.constant(plain, asked) + levels[1]}
    for label, predictor in _predictors(part).items():
        told[label] = predictor(plain, asked) + levels[1]
    known = {label: scores(asked.truth[~out], way[~out], asked.sources[~out]) for label, way in told.items()}
    unseen = {label: _calibrated(asked.rows(out), way[out]) for label, way in told.items()}
    best = max((label for label in known if label != OURS), key=lambda label: known[label].tau)
    return Pooled(known, unseen, best, gain(asked.truth[~out], told[OURS][~out], told[best][~out], asked.groups[~out]))


def _predictors(part: models.Part) -> dict[str, models.Predictor]:
    embedding = models.WITH_EMBEDDING if part.embedded is not None else {}
    found = {**models.BASELINES, **models.WITH_HISTORY, **embedding, OURS: models.gateway_trees_with_text}
    return {label: predictor for label, predictor in found.items() if predictor is not models.constant}


def _levels(seen: models.Part) -> dict[str, float]:
    """By model."""
    left = seen.truth - models.workload(seen, seen)
    found = {}
    for name in np.unique(seen.table.models):
        own = left[seen.table.models == name]
        found[str(name)] = float(np.median(own)) * len(own) / (len(own) + LEVEL_PRIOR)
    return found


def _less(part: models.Part, levels: np.ndarray) -> models.Part:
    """The same with shorter answers."""
    truth = part.truth - levels
    return replace(part, truth=truth, table=replace(part.table, tokens=np.exp(truth)))


def _calibrated(part: models.Part, told: np.ndarray) -> Scores:
    """Scores of what comes after the first CALIBRATION answers of each source and model."""
    rest, better = np.ones(len(told), dtype=bool), told.copy()
    kinds = np.char.add(np.char.add(part.sources, "|"), part.table.models)
    for kind in np.unique(kinds):
        there = np.flatnonzero(kinds == kind)
        first = np.random.default_rng(5).permutation(there)[:CALIBRATION]
        rest[first] = False
        better[there] += CALIBRATED * np.median(part.truth[first] - told[first])
    return scores(part.truth[rest], better[rest], part.sources[rest])
